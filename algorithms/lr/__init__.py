"""Logistic regression: the model and its block kernels."""

from flegel.algorithms.lr.lr import LR

__all__ = ["LR"]
