"""Compiled kernels on the CPU."""
