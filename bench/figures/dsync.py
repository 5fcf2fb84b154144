"""Do groups that train together through a bucket train as well as one, and how do they scale?

000's Fig. 6 to 9 in a form that fits one machine, and the claims of docs/results/sites.md.

    python -m bench.figures.dsync --scale small --images FOLDER --summary sites.json

Parts: clustering (k-means and GMM, rows sorted by label, against central training and against averaging of θ), accuracy
(Fig. 6 and 7: LeNet on Fashion-MNIST, 3 groups × 3 workers), traffic (T = 1 against T = 3), balance (Fig. 8: workers
that choose their group, on virtual time), scaling (Fig. 9: 3 to 15 workers). The bucket is a folder, or SeaweedFS with
--store seaweed; --megabits puts each group into a network namespace behind a link of that rate (root, SeaweedFS).
`--parts` names some of them; `--summary` gets the lines of all, with the conditions.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import flegel
from bench.common import suite
from bench.common.record import Chart, Series, Table
from bench.common.site_runs import Line, exchange_seconds, train, train_in_this_process
from flegel.compare.comparison import run_environment
from flegel.core.pytree import Array

FIGURE = "000 Fig. 6–9"
GROUPS = 3
RECIPE = {"batch": None, "optimizer": "sgd", "local": True, "schedule": "cosine"}
"""Of LeNet: every worker takes local steps; its group averages them at each pass over its rows."""
HOOK_TIMEOUT = 300.0  # seconds: a busy machine needs a minute to import torch
Part = Callable[[argparse.Namespace, "Bed"], Iterator[Line]]


class Bed:
    """Where the groups are: a bucket, and words and environment for the command of each."""

    def __init__(self, options: argparse.Namespace, ending: contextlib.ExitStack) -> None:
        self.folder = Path(ending.enter_context(tempfile.TemporaryDirectory()))
        self.before: list[list[str]] = []
        self.environment: dict[str, str] = {}
        self._buckets = 0
        self._remote = options.store == "seaweed"
        self.in_threads = options.scale == "smoke" and not self._remote
        """Groups are threads of this process: they only have to be complete."""
        host = "127.0.0.1"
        if options.megabits:
            from bench.common.namespaces import Network, unavailable

            if why := unavailable():
                raise SystemExit(f"Not possible here: {why}.")
            network = ending.enter_context(Network(GROUPS))
            network.limit(options.megabits, receiving=True)
            self.before, host = [network.command(number) for number in range(GROUPS)], network.host
        if self._remote:
            from bench.chaos.environment.object_store import Store, make_bucket

            (self.folder / "store").mkdir()
            store = Store(self.folder / "store", host)
            store.start()
            ending.callback(store.kill)
            make_bucket(store)
            self.environment = store.environment

    def bucket(self) -> str:
        """A new one."""
        self._buckets += 1
        name = f"job{self._buckets}"
        return f"s3://flegel/{name}" if self._remote else str(self.folder / name)

    def train(self, config: Line, **each: list[Any]) -> list[Line]:
        """All groups; `each`: settings that differ from group to group."""
        bucket = self.bucket()
        configs = []
        for at in range(GROUPS):
            own = {name: values[at] for name, values in each.items()}
            more = {"options": {**config["options"], **own}}
            configs.append({**config, **more, "at": at, "groups": GROUPS, "bucket": bucket})
        if self.in_threads:
            return train_in_this_process(self.folder, configs)
        return train(self.folder, configs, self.before, **self.environment)


# -- clustering --------------------------------------------------------------------------------------------


def sorted_rows(seed: int) -> Array:
    """Twelve clusters of unequal size that touch each other, sorted by cluster: every site lacks most of them."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(150, 600, 12)
    return np.concatenate([3.0 * rng.normal(size=4) + rng.normal(size=(n, 4)) for n in sizes]).astype(np.float32)


