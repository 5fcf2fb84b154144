"""Networks in benchmarks: Fashion-MNIST from a folder, weights kept during a run, time to an accuracy, a plain loop.

Test accuracy is computed after a run, from weights that were kept while it trained, so that it costs the run nothing
but copies.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import flegel
from bench.common import kept_weights
from flegel.datasets import open_data
from flegel.torch.builtin import CNN, LeNet

CLOSER = 8  # moments between the last one below a target and the first one above it

FILES = ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz")


class KeptLeNet(LeNet):
    """LeNet whose weights are kept during the run."""

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        fresh = super().updateParameter(aggregator, oldParameter)
        kept_weights.keep(fresh)
        return fresh


class KeptCNN(CNN):
    """The small convolutional network whose weights are kept during the run."""

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        fresh = super().updateParameter(aggregator, oldParameter)
        kept_weights.keep(fresh)
        return fresh


@dataclass
class Images:
    """Training and test images, whether they are the real ones."""

    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    real: bool


def fashion(folder: Path | None, rows: int | None, tested: int | None = None) -> Images:
    """Fashion-MNIST from its IDX files; without them the generated stand-in, and said so."""
    if folder is not None and (folder / FILES[0]).exists():
        parts = [open_data(str(folder / name)).load() for name in FILES]
        real = True
    else:
        x, y = open_data("fashion-mnist:70000").load()
        parts, real = [(x[:60_000], y[:60_000]), (x[60_000:], y[60_000:])], False
    train, test = [(np.ascontiguousarray(x, np.float32), np.asarray(y, np.float64)) for x, y in parts]
    return Images((train[0][:rows], train[1][:rows]), (test[0][:tested], test[1][:tested]), real)


@dataclass
class Course:
    """One run: its result, and (seconds, test accuracy) over time."""

    result: Any
    curve: list[tuple[float, float]]

    @property
    def best(self) -> float:
        return max((a for _, a in self.curve), default=0.0)

    def time_to(self, accuracy: float) -> float | None:
        return next((s for s, a in self.curve if a >= accuracy), None)


def train(network: Any, images: Images, points: int = 60, enough: float | None = None, **options: Any) -> Course:
    """A run, and its test accuracy at about so many moments; with `enough` up to the first that is so good, and at the
    end."""
    kept_weights.kept().clear()
    result = flegel.run(network, images.train, **options)
    seconds = {row["iteration"]: row["seconds"] for row in result.rows}
    last = len(kept_weights.kept()) - 1
    chosen = sorted({round(i * last / max(points - 1, 1)) for i in range(points)}) if last >= 0 else []

    def looked_at(i: int) -> tuple[float, float]:
        _, step, weights, buffers = kept_weights.kept()[i]
        theta = result.parameter._replace(weights=weights, buffers=buffers)
        accuracy = network.evaluate(*images.test, theta).metrics["accuracy"]
        return float(seconds.get(step, result.seconds)), float(accuracy)

    curve: list[tuple[float, float]] = []
    for before, i in pairwise([-1, *chosen]):
        found = looked_at(i)
        if enough is not None and found[1] >= enough:
            between = sorted({round(before + part * (i - before) / CLOSER) for part in range(1, CLOSER)} - {before, i})
            closer = [looked_at(j) for j in between if j >= 0]
            curve += [*closer, found]
            break
        curve.append(found)
    final = network.evaluate(*images.test, result.parameter).metrics["accuracy"]
    return Course(result, [*curve, (float(result.seconds), float(final))])


def plain_loop(images: Images, micro_batch: int, passes: int, each_step: bool) -> float:
    """Seconds a sample of a plain PyTorch loop on one core: a step for each micro-batch, or one for each pass."""
    import torch

    from flegel.torch.modules import LeNetModule

    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = LeNetModule(1, 28, 10)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    x, y = torch.from_numpy(images.train[0]), torch.from_numpy(images.train[1]).long()
    total, began = 0.0, 0.0
    for number in range(passes + 1):
        if number == 1:
            began = time.monotonic()  # the first pass warms up
        for at in range(0, len(x), micro_batch):
            rows = x[at : at + micro_batch].reshape(-1, 1, 28, 28) / 255.0
            loss = torch.nn.functional.cross_entropy(net(rows), y[at : at + micro_batch], reduction="sum")
            loss.backward()
            total += float(loss)
            if each_step:
                optimizer.step()
                optimizer.zero_grad()
        if not each_step:
            optimizer.step()
            optimizer.zero_grad()
    return (time.monotonic() - began) / (passes * len(x))
