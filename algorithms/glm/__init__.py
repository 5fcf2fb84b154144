"""Generalized linear models: the base with its steps, rows in the coordinates of a search, and losses."""