def train_in_threads(make: Callable[[], Any], parts: list[Array], bucket: str, seed: int) -> list[Any]:
    """One job for each part in this process: small rows need no processes."""
    results: list[Any] = [None] * len(parts)

    def one(at: int) -> None:
        results[at] = flegel.run(
            make(), parts[at], workers=1, group=f"site{at}", bucket=bucket, groups=len(parts), every="3", sync="bsp",
            processes=False, seed=seed,
        )  # fmt: skip

    threads = [threading.Thread(target=one, args=(at,)) for at in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300.0)
    return results


def averaged_kmeans(parts: list[Array], theta: Array, rounds: int = 60) -> Array:
    """What averaging centroids gives: three steps in each group, then the mean, until it does not move."""
    for _ in range(rounds):
        each = []
        for rows in parts:
            own = theta
            for _ in range(3):
                nearest = ((rows[:, None, :] - own[None]) ** 2).sum(axis=2).argmin(axis=1)
                counts = np.bincount(nearest, minlength=len(own))[:, None]
                sums = np.stack([rows[nearest == c].sum(axis=0) for c in range(len(own))])
                own = np.where(counts > 0, sums / np.maximum(counts, 1), own)
            each.append(own)
        theta = np.mean(each, axis=0)
    return theta


def clustering(options: argparse.Namespace, bed: Bed) -> Iterator[Line]:
    """Objective over that of central training (above 1: worse), and how far the groups' θ are apart at the end."""
    from flegel.algorithms.gmm import GMM
    from flegel.algorithms.kmeans import KMeans

    makers: dict[str, Callable[[], Any]] = {"kmeans": lambda: KMeans(k=10), "gmm": lambda: GMM(k=8)}
    for name, make in makers.items():
        ratios, apart, averaging = [], [], []
        for seed in range(options.seeds):
            rows = sorted_rows(seed)
            parts = [np.ascontiguousarray(part) for part in np.array_split(rows, GROUPS)]
            results = train_in_threads(make, parts, str(bed.folder / f"{name}{seed}"), seed)
            central = flegel.run(make(), rows, workers=1, sync="bsp", processes=False, seed=seed)
            found = make().evaluate(rows, None, results[0].parameter).objective
            sense = -1.0 if make().learning.maximize else 1.0
            ratios.append(1.0 + sense * (found - central.objective) / abs(central.objective))
            first = [np.asarray(a, np.float64) for a in results[0].parameter[:2]]
            for result in results[1:]:
                pairs = zip(result.parameter[:2], first, strict=True)
                apart.append(max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-300)) for a, b in pairs))
            if name == "kmeans":
                theta = rows[np.random.default_rng(seed).choice(len(rows), 10, replace=False)].astype(np.float64)
                mean = averaged_kmeans([part.astype(np.float64) for part in parts], theta)
                field = central.parameter._replace(centroids=mean)
                averaging.append(make().evaluate(rows, None, field).objective / central.objective)
            yield {"part": "clustering", "algorithm": name, "seed": seed, "ratio": round(ratios[-1], 5),
                   "apart": apart[-1], "reason": results[0].reason}  # fmt: skip
        line: Line = {
            "part": "clustering", "algorithm": name, "seeds": options.seeds, "mean_ratio": round(np.mean(ratios), 5),
            "largest_ratio": round(max(ratios), 5), "least_ratio": round(min(ratios), 5), "largest_apart": max(apart),
        }  # fmt: skip
        if averaging:
            line |= {"averaging_mean": round(np.mean(averaging), 3), "averaging_largest": round(max(averaging), 3)}
        yield line


# -- networks ----------------------------------------------------------------------------------------------


def images_file(options: argparse.Namespace, bed: Bed) -> tuple[str, bool]:
    from bench.common.network_runs import fashion

    images = fashion(options.images, options.rows, options.tested)
    path = bed.folder / "images.npz"
    if not path.exists():
        order = np.random.default_rng(0).permutation(len(images.train[0]))
        np.savez(
            path, rows=images.train[0][order], labels=images.train[1][order], test=images.test[0],
            test_labels=images.test[1],
        )  # fmt: skip
    return str(path), images.real


