"""Plans made from measurements: when to stop, how long an interval is, how to balance. Pure; small state, no I/O."""
