"""Fuzzy c-means: the model and its block kernels."""

from flegel.algorithms.fcm.fcm import FCM

__all__ = ["FCM"]