def lenet(options: argparse.Namespace, bed: Bed, every: str, seed: int, epochs: int, workers: int) -> list[Line]:
    data, _ = images_file(options, bed)
    settings = {**RECIPE, "epochs": epochs, "lr": options.lr, "micro_batch": options.micro_batch}
    config = {
        "algorithm": "lenet", "settings": settings, "data": data, "mixed": True, "every": every,
        "curve": 10, "options": {"workers": workers, "sync": "bsp", "seed": seed, "group_timeout": 20.0,
                                 "outer": options.outer, "hook_timeout": HOOK_TIMEOUT},
    }  # fmt: skip
    return bed.train(config)


def accuracy(options: argparse.Namespace, bed: Bed) -> Iterator[Line]:
    """Fig. 6 and 7: accuracy over time in each group, and at the end."""
    _, real = images_file(options, bed)
    for every in options.every.split(","):
        found = []
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            lines = lenet(options, bed, every, seed, options.epochs, options.workers)
            found.append(statistics.mean(line["accuracy"] for line in lines))
            yield {
                "part": "accuracy", "every": every, "seed": seed, "real": real, "accuracy": round(found[-1], 4),
                "groups": [round(line["accuracy"], 4) for line in lines], "curve": lines[0]["curve"],
                "rounds": lines[0]["sites"]["rounds"], "barriers": lines[0]["iterations"],
                "seconds": round(max(line["seconds"] for line in lines), 1),
            }  # fmt: skip
        yield {"part": "accuracy", "every": every, "outer": options.outer, "runs": len(found), "epochs": options.epochs,
               "lr": options.lr, "micro_batch": options.micro_batch,
               "mean": round(statistics.mean(found), 4), "least": round(min(found), 4)}  # fmt: skip


def traffic(options: argparse.Namespace, bed: Bed) -> Iterator[Line]:
    """Bytes between sites for the same number of barriers."""
    bytes_by: dict[str, int] = {}
    for every in ("1", "3"):
        lines = lenet(options, bed, every, 0, options.barriers, options.workers)
        bytes_by[every] = sum(line["sites"]["bytes_sent"] + line["sites"]["bytes_received"] for line in lines)
        yield {
            "part": "traffic", "every": every, "bytes": bytes_by[every], "barriers": lines[0]["iterations"],
            "rounds": lines[0]["sites"]["rounds"], "requests": sum(line["sites"]["requests"] for line in lines),
            "exchange_s": _middle(exchange_seconds(lines)),
        }  # fmt: skip
    yield {"part": "traffic", "ratio": round(bytes_by["3"] / bytes_by["1"], 4)}


def scaling(options: argparse.Namespace, bed: Bed) -> Iterator[Line]:
    """Fig. 9: seconds of a local barrier and of a synchronization against the number of workers. Every worker has the
    same number of rows and sleeps 100 ms in each pass, so that a lack of processors is not what is measured."""
    data = bed.folder / "rows.npz"
    rng = np.random.default_rng(0)
    np.savez(data, rows=rng.normal(size=(15 * options.worker_rows, 16)).astype(np.float32))
    first = 0.0
    for each in range(1, options.largest + 1):
        config = {
            "algorithm": "kmeans", "settings": {"k": 64, "init": "first"}, "data": str(data), "mixed": False,
            "every": "3", "options": {"workers": each, "sync": "bsp", "tolerance": 0, "max_seconds": options.seconds,
                                      "straggler": f"0-{each - 1}:100ms/{options.worker_rows}"},
            "rows": [0, each * options.worker_rows],
        }  # fmt: skip
        lines = bed.train(config)
        took = exchange_seconds(lines)
        first = first or _middle(took)
        barrier = [line["seconds"] / max(line["iterations"], 1) for line in lines]
        yield {
            "part": "scaling", "workers": GROUPS * each, "exchange_s": _middle(took), "rounds": len(took),
            "barrier_s": round(statistics.mean(barrier), 4), "ratio": round(_middle(took) / first, 3),
        }  # fmt: skip


