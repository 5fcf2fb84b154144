"""Other libraries on the same task: same rows, same start, same objective. Each is optional and has its own process.

A rival either takes steps (`step`, `model`) or trains for a number of rounds at once (`fit`). Objectives are computed
outside the clock, by the same few lines of NumPy for everybody, Flegel included.
"""
