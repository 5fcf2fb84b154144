"""Lloyd's algorithm on a GPU, in PyTorch and in CuPy: distances and sums as matrix products, chunk by chunk.

`moved` is what bringing the rows there took; it counts end to end, and not as training.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bench.rivals.objectives import Model
from bench.rivals.trainers import Rival, Task

CHUNK = 1 << 20


class TorchGpu(Rival):
    package = "torch"

    def __init__(self, task: Task) -> None:
        import torch

        super().__init__(task)
        self._torch = torch
        torch.zeros(1, device="cuda")  # wakes the device up; that is no transfer
        torch.cuda.synchronize()
        began = time.monotonic()
        self._X = torch.from_numpy(task.X).cuda()
        torch.cuda.synchronize()
        self.moved = time.monotonic() - began
        self._centres = torch.from_numpy(task.start["centroids"].astype(task.X.dtype)).cuda()

    def step(self) -> None:
        torch, k = self._torch, len(self._centres)
        sums = torch.zeros(self._centres.shape, dtype=torch.float64, device="cuda")
        counts = torch.zeros(k, dtype=torch.float64, device="cuda")
        norms = (self._centres**2).sum(1)
        numbers = torch.arange(k, device="cuda")
        for rows in self._X.split(CHUNK):
            nearest = (norms - 2 * rows @ self._centres.T).argmin(1)
            members = (nearest[:, None] == numbers).to(rows.dtype)
            sums += (members.T @ rows).double()
            counts += members.sum(0).double()
        filled = counts > 0
        self._centres[filled] = (sums[filled] / counts[filled, None]).to(self._centres.dtype)
        torch.cuda.synchronize()
        self.seen += len(self._X)

    def model(self) -> Model:
        return {"centroids": self._centres.cpu().numpy()}


class CupyGpu(Rival):
    package = "cupy"

    def __init__(self, task: Task) -> None:
        import cupy

        super().__init__(task)
        self._cupy: Any = cupy
        cupy.zeros(1)
        self._wait()
        began = time.monotonic()
        self._X = cupy.asarray(task.X)
        self._wait()
        self.moved = time.monotonic() - began
        self._centres = cupy.asarray(task.start["centroids"].astype(task.X.dtype))

    def _wait(self) -> None:
        self._cupy.cuda.Device().synchronize()

    def step(self) -> None:
        cupy, k = self._cupy, len(self._centres)
        sums, counts = cupy.zeros(self._centres.shape), cupy.zeros(k)
        norms = (self._centres**2).sum(1)
        numbers = cupy.arange(k)
        for at in range(0, len(self._X), CHUNK):
            rows = self._X[at : at + CHUNK]
            nearest = (norms - 2 * rows @ self._centres.T).argmin(1)
            members = (nearest[:, None] == numbers).astype(rows.dtype)
            sums += members.T @ rows
            counts += members.sum(0)
        filled = counts > 0
        self._centres[filled] = (sums[filled] / counts[filled, None]).astype(self._centres.dtype)
        self._wait()
        self.seen += len(self._X)

    def model(self) -> Model:
        return {"centroids": np.asarray(self._cupy.asnumpy(self._centres))}
