"""A worker as a state machine, and the points that it holds."""
