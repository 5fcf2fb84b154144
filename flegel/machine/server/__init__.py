"""Parameter servers as state machines: slices, their copies, and the coordinator's view of them. No I/O."""
