"""How much longer than the limit of a hook some calls may take: the engine works in them too. Constants only."""

COMPILING = 120.0
"""Seconds for compiling."""
BUILT_IN_START = 600.0
"""Seconds for the first parameters of a built-in algorithm: its hooks end, on wide tables late."""
