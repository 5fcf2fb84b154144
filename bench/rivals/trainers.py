"""The rivals: scikit-learn, PyTorch, Dask arrays, and a parameter server on Ray, each written as its users would.

Imports stand in the constructors: they count end to end, but not as training.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from bench.common.program import ROOT
from bench.rivals.objectives import Model


class Task:
    """What every rival gets."""

    def __init__(self, X: np.ndarray, y: np.ndarray | None, start: dict[str, np.ndarray], threads: int) -> None:
        self.X, self.y, self.start, self.threads = X, y, start, threads


class Rival:
    """Takes steps (a pass, or part of one); `model` is what it has learned so far."""

    package = ""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.seen = 0
        """Rows that were looked at."""
        self.moved = 0.0
        """Seconds that it took to bring the rows to where they are used."""

    def step(self) -> None:
        raise NotImplementedError

    def fit(self, rounds: int) -> None:
        """All at once, for those that cannot be interrupted without cost."""
        raise NotImplementedError

    def model(self) -> Model:
        raise NotImplementedError

    def told(self) -> str:
        """How far it went."""
        return f"{self.seen / len(self.task.X):.3g} passes"

    def close(self) -> None:
        """Nothing to do for most."""

    @property
    def whole(self) -> bool:
        return type(self).fit is not Rival.fit


class SklearnLloyd(Rival):
    package, algorithm = "sklearn", "lloyd"

    def __init__(self, task: Task) -> None:
        from sklearn.cluster import KMeans

        super().__init__(task)
        self._make = KMeans

    def fit(self, rounds: int) -> None:
        start = self.task.start["centroids"].astype(self.task.X.dtype)
        self._fitted = self._make(len(start), init=start, n_init=1, max_iter=rounds, tol=0, algorithm=self.algorithm)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that it has not converged; that is the idea
            self._fitted.fit(self.task.X)

    def model(self) -> Model:
        return {"centroids": self._fitted.cluster_centers_}


class SklearnElkan(SklearnLloyd):
    algorithm = "elkan"


class SklearnMiniBatch(Rival):
    """Batches drawn as its `fit` draws them, of 1,024 rows a core; looked at ever more rarely."""

    package = "sklearn"

    def __init__(self, task: Task, batch: int | None = None) -> None:
        from sklearn.cluster import MiniBatchKMeans

        super().__init__(task)
        start = task.start["centroids"].astype(task.X.dtype)
        self._batch = batch or 1024 * task.threads
        self._fitted = MiniBatchKMeans(len(start), init=start, n_init=1, batch_size=self._batch, random_state=0)
        self._rng = np.random.default_rng(0)
        self._done = 0

    def step(self) -> None:
        from sklearn import config_context

        count = max(1, self._done // 8)
        with config_context(assume_finite=True):  # its `fit` checks the rows once, not batch by batch
            for _ in range(count):
                self._fitted.partial_fit(self.task.X[self._rng.integers(0, len(self.task.X), self._batch)])
        self._done += count
        self.seen += count * self._batch

    def model(self) -> Model:
        return {"centroids": self._fitted.cluster_centers_}


class SklearnMiniBatchDefault(SklearnMiniBatch):
    """With the batch of 1,024 rows that it has by default."""

    def __init__(self, task: Task) -> None:
        super().__init__(task, 1024)


class TorchLloyd(Rival):
    package = "torch"

    def __init__(self, task: Task) -> None:
        import torch

        super().__init__(task)
        torch.set_num_threads(task.threads)
        self._torch, self._X = torch, torch.from_numpy(task.X)
        self._centres = torch.from_numpy(task.start["centroids"].astype(task.X.dtype))

    def step(self) -> None:
        self.seen += len(self._X)
        torch, k = self._torch, len(self._centres)
        sums, counts = torch.zeros_like(self._centres, dtype=torch.float64), torch.zeros(k, dtype=torch.float64)
        norms = (self._centres**2).sum(1)
        for rows in self._X.split(65536):
            nearest = (norms - 2 * rows @ self._centres.T).argmin(1)
            sums.index_add_(0, nearest, rows.double())
            counts += torch.bincount(nearest, minlength=k).double()
        filled = counts > 0
        self._centres[filled] = (sums[filled] / counts[filled, None]).to(self._centres.dtype)

    def model(self) -> Model:
        return {"centroids": self._centres.numpy()}


def statistics(rows: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums and counts of each cluster in some rows."""
    nearest = ((centres**2).sum(1) - 2 * rows @ centres.T).argmin(1)
    counts = np.bincount(nearest, minlength=len(centres))
    sums = np.stack([np.bincount(nearest, rows[:, j], len(centres)) for j in range(rows.shape[1])], axis=1)
    return sums, counts


