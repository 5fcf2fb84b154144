"""Faults on purpose, against real processes and on virtual time. `run` is the whole suite."""