def _middle(values: list[float]) -> float:
    return round(statistics.median(values), 4) if values else float("nan")


# -- workers that choose their group -----------------------------------------------------------------------


def balance(options: argparse.Namespace, bed: Bed) -> Iterator[Line]:
    """Fig. 8: workers by group over ten minutes of virtual time, from 3/3/3 and from 1/1/8."""
    from bench.sites.moving_workers import simulate

    for start in ((3, 3, 3), (1, 1, 8)):
        for seed in range(options.seeds):
            course = simulate(start, seed)
            yield {
                "part": "balance", "start": list(start), "seed": seed, "end": course.counts, "moves": len(course.moves),
                "last_move_s": round(max((at for at, *_ in course.moves), default=0.0), 1),
                "after_a_minute": sum(at > 60.0 for at, *_ in course.moves),
            }  # fmt: skip


PARTS: dict[str, Part] = {
    "clustering": clustering, "accuracy": accuracy, "traffic": traffic, "balance": balance, "scaling": scaling,
}  # fmt: skip


FIGURES = {"accuracy": ("000-fig6", "000-fig7"), "balance": ("000-fig8",), "scaling": ("000-fig9",)}
"""Figures of the paper by part."""


def _accuracy_told(line: Line) -> str:
    return (
        f"With a synchronization every {line['every']} passes, {line['runs']} runs of {line['epochs']} epochs end at "
        f"an accuracy of {line['mean']:.1%} in the mean, {line['least']:.1%} at least."
    )


def _balance_told(line: Line) -> str:
    first, last = ("/".join(map(str, line[name])) for name in ("start", "end"))
    moves = f"{line['moves']} moves, the last after {line['last_move_s']} s" if line["moves"] else "no move"
    return f"From {first} workers of three servers, in ten minutes of virtual time: {last} after {moves}."


def _scaling_told(line: Line) -> str:
    return (
        f"{line['workers']} workers: a local aggregation takes {line['barrier_s']:.2f} s, passes of 0.1 s included, a "
        f"synchronization {line['exchange_s']:.2f} s."
    )


def _pairs(line: Line) -> str:
    return ", ".join(f"{name} {value}" for name, value in line.items())


SENTENCES: dict[str, Callable[[Line], str]] = {
    "accuracy": _accuracy_told, "balance": _balance_told, "scaling": _scaling_told,
}  # fmt: skip
RAN: dict[str, Callable[[Line], str]] = {
    "accuracy": lambda line: (
        f"Three groups trained LeNet for {line['epochs']} epochs on a few hundred images and "
        f"synchronized every {line['every']} passes: too few for an accuracy."
    ),
    "scaling": lambda line: (
        f"{line['workers']} workers in three groups synchronized through the bucket; how the time grows with "
        "workers takes several numbers of them."
    ),
}
"""What stands in the place of a sentence at smoke."""


def tell(bench: suite.Suite, part: str, lines: list[Line]) -> None:
    """A table of a part and its figures in sentences: the lines that sum it up, which come last where there are any."""
    flat = [{name: value for name, value in line.items() if name not in ("part", "curve")} for line in lines]
    summed = flat[-1:] if part in ("accuracy", "traffic", "clustering") else flat
    names = list(dict.fromkeys(name for line in flat for name in line))
    rows = [[str(line.get(name, "–")) for name in names] for line in flat]
    bench.table(Table(title=f"Groups through a bucket: {part}", columns=names, rows=rows))
    for line in summed:
        told = SENTENCES[part](line) if part in SENTENCES else f"{part}: {_pairs(line)}."
        ran = RAN[part](line) if part in RAN else told
        bench.answer_time(told, ran, *FIGURES.get(part, ()))
    for line in lines:
        if curve := line.get("curve"):
            points = [(float(a), float(b)) for a, b in curve]
            title = "Accuracy against time, one group (000, Fig. 6 and 7)"
            bench.chart(Chart(title=title, x="seconds", y="accuracy", series=[Series(name="group 0", points=points)]))


