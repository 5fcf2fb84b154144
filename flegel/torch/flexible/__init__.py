"""Flexible barriers inside PyTorch's own data-parallel training; no coordinator and no cluster of Flegel."""
