"""Why is a network that sites train together less accurate than one group with all rows? One cause at a time.

    python -m bench.figures.site_steps --images FOLDER --summary site-steps.json

A network of one hidden layer (64), local steps of 16 images, learning rate 0.05 that falls as a cosine, 3,000 images,
24 passes; the sites put θ together after each pass and wait for the result, by the functions of groups themselves
(`outer_step`, `packed`, `shortened`, `Fragments`). No job, bucket or link: all sites and seeds are trained in one loop,
so that a case takes seconds. Accuracy is that of the common θ on 2,000 test images. `central` is one group with all
rows; its variant with three times the batch takes as many steps as each of three sites. Seeds are drawn. Needs torch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.network_runs import Images, fashion
from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.machine.group.fragments import ALL_FRAGMENTS, Fragments
from flegel.machine.group.outer_step import outer_step
from flegel.machine.group.wire import packed, restored, shortened, unpacked

HIDDEN, BATCH, RATE, PASSES = 64, 16, 0.05, 24


@dataclass(frozen=True)
class Case:
    """What differs from three sites that average θ after each pass."""

    name: str
    sites: int = 3
    batch: int = BATCH
    rate: float = RATE
    passes: int = PASSES
    outer: str = "mean"
    wire: str = "full"
    fragments: int = 1
    is_sorted: bool = False
    """Each site has the images of some classes only."""


CASES = (
    Case("central", 1),
    Case("3 sites"),
    Case("central, batches three times as large", 1, 3 * BATCH),
    Case("central, batches and rate three times as large", 1, 3 * BATCH, 3 * RATE),
    Case("central, three times the rate", 1, rate=3 * RATE),
    Case("3 sites, three times the rate", rate=3 * RATE),
    Case("3 sites, nesterov", outer="nesterov"),
    Case("3 sites, three times the passes", passes=3 * PASSES),
    Case("3 sites, nesterov, int4", outer="nesterov", wire="int4"),
    Case("3 sites, nesterov, int4, 4 fragments", outer="nesterov", wire="int4", fragments=4),
    Case("3 sites, nesterov, int4, 8 fragments", outer="nesterov", wire="int4", fragments=8),
    Case("3 sites, three times the rate, int4, 4 fragments", rate=3 * RATE, wire="int4", fragments=4),
    Case("3 sites, three times the rate, int4, 6 fragments", rate=3 * RATE, wire="int4", fragments=6),
    Case("3 sites, three times the rate, int4, 8 fragments", rate=3 * RATE, wire="int4", fragments=8),
    Case("8 sites", 8),
    Case("8 sites, eight times the rate", 8, rate=8 * RATE),
    Case("8 sites, nesterov", 8, outer="nesterov"),
    Case("8 sites, nesterov, twice the rate", 8, rate=2 * RATE, outer="nesterov"),
    Case("3 sites, sorted", is_sorted=True),
    Case("3 sites, sorted, nesterov", is_sorted=True, outer="nesterov"),
)


def begun(seed: int, features: int, classes: int) -> list[Array]:
    """θ(0): weights and offsets of both layers, as torch draws them."""
    rng, found = np.random.default_rng([seed, 1]), list[Array]()
    for into, out in ((features, HIDDEN), (HIDDEN, classes)):
        bound = 1.0 / np.sqrt(into)
        found += [rng.uniform(-bound, bound, size).astype(np.float32) for size in ((into, out), (1, out))]
    return found


def dealt(case: Case, labels: Array, seed: int, rows: int) -> Array:
    """Rows of each site; all have as many."""
    chosen = np.random.default_rng(seed).permutation(len(labels))[:rows]
    each = rows // case.sites
    if case.is_sorted:
        chosen = chosen[np.argsort(labels[chosen], kind="stable")]
        return chosen[: each * case.sites].reshape(case.sites, each)
    return np.stack([chosen[at :: case.sites][:each] for at in range(case.sites)])


class Steps:
    """Local steps of all sites of all seeds at the same time: the first dimension of every array."""

    def __init__(self, features: Any, labels: Any, case: Case) -> None:
        self._x, self._y, self._case, self._taken = features, labels, case, 0
        self._each = features.shape[1] // case.batch
        self._all = self._each * case.passes

    def one_pass(self, theta: list[Any], rng: np.random.Generator) -> None:
        """θ is changed in place."""
        import torch

        many, rows = self._y.shape
        order = torch.from_numpy(np.argsort(rng.random((many, rows)), axis=1))
        for step in range(self._each):
            taken = order[:, step * self._case.batch : (step + 1) * self._case.batch]
            x = torch.gather(self._x, 1, taken[:, :, None].expand(-1, -1, self._x.shape[2]))
            self._step(theta, x, torch.gather(self._y, 1, taken))

    def _step(self, theta: list[Any], x: Any, y: Any) -> None:
        import torch

        rate = self._case.rate * 0.5 * (1.0 + np.cos(np.pi * self._taken / self._all))
        self._taken += 1
        hidden = torch.relu(torch.baddbmm(theta[1], x, theta[0]))
        wrong = torch.softmax(torch.baddbmm(theta[3], hidden, theta[2]), 2)
        wrong.scatter_add_(2, y[:, :, None], torch.full((*y.shape, 1), -1.0))
        wrong /= y.shape[1]
        back = (wrong @ theta[2].transpose(1, 2)) * (hidden > 0)
        slopes = [x.transpose(1, 2) @ back, back.sum(1, keepdim=True)]
        slopes += [hidden.transpose(1, 2) @ wrong, wrong.sum(1, keepdim=True)]
        for field, slope in zip(theta, slopes, strict=True):
            field -= rate * slope


class Common:
    """θ that the sites of one seed have in common."""

    def __init__(self, case: Case, base: list[Array]) -> None:
        self.base, self.case = base, case
        self._cut = Fragments([field.shape for field in base], case.fragments)
        self._velocity = [np.zeros(field.shape) for field in base]

    def round(self, theta: list[Any], first: int, number: int, visits: float) -> None:
        """Put the θ of these sites together, or one fragment of it; each keeps what is not counted."""
        case, sites = self.case, range(first, first + self.case.sites)
        fragment = number % case.fragments if case.fragments > 1 else ALL_FRAGMENTS
        before = self._cut.take(fragment, self.base)
        own = [self._cut.take(fragment, [field[site].numpy() for field in theta]) for site in sites]
        changes = [[now.astype(np.float64) - b for now, b in zip(parts, before, strict=True)] for parts in own]
        shapes = [part.shape for part in before]
        read = [unpacked(case.wire, packed(case.wire, change), shapes) for change in changes]
        speed = self._cut.take(fragment, self._velocity) if case.outer == "nesterov" else []
        new, after = outer_step(case.outer, before, speed, [(visits, change) for change in read])
        if case.wire in ("int8", "int4"):
            new, after = _short(new, before), _short(after, speed)
        self.base = self._cut.put(fragment, self.base, new)
        if after:
            self._velocity = self._cut.put(fragment, self._velocity, after)
        for site, change, sent in zip(sites, changes, read, strict=True):
            kept = [n + (c - s) for n, c, s in zip(new, change, sent, strict=True)]
            for field, value in zip(
                theta, self._cut.put(fragment, [f[site].numpy() for f in theta], kept), strict=True
            ):
                field[site] = field.new_tensor(value)


def _short(new: Sequence[Array], since: Sequence[Array]) -> list[Array]:
    """As others read them in a result."""
    most, found = active().groups.largest_result_rounding, list[Array]()
    for array, before in zip(new, since, strict=True):
        parts = shortened(array, before, most)
        found.append(restored((0,), parts, [array.shape])[0].astype(array.dtype) if parts else array)
    return found


def accuracy(theta: Sequence[Array], images: Images) -> float:
    x, y = images.test
    hidden = np.maximum(_flat(x) @ theta[0] + theta[1], 0.0)
    return float(((hidden @ theta[2] + theta[3]).argmax(axis=1) == y).mean())


def _flat(images: Array) -> Array:
    flat = np.asarray(images.reshape(len(images), -1), np.float32)
    return flat / np.float32(255.0) if flat.max() > 2.0 else flat


def trained(case: Case, images: Images, seeds: Sequence[int], rows: int) -> list[float]:
    """Accuracy of the common θ, for each seed."""
    import torch

    torch.set_num_threads(1)
    labels = images.train[1].astype(np.int64)
    parts = np.concatenate([dealt(case, labels, seed, rows) for seed in seeds])
    x = torch.from_numpy(np.stack([_flat(images.train[0][part]) for part in parts]))
    starts = [begun(seed, x.shape[2], int(labels.max()) + 1) for seed in seeds]
    common = [Common(case, start) for start in starts]
    theta = [torch.from_numpy(np.repeat(np.stack(fields), case.sites, axis=0)) for fields in zip(*starts, strict=True)]
    steps, rng = Steps(x, torch.from_numpy(labels[parts]), case), np.random.default_rng([seeds[0], 2])
    for number in range(case.passes):
        steps.one_pass(theta, rng)
        for at, one in enumerate(common if case.sites > 1 else ()):
            one.round(theta, at * case.sites, number, float(x.shape[1]))
    if case.sites == 1:
        return [accuracy([field[at].numpy() for field in theta], images) for at in range(len(seeds))]
    for at, one in enumerate(common):  # the end: all of θ, by a mean of what each has
        one.case = replace(case, fragments=1, outer="mean", wire="full")
        one.round(theta, at * case.sites, 0, 1.0)
    return [accuracy(one.base, images) for one in common]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--cases", default="", help="numbers of cases, with commas between; all without")
    parser.add_argument("--summary", type=Path)
    options = parser.parse_args()
    images, lines = fashion(options.images, None, 2000), list[dict[str, Any]]()
    seeds = [int(seed) % (1 << 31) for seed in np.random.SeedSequence().generate_state(options.seeds)]
    chosen = [int(at) for at in options.cases.split(",")] if options.cases else range(len(CASES))
    for case in (CASES[at] for at in chosen):
        found = trained(case, images, seeds, options.rows)
        error = float(np.std(found) / np.sqrt(max(len(found) - 1, 1)))
        lines.append({"case": case.name, "accuracy": round(float(np.mean(found)), 4), "error": round(error, 4)})
        print(json.dumps(lines[-1]), flush=True)
        if options.summary:  # after each case, so that what was done stays when it is interrupted
            figures = {"seeds": seeds, "lines": lines}
            options.summary.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
