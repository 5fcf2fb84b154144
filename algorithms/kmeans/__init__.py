"""K-means: the model and its block kernels."""

from flegel.algorithms.kmeans.kmeans import KMeans

__all__ = ["KMeans"]
