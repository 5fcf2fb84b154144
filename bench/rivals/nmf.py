"""Rivals in factorization: scikit-learn's NMF with both of its solvers, on a matrix of which every entry counts."""

from __future__ import annotations

import warnings

import numpy as np

from bench.rivals.objectives import Model
from bench.rivals.trainers import Rival, Task


class SklearnFactors(Rival):
    """Goes on from where it stood, in ever longer stretches; W begins with equal weights, as Flegel's rows do."""

    package, solver = "sklearn", "cd"

    def __init__(self, task: Task) -> None:
        from sklearn.decomposition import NMF

        super().__init__(task)
        self._make, self._rounds = NMF, 0
        kind = task.X.dtype
        self._H = np.ascontiguousarray((task.start["factors"] * task.start["scale"]).T.astype(kind))
        fit = task.X.sum(axis=1) / self._H.sum()
        self._W = np.repeat(fit[:, None], len(self._H), axis=1).astype(kind)

    def step(self) -> None:
        rounds = max(1, self._rounds // 8)
        made = self._make(len(self._H), init="custom", solver=self.solver, max_iter=rounds, tol=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that it has not converged; that is the idea
            self._W = made.fit_transform(self.task.X, W=self._W, H=self._H)
        self._H = made.components_
        self._rounds += rounds
        self.seen += rounds * len(self.task.X)

    def model(self) -> Model:
        return {"factors": self._H.T}


class SklearnMultiplicative(SklearnFactors):
    solver = "mu"