class DaskLloyd(Rival):
    """Lloyd on a Dask array, a chunk a task, on Dask's threads."""

    package = "dask"

    def __init__(self, task: Task) -> None:
        import dask
        import dask.array as da

        super().__init__(task)
        dask.config.set(scheduler="threads", num_workers=task.threads)
        self._dask, self._centres = dask, task.start["centroids"].astype(task.X.dtype)
        size = -(-len(task.X) // (4 * task.threads))
        self._parts = da.from_array(task.X, chunks=(size, -1)).to_delayed().ravel()

    def step(self) -> None:
        self.seen += len(self.task.X)
        found = self._dask.compute(*(self._dask.delayed(statistics)(part, self._centres) for part in self._parts))
        sums, counts = sum(s for s, _ in found), sum(c for _, c in found)
        self._centres[counts > 0] = sums[counts > 0] / counts[counts > 0, None]

    def model(self) -> Model:
        return {"centroids": self._centres}


class RayServer(Rival):
    """A parameter server actor and worker actors with a part of the rows each, in synchronous rounds."""

    package = "ray"

    def __init__(self, task: Task) -> None:
        import ray

        super().__init__(task)
        self._ray = ray
        ray.init(
            num_cpus=task.threads + 1,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
        )

        @ray.remote
        class Server:
            def __init__(self, centres: np.ndarray) -> None:
                self.centres = centres.copy()

            def apply(self, *parts: Any) -> np.ndarray:
                sums, counts = sum(s for s, _ in parts), sum(c for _, c in parts)
                self.centres[counts > 0] = sums[counts > 0] / counts[counts > 0, None]
                return self.centres

        @ray.remote
        class Worker:
            def __init__(self, rows: np.ndarray) -> None:
                self.rows = rows

            def work(self, centres: np.ndarray) -> Any:
                return statistics(self.rows, centres)

        self._centres = task.start["centroids"].astype(task.X.dtype)
        self._server = Server.remote(self._centres)
        self._workers = [Worker.remote(part) for part in np.array_split(task.X, task.threads)]

    def step(self) -> None:
        self.seen += len(self.task.X)
        parts = [worker.work.remote(self._centres) for worker in self._workers]
        self._centres = self._ray.get(self._server.apply.remote(*parts))

    def model(self) -> Model:
        return {"centroids": self._centres}

    def close(self) -> None:
        self._ray.shutdown()


class SklearnMixture(Rival):
    package = "sklearn"

    def __init__(self, task: Task) -> None:
        from sklearn.mixture import GaussianMixture

        super().__init__(task)
        self._make = GaussianMixture

    def fit(self, rounds: int) -> None:
        start = self.task.start
        self._fitted = self._make(
            len(start["weights"]), covariance_type="diag", max_iter=rounds, tol=0, weights_init=start["weights"],
            means_init=start["means"], precisions_init=1 / start["covariances"],
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that it has not converged; that is the idea
            self._fitted.fit(self.task.X)

    def model(self) -> Model:
        fitted = self._fitted
        return {"weights": fitted.weights_, "means": fitted.means_, "covariances": fitted.covariances_}


class SklearnSGD(Rival):
    package, PARTS = "sklearn", 16

    def __init__(self, task: Task) -> None:
        from sklearn.linear_model import SGDClassifier

        super().__init__(task)
        self._fitted = SGDClassifier(loss="log_loss", penalty=None, average=True, random_state=0)
        self._parts = np.array_split(np.random.default_rng(0).permutation(len(task.X)), self.PARTS)
        self._turn = 0

    def step(self) -> None:
        rows = self._parts[self._turn % len(self._parts)]
        assert self.task.y is not None
        self._fitted.partial_fit(self.task.X[rows], self.task.y[rows], classes=[0.0, 1.0])
        self._turn += 1
        self.seen += len(rows)

    def model(self) -> Model:
        return {"weights": self._fitted.coef_, "bias": self._fitted.intercept_}


class SklearnNewton(Rival):
    """LogisticRegression with its default solver."""

    package, solver = "sklearn", "lbfgs"

    def __init__(self, task: Task) -> None:
        from sklearn.linear_model import LogisticRegression

        super().__init__(task)
        self._make = LogisticRegression

    def fit(self, rounds: int) -> None:
        self._fitted = self._make(C=1e12, max_iter=rounds, tol=1e-12, solver=self.solver)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._fitted.fit(self.task.X, self.task.y)

    def model(self) -> Model:
        return {"weights": self._fitted.coef_, "bias": self._fitted.intercept_}


class SklearnSaga(SklearnNewton):
    """With the solver that its documentation recommends for many rows."""

    solver = "saga"
