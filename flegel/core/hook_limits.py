"""How much longer than the limit of a hook some calls may take: the engine works in them too. Constants only."""

COMPILING_SECONDS = 600.0
"""Seconds for compiling: the largest kernel, of logistic regression, takes half a minute of an idle processor, and a
process on a crowded host gets a tenth of one."""
BUILT_IN_START_SECONDS = 600.0
"""Seconds for the first parameters of a built-in algorithm: its hooks end, on wide tables late."""
