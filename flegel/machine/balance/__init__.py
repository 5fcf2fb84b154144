"""Points that move to faster workers: when, how many, and what the coordinator does about it. Pure."""
