"""Which points should move from slow to fast workers. Pure."""