SMALL: dict[str, dict[str, Any]] = {
    "smoke": {"seeds": 1, "rows": 300, "tested": 100, "epochs": 6, "workers": 1, "barriers": 6, "worker_rows": 2_000,
              "seconds": 2.0, "largest": 1},
    "laptop": {"seeds": 2, "rows": 6_000, "epochs": 12, "barriers": 12, "seconds": 4.0, "largest": 3},
}  # fmt: skip
"""What a scale makes smaller, where the user did not say otherwise."""
USUAL: dict[str, Any] = {"seeds": 8, "rows": None, "tested": None, "epochs": 40, "workers": 3, "barriers": 30,
                         "worker_rows": 20_000, "seconds": 10.0, "largest": 5}  # fmt: skip
EXTRA: list[tuple[str, dict[str, Any]]] = [
    suite.parts_option(list(PARTS)),
    ("--seeds", {"type": int, "help": "runs of clustering, accuracy and balance, each from another seed"}),
    ("--images", {"type": Path, "help": "folder with the IDX files of Fashion-MNIST"}),
    ("--rows", {"type": int, "help": "rows of training; all by default"}),
    ("--tested", {"type": int, "help": "rows of the test; all by default"}),
    ("--first-seed", {"type": int, "default": 0, "help": "accuracy: seeds from this one on"}),
    ("--lr", {"type": float, "default": 0.1, "help": "of LeNet"}),
    ("--micro-batch", {"type": int, "default": 16, "help": "images of a local step"}),
    ("--epochs", {"type": int, "help": "accuracy: passes of each group over its rows"}),
    ("--every", {"default": "3", "help": "accuracy: T, with commas between"}),
    ("--outer", {"default": "mean"}),
    ("--barriers", {"type": int, "help": "traffic: passes of each group"}),
    ("--worker-rows", {"type": int, "help": "scaling: rows of each worker"}),
    ("--seconds", {"type": float, "help": "scaling: of each run"}),
    ("--largest", {"type": int, "help": "scaling: workers of a group at most"}),
    ("--store", {"choices": ["folder", "seaweed"], "default": "folder"}),
    ("--megabits", {"type": float, "default": 0.0, "help": "rate of each group's link; needs --store seaweed"}),
    ("--summary", {"type": Path, "help": "file for the lines alone"}),
]  # fmt: skip


def main() -> None:
    options = suite.arguments(__doc__, EXTRA)
    for name, value in {**USUAL, **SMALL.get(options.scale, {})}.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.scale == "smoke" and options.parts == list(PARTS):
        options.parts = list(FIGURES)  # the other parts are no figures of the paper
    if options.megabits and options.store == "folder":
        raise SystemExit("--megabits limits links between groups and their store: give --store seaweed.")
    lines: list[Line] = []
    with suite.Suite(__file__, __doc__, options) as bench, contextlib.ExitStack() as ending:
        bed = Bed(options, ending)
        for part in options.parts:
            trains_networks = part in ("accuracy", "traffic")
            if bench.over(part) or (trains_networks and not bench.has("package:torch", for_=part)):
                continue
            bench.say(part)
            found = list(PARTS[part](options, bed))
            lines += found
            tell(bench, part, found)
            bench.save()
    if options.summary is not None:
        about = run_environment()
        record = {
            "command": " ".join(["python -m bench.figures.dsync", *sys.argv[1:]]), "commit": about.commit[:12],
            "machine": ", ".join(f"{name} {what}" for name, what in about.machine.items()), "lines": lines,
        }  # fmt: skip
        options.summary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
