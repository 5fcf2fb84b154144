"""Neural networks and GPU workers: what each claim of docs/results/networks.md rests on, one part at a time.

    python -m bench.figures.networks --part accuracy --images FOLDER

Parts: accuracy (LeNet under four models), overhead (against a plain loop), stragglers (two of eight workers 8 times
slower), speeds (1 : 2 : 3), intervals (own interval against fixed ones), pass (one k-means pass on a GPU), phases
(where the time of that pass goes), mixed-kmeans and mixed-cnn (a GPU beside processors), balance (with and without, at
speeds 1 : 2 : 3). FOLDER holds the IDX files of Fashion-MNIST, or a generated set stands in.
Prints one JSON object a line and writes all of them to --out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import flegel
from bench.common import network_runs as runs

Line = dict[str, Any]


def _course(course: runs.Course, target: float | None = None) -> Line:
    found = course.result
    line: Line = {
        "accuracy": round(course.curve[-1][1], 4), "best": round(course.best, 4), "seconds": round(found.seconds, 2),
        "updates": found.iterations, "utilization": round(found.utilization, 3), "images_an_update": _images(found),
        "interval_ms": None if not found.rows[-1]["interval"] else round(1e3 * found.rows[-1]["interval"], 2),
    }  # fmt: skip
    return line if target is None else {**line, "target": target, "time_to_target": course.time_to(target)}


def _images(found: Any) -> int:
    """Median over updates."""
    return round(statistics.median([row["visits"] for row in found.rows] or [0]))


STEPS = {"lr": 3e-3, "batch": 128, "optimizer": "adamw", "weight_decay": 0.05}
"""AdamW; updates rest on some 256 images, with the step that the gradient noise allows them."""
LOCAL = {"lr": 0.15, "batch": None, "optimizer": "sgd", "local": True, "micro_batch": 32}
RECIPES: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "bsp": (LOCAL, {}, 45.0),
    "bsp-mini": (STEPS, {"batches": 234}, 32.0),
    "psp": (LOCAL, {"batches": 16}, 45.0),
    "fsp": (STEPS, {}, 32.0),
}
"""Settings of the network and of the job, and epochs at most. Under bsp workers take local steps: one update a pass
would need hundreds of passes. Under psp an update has up to sixteen iterations a worker, so these are small."""
USED = 0.96  # of the time given: the learning rate has to come down before it is over


def accuracy(options: argparse.Namespace) -> Iterator[Line]:
    """LeNet on Fashion-MNIST under four models, several seeds each: test accuracy."""
    images = runs.fashion(options.images, options.rows, options.tested)
    chosen = options.sync.split(",") if options.sync else list(RECIPES)
    for sync in chosen:
        recipe, more, most = RECIPES[sync]
        crew = {"workers": options.workers, "sync": sync, **more}
        if options.on_device:
            crew["device"] = f"0-{options.workers - 1}={options.device}"
        epochs = options.epochs or _epochs(options, crew, recipe, images, most)
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            network = runs.KeptLeNet(schedule="cosine", warmup=0.5, epochs=epochs, **recipe)
            course = runs.train(network, images, 3, seed=seed, max_seconds=options.seconds, **crew)
            line = {"part": "accuracy", "real": images.real, "sync": sync, "seed": seed, "epochs": round(epochs, 1)}
            yield {**line, "reason": course.result.reason, **_course(course)}


def _epochs(options: argparse.Namespace, crew: Line, recipe: Line, images: runs.Images, most: float) -> float:
    """As many as the speed of a short run says that there is time for."""
    network = runs.KeptLeNet(epochs=1000, **recipe)
    first = flegel.run(network, images.train, max_seconds=options.seconds / 10, **crew)
    speed = _speed(first.rows) / len(images.train[0])
    return max(min(most, USED * options.seconds * speed), 1.0)


def _speed(rows: list[Line]) -> float:
    """Visits a second in the second half of a run, or in all of it where that is too short."""
    half = next((i for i, row in enumerate(rows[:-1]) if row["seconds"] >= rows[-1]["seconds"] / 2), 0)
    since = rows[half]["seconds"] if half else 0.0
    return float(sum(row["visits"] for row in rows[half + 1 if half else 0 :]) / (rows[-1]["seconds"] - since))


def overhead(options: argparse.Namespace) -> Iterator[Line]:
    """One worker on one core beside a plain loop with the same micro-batches; medians of three."""
    images = runs.fashion(options.images, options.rows or 20_000)
    for each_step in (False, True):
        ratios = []
        for _ in range(3):
            plain = runs.plain_loop(images, 128, 2, each_step)
            batches = -(-len(images.train[0]) // 128)
            how: dict[str, Any] = {"sync": "bsp-mini", "batches": batches} if each_step else {"sync": "bsp"}
            network = runs.KeptLeNet(epochs=3, micro_batch=128)
            result = flegel.run(network, images.train, workers=1, **how)
            first = next(row for row in result.rows if _visits(result, row) >= len(images.train[0]))
            spent = (result.rows[-1]["seconds"] - first["seconds"]) / (
                _visits(result, result.rows[-1]) - _visits(result, first)
            )
            ratios.append(spent / plain)
            line = {"us_a_sample": round(1e6 * spent, 2), "plain_us": round(1e6 * plain, 2)}
            yield {"part": "overhead", "step": "micro-batch" if each_step else "pass", **line}
        ratio = round(statistics.median(ratios), 4)
        yield {"part": "overhead", "step": "micro-batch" if each_step else "pass", "ratio": ratio, "goal": 1.05}


def _visits(result: Any, row: Line) -> int:
    return sum(r["visits"] for r in result.rows if r["iteration"] <= row["iteration"])


def _race(part: str, options: argparse.Namespace, workers: int, straggler: str, entries: list[Any]) -> Iterator[Line]:
    """Each entry: the model, its options, and for how many times as long as the first one it may go on."""
    images = runs.fashion(options.images, options.rows, options.tested)
    first: float | None = None
    for sync, more, times in entries:
        network = runs.KeptLeNet(epochs=1000, lr=1e-3, batch=64)
        seconds = options.seconds if first is None else max(times * first, 2.0)
        course = runs.train(
            network, images, 40, workers=workers, sync=sync, straggler=straggler, max_seconds=seconds, **more
        )
        line = _course(course, options.target)
        first = first or line["time_to_target"]
        yield {"part": part, "real": images.real, "sync": sync, **more, **line}


def stragglers(options: argparse.Namespace) -> Iterator[Line]:
    """Eight workers, two of them 8 times slower: time to the same test accuracy."""
    minis = [("bsp-mini", {"batches": b}, 2.0) for b in (120, 240, 480, 960)]
    entries = [("fsp", {}, 1.0), *minis, ("psp", {"batches": 960}, 2.0), ("bsp", {}, 3.2)]
    yield from _race("stragglers", options, 8, "0-1:8x", entries)


def speeds(options: argparse.Namespace) -> Iterator[Line]:
    """Three workers of speeds 1 : 2 : 3; the iterations of the paper's BSP are those of bsp-mini here. Both in several
    sizes, of which the best one counts."""
    sizes = [(sync, {"batches": b}, 3.0) for b in (480, 960) for sync in ("psp", "bsp-mini")]
    yield from _race("speeds", options, 3, "0:3x,1:1.5x", [("fsp", {}, 1.0), *sizes, ("fsp", {"balance": "off"}, 2.0)])


def intervals(options: argparse.Namespace) -> Iterator[Line]:
    """The interval from gradient noise beside fixed ones."""
    fixed = [("fsp", {"interval": seconds}, 3.0) for seconds in (0.003, 0.01, 0.03, 0.1, 0.3)]
    yield from _race("intervals", options, options.workers or 16, "", [("fsp", {}, 1.0), *fixed])


def _points(rows: int) -> np.ndarray:
    """Rows like those of HIGGS."""
    from bench.common.problems import BLOCK, collisions

    made = np.empty((rows, 28), np.float32)
    for at in range(0, rows, BLOCK):
        collisions(np.random.default_rng([0, at]), made[at : at + BLOCK])
    return made


def one_pass(options: argparse.Namespace) -> Iterator[Line]:
    """One pass of k-means over 11 M × 28 points on one device, k = 100: first pass, and when few points move."""
    from flegel.algorithm import Sample
    from flegel.algorithms.kmeans import KMeans
    from flegel.core import pytree
    from flegel.core.shard import make_shard
    from flegel.core.stop_flag import new_flag
    from flegel.runtime.backends.registry import choose

    points = _points(options.rows or 11_000_000)
    algorithm = KMeans(k=100, init="random")
    sample = Sample(points[:100_000], None, len(points), 28)
    theta = pytree.as_doubles(algorithm.initParameter(sample, np.random.default_rng(0)))
    empty = pytree.zeros_like(algorithm.initAggregator(sample, theta))
    shard = make_shard(points, None, algorithm.initState(len(points), 28, np.random.default_rng(0)), "tiles")
    kernel = choose(options.device).build(algorithm, shard, theta, empty, False)
    total = pytree.copy(empty)
    for number in range(12):
        kernel.clear_statistics()
        began = time.monotonic()
        kernel.run(shard, 0, len(points), number, new_flag())
        changes = kernel.statistics()
        spent = time.monotonic() - began
        pytree.add(total, pytree.unflatten(total, changes))
        value = algorithm.objective(total, theta)
        yield {
            "part": "pass",
            "device": options.device,
            "pass": number,
            "ms": round(1e3 * spent, 3),
            "objective": value,
        }
        theta = algorithm.updateParameter(total, theta)
        kernel.set_parameter(pytree.flatten(theta))


def phases(options: argparse.Namespace) -> Iterator[Line]:
    """Where the time of a k-means pass on a GPU goes, by events of the device: in one kernel, and in single steps."""
    import torch

    from flegel.algorithms.kmeans.kmeans import Centroids
    from flegel.algorithms.kmeans.torch_program import BLOCK, KMeansProgram

    device = torch.device(options.device)
    rows = torch.from_numpy(_points(options.rows or 11_000_000)).to(device)
    centres = rows[:100].double().cpu().numpy()
    program = KMeansProgram(SimpleNamespace(k=100), device)
    program.set_parameter(Centroids(centres, np.zeros(28)))
    yield {"part": "phases", "torch": torch.__version__, "note": program.note, "in_one": program.in_one_kernel}
    blocks = [slice(at, at + BLOCK) for at in range(0, len(rows), BLOCK)]
    labels = torch.zeros(len(rows), device=device)
    for name in ("in one kernel", "in steps"):
        if name == "in steps":
            program.leave_one_kernel()
        for share in (1.0, 0.1, 0.0):
            state = torch.zeros((len(rows), 1), dtype=torch.int32, device=device)
            sums = [torch.zeros(shape, dtype=torch.float64, device=device) for shape in ((100, 28), (100,), (100,))]
            for part in blocks:
                program.visit(rows[part], labels[part], state[part], sums, 0)
            lost = torch.rand(len(rows), device=device) < share
            state[lost] = 0 if share < 1.0 else -1
            visit = lambda part, s=state, t=sums: program.visit(rows[part], labels[part], s[part], t, 0)  # noqa: E731
            yield {"part": "phases", "way": name, "moving": share, "ms": _device_ms(visit, blocks)}
    yield {"part": "phases", "way": "nearest alone", "ms": _device_ms(lambda p: program.nearest(rows[p]), blocks)}


def _device_ms(work: Callable[[slice], Any], blocks: list[slice]) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for part in blocks:
        work(part)
    end.record()
    torch.cuda.synchronize()
    return round(begin.elapsed_time(end), 3)


def mixed_kmeans(options: argparse.Namespace) -> Iterator[Line]:
    """One GPU beside processors, k-means on 11 M × 28 points, k = 100: time to within 0.1 % of the GPU alone. Worker 0
    computes on the GPU."""
    from flegel.algorithms.kmeans import KMeans

    points = _points(options.rows or 11_000_000)
    workers = options.workers or 16
    gpu = {"device": f"0={options.device}"}
    crews = [
        ("gpu alone", "fsp", 1, gpu), ("processors alone", "fsp", workers, {}),
        ("mixed", "bsp-mini", workers, {**gpu, "batches": 8}), ("mixed", "fsp", workers, gpu),
        ("mixed, without optimizations", "fsp", workers, {**gpu, "balance": "off", "coordination": "centralized"}),
    ]  # fmt: skip
    target: float | None = None
    for crew, sync, count, more in crews:
        result = flegel.run(
            KMeans(k=100, init="first"), points, workers=count, sync=sync, max_seconds=options.seconds, tolerance=1e-5,
            **more,
        )  # fmt: skip
        if target is None and result.objective is not None:
            target = 1.001 * result.objective
        when = next(
            (r["seconds"] for r in result.rows if r["objective"] is not None and r["objective"] <= target), None
        )
        yield {
            "part": "mixed-kmeans", "crew": crew, "sync": sync, "time_to_target": when, "objective": result.objective,
            "seconds": round(result.seconds, 3), **_crew(result, len(points)), "reason": result.reason,
            "updates": result.iterations, "passes": round(sum(r["visits"] for r in result.rows) / len(points), 1),
            "utilization": round(result.utilization, 3), "at": _milestones(result.rows), "ms": _barrier(result.rows),
        }  # fmt: skip


def _milestones(rows: list[Line]) -> list[tuple[int, float, float | None]]:
    """Update, seconds and interval in milliseconds at a few moments of a run."""
    chosen = [row for row in rows if row["iteration"] in (1, 2, 5, 10, 20, 40, 80, 160)]
    return [(r["iteration"], round(r["seconds"], 3), r["interval"] and round(1e3 * r["interval"], 2)) for r in chosen]


def _barrier(rows: list[Line]) -> dict[str, Any]:
    """Medians over updates, in milliseconds: where the time of an update goes. By worker 0 and by the slowest one:
    `compute`; `respond`, from signals to what they bring about; `wait`, from a report to the next order. `trip` is from
    the event that led to an order until the report is there, so it holds the coordinator's fold before that order."""
    seen = [row for row in rows[len(rows) // 4 :] if row["spans"]]
    if len(seen) < 2:
        return {}
    found: dict[str, Any] = {}
    for name, at in (("compute", 4), ("respond", 5), ("wait", 6)):
        found[name] = [
            _median([row["spans"][0][at] for row in seen]),
            _median([max(s[at] for s in row["spans"]) for row in seen]),
        ]
    found["trip"] = [_median([row["spans"][0][2] - row["spans"][0][1] for row in seen])]
    found["update"] = _median([after["seconds"] - row["seconds"] for row, after in pairwise(seen)])
    return found


def _median(values: list[float]) -> float:
    return round(1e3 * statistics.median(values), 2)


def mixed_cnn(options: argparse.Namespace) -> Iterator[Line]:
    """One GPU beside processors, the small CNN on Fashion-MNIST: time to the same test accuracy. Crews after the second
    end when they have taken twice as long as it."""
    images = runs.fashion(options.images, options.rows, options.tested)
    workers, gpu = options.workers or 16, {"device": f"0={options.device}"}
    crews = [
        ("gpu alone", "fsp", 1, gpu), ("mixed", "fsp", workers, gpu),
        ("mixed, without optimizations", "fsp", workers, {**gpu, "balance": "off", "coordination": "centralized"}),
        ("mixed", "bsp-mini", workers, {**gpu, "batches": 120}), ("processors alone", "fsp", workers, {}),
    ]  # fmt: skip
    seconds = options.seconds
    for crew, sync, count, more in crews:
        network = runs.KeptCNN(epochs=1000, lr=1e-3, batch=64)
        course = runs.train(network, images, 40, options.target, workers=count, sync=sync, max_seconds=seconds, **more)
        line: Line = {"part": "mixed-cnn", "crew": crew, "sync": sync, **_crew(course.result, len(images.train[0]))}
        line |= _course(course, options.target) | {"ms": _barrier(course.result.rows)}
        yield line
        if (crew, sync) == ("mixed", "fsp") and line["time_to_target"] is not None:
            seconds = min(seconds, max(2.0 * line["time_to_target"], 2.0))


def _crew(result: Any, points: int) -> Line:
    """Where the points ended, who rests, and since when for what reason."""
    changes = [(round(i["at"], 3), i["kind"], i["why"]) for i in result.incidents if i["kind"] in ("rest", "recall")]
    return {
        "share_of_worker_0": round(result.worker[0]["points"] / points, 4),
        "resting": sum(bool(w.get("resting")) for w in result.worker), "changes": changes,
        "load_seconds": round(result.load_seconds, 1),
    }  # fmt: skip


def balance(options: argparse.Namespace) -> Iterator[Line]:
    """Three workers of speeds 1 : 2 : 3 under fsp, with balance and without, in turn: updates, visits, what moved."""
    images = runs.fashion(options.images, options.rows, options.tested)
    for turn in range(2):
        for mode in ("async", "off"):
            network = runs.KeptLeNet(epochs=1000, lr=1e-3, batch=64)
            course = runs.train(
                network, images, 40, options.target, workers=3, sync="fsp", straggler="0:3x,1:1.5x", balance=mode,
                max_seconds=options.seconds,
            )  # fmt: skip
            found = course.result
            yield {
                "part": "balance", "turn": turn, "balance": mode, "visits": sum(w["visits"] for w in found.worker),
                "moved": found.balance.get("points", 0), "moves": found.balance.get("moves", 0),
                "points": [w["points"] for w in found.worker], "rate": [_rate(w) for w in found.worker],
                **_course(course, options.target), "ms": _barrier(found.rows),
            }  # fmt: skip


def _rate(worker: Line) -> int:
    return round(worker["visits"] / max(worker["compute_seconds"], 1e-9))


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    "accuracy": accuracy, "overhead": overhead, "stragglers": stragglers, "speeds": speeds, "intervals": intervals,
    "pass": one_pass, "phases": phases, "mixed-kmeans": mixed_kmeans, "mixed-cnn": mixed_cnn, "balance": balance,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", required=True, help=f"with commas between: {', '.join(PARTS)}")
    parser.add_argument("--images", type=Path, default=None, help="folder with the IDX files of Fashion-MNIST")
    parser.add_argument("--rows", type=int, default=None, help="rows of training; all by default")
    parser.add_argument("--tested", type=int, default=None, help="rows of the test; all by default")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="accuracy: seeds from this one on")
    parser.add_argument("--sync", default="", help="accuracy: these models only")
    parser.add_argument("--seconds", type=float, default=25.0, help="limit of each run")
    parser.add_argument("--target", type=float, default=0.87, help="test accuracy of the races")
    parser.add_argument("--device", default="cuda:0", help="of the GPU worker")
    parser.add_argument("--epochs", type=float, default=None, help="accuracy: instead of as many as the time allows")
    parser.add_argument("--on-device", action="store_true", help="accuracy: all workers compute on --device")
    parser.add_argument("--out", type=Path, default=None, help="write all lines to this file")
    options = parser.parse_args()
    lines = []
    for part in options.part.split(","):
        for line in PARTS[part](options):
            print(json.dumps(line), flush=True)
            lines.append(line)
    if options.out is not None:
        options.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
