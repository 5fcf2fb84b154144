"""Rivals with kernels of their own: faiss, and Intel's replacements for scikit-learn's estimators.

`pip install faiss-cpu scikit-learn-intelex`; the second one exists for x86 only.
"""

from __future__ import annotations

import numpy as np

from bench.rivals.objectives import Model
from bench.rivals.trainers import Rival, SklearnLloyd, SklearnNewton, Task


class FaissLloyd(Rival):
    """`faiss.Clustering` from the given start over all rows; it samples 256 rows a cluster unless told otherwise."""

    package = "faiss"

    def __init__(self, task: Task) -> None:
        import faiss

        super().__init__(task)
        self._faiss = faiss
        self._rows = np.ascontiguousarray(task.X, np.float32)  # it knows no other precision

    def fit(self, rounds: int) -> None:
        faiss = self._faiss
        start = self.task.start["centroids"].astype(np.float32)
        faiss.omp_set_num_threads(self.task.threads)
        made = faiss.Clustering(start.shape[1], len(start))
        made.niter, made.seed = rounds, 0
        made.min_points_per_centroid, made.max_points_per_centroid = 1, len(self._rows)
        faiss.copy_array_to_vector(start.ravel(), made.centroids)
        made.train(self._rows, faiss.IndexFlatL2(start.shape[1]))
        self._centroids = faiss.vector_to_array(made.centroids).reshape(start.shape)

    def model(self) -> Model:
        return {"centroids": self._centroids}


class IntelLloyd(SklearnLloyd):
    package = "sklearnex"

    def __init__(self, task: Task) -> None:
        from sklearnex.cluster import KMeans

        super().__init__(task)
        self._make = KMeans


class IntelNewton(SklearnNewton):
    package = "sklearnex"

    def __init__(self, task: Task) -> None:
        from sklearnex.linear_model import LogisticRegression

        super().__init__(task)
        self._make = LogisticRegression
