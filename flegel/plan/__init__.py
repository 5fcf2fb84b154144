"""Plans made from measurements: when to stop, later how to balance. Pure functions and small state; no I/O."""
