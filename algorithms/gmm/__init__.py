"""Gaussian mixtures: the model and its block kernels."""

from flegel.algorithms.gmm.gmm import GMM

__all__ = ["GMM"]
