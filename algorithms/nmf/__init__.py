"""Non-negative matrix factorization: the model and its block kernels."""

from flegel.algorithms.nmf.nmf import NMF

__all__ = ["NMF"]
