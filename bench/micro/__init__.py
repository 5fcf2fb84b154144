"""Measurements of single parts: kernels, barriers, loading, moves, checkpoints, the simulator."""
