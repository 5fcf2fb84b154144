"""Which model is fastest on jobs of a tenth of a second, one second and five seconds, with and without stragglers?

    python -m bench.figures.cells --part 1/7 --images FOLDER --out cells-1.json
    python -m bench.figures.cells --merge cells-*.json --out cells.json --page cells.md
    python -m bench.figures.cells --virtual --only fcm

63 cells: three lengths, three conditions (nobody slow; a quarter of the workers eight times slower; or pausing for
32 ms after every 1,000 points), seven algorithms. `--part i/n` runs every n-th of the 21 problems, a long one first; a
part of seven takes up to ten minutes on sixteen cores (`--seconds` ends it before a cell that would not fit).

The papers' algorithms begin at random rows, on data whose size gives `bsp` about that long to its target, which is that
of `bench.figures.sync`. (From the starts that the algorithms search for on a sample, jobs of this size are over after
one or two passes; then a figure shows what a first pass costs and no training.) Networks train Fashion-MNIST (FOLDER
has its IDX files; a generated set stands in): as many images as make four passes in that time, to the loss at which
`fsp` is then, a median of three runs. Every model trains from the same start to the same objective, in turns. A rival
is cut off after 1.5 times the time of `fsp`. A cell is the median time divided by that of the best model in it.
`--virtual` does the same on virtual time, where nothing disturbs, once for each model. There the rows of a job stand
for sixteen times as many: a first pass of so few rows would be one round (docs/adr/first-pass.md). Networks are
trained for real, one row for one, in calls of an assumed length (`NETWORK_CALL`); without PyTorch they are left out.
Each of their cells is raced on `--seeds` choices of images and weights, which are drawn when the program is run.
`--explain` adds where the time of each model went: passes over the data, updates a pass, cost
of a barrier, utilization, and the objective by passes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.network_runs import Images, fashion
from bench.common.problems import FROM_ZERO, SIZE, WITHIN, Problem, Problems
from bench.common.suite import quarter
from flegel import LocalCluster
from flegel.compare.candidate import parse_candidates
from flegel.compare.simulation import ClusterModel, JobSimulator, SimulationSettings
from flegel.configuration.active import DEFAULTS, using
from flegel.datasets import open_data
from flegel.errors import UsageError
from flegel.job import Criteria
from flegel.runtime.job.find_algorithm import find_algorithm
from flegel.sim.coordinator_cost import MEASURED
from flegel.terminal.reporting import errors_as_sentences
from flegel.torch.network import require_torch

PASSES = {"kmeans": 10, "gmm": 26, "fcm": 8, "lr": 4, "nmf": 29}  # of bsp to the target, measured
NETWORKS = ("cnn", "lenet")
NETWORK_PASSES = 4  # that a network makes in the time of its job: its loss is known after the first
NETWORK_ROWS = 60_000  # images that there are
NETWORK_TARGET_RUNS = 3
NETWORK_CALL = 0.001  # seconds of a call besides its images, on virtual time: assumed
NETWORK_IMAGE = {"cnn": 71e-6, "lenet": 110e-6}  # seconds of an image on one core, as in docs/results/networks.md
NETWORK_WAKE = 0.001  # seconds of a worker for an order or a report: φ is 2.6 ms with four workers; 3.8 were measured
REPEATS = {0.1: 5, 1.0: 3, 5.0: 1}  # runs of each model by length; the median counts
BEHIND = 1.05  # times the best, above which a model is called behind
PROBE = 40_000  # rows of each worker from which the speed is measured
STAND_FOR = 16  # rows for which one stands on virtual time
MOST_PASSES = 60  # of bsp, from which the target is taken
CUT_OFF = 1.5  # times the time of fsp, after which a rival is stopped
MODELS = "fsp,auto,fsp-binary,ssp,asp,psp,bsp-mini,bsp"


class Measured:
    """Jobs on real workers."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.cluster = given, LocalCluster(given.workers)

    def train(self, on: Problem, length: float, **options: Any) -> Any:
        import flegel

        return flegel.run(
            on.algorithm, on.data, cluster=self.cluster, partition=on.partition, settings=FROM_ZERO, **options
        )

    def rows(self, name: str, length: float, problems: Problems) -> int:
        """With which `bsp` takes about so long."""
        on = begun_at_random(problems.get(name, int(PROBE * self.given.workers * SIZE[name])))
        self.train(on, length, sync="bsp", max_iterations=2, tolerance=0)
        timed = self.train(on, length, sync="bsp", max_iterations=6, tolerance=0)
        return max(int(float(on.data.rows) * length / PASSES[name] / (timed.seconds / 6)), 64 * self.given.workers)

    def network_rows(self, name: str, length: float, images: Images) -> int:
        """With which all workers make some passes in so long."""
        few = network_problem(name, images, min(250 * self.given.workers, NETWORK_ROWS))
        self.train(few, length, sync="fsp", max_seconds=1.0)  # first calls prepare the library
        timed = self.train(few, length, sync="fsp", max_seconds=max(length, 0.5))
        speed = sum(row["visits"] for row in timed.rows) / timed.seconds
        return min(max(int(speed * length / NETWORK_PASSES), 64 * self.given.workers), NETWORK_ROWS)

    def close(self) -> None:
        self.cluster.close()


class Simulated:
    """The same on virtual time; the length of a pass is given."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        evidence = DEFAULTS.barriers.first_update_evidence / STAND_FOR
        self._settings = {**FROM_ZERO, "barriers.first_update_evidence": evidence}
        self.seed = 0
        """Of the weights of networks."""

    def train(self, on: Problem, length: float, **options: Any) -> Any:
        candidate = parse_candidates(options.pop("sync"))[0]
        straggler = options.pop("straggler", "")
        if on.name in NETWORKS:
            rates = dict.fromkeys(range(self.given.workers), 1.0 / NETWORK_IMAGE[on.name])
            costs = replace(MEASURED, wake=NETWORK_WAKE)
            model = ClusterModel(rates=rates, call=NETWORK_CALL, costs=costs, learning="real")
        else:
            model = ClusterModel(pass_seconds=length / PASSES[on.name])
        settings = SimulationSettings(
            algorithm=on.algorithm, data=on.data, candidates=[candidate], workers=self.given.workers,
            partition=on.partition, model=model, seed=self.seed,
        )  # fmt: skip
        with using(self._settings):
            return JobSimulator(settings, model).run(candidate, Criteria(**options), straggler, 0)

    def rows(self, name: str, length: float, problems: Problems) -> int:
        return int(self.given.rows * SIZE[name])

    def network_rows(self, name: str, length: float, images: Images) -> int:
        speed = self.given.workers / NETWORK_IMAGE[name]
        return min(max(int(speed * length / NETWORK_PASSES), 64 * self.given.workers), NETWORK_ROWS)

    def close(self) -> None:
        """Nothing is held."""


def begun_at_random(on: Problem) -> Problem:
    if hasattr(on.algorithm, "init"):
        on.algorithm.init = "random"
    return on


def network_problem(name: str, images: Images, rows: int, seed: int | None = None) -> Problem:
    """A network and the first images, or those that the seed chooses."""
    network = find_algorithm(name)(epochs=1e6)
    chosen: Any = slice(rows)
    if seed is not None:
        chosen = np.random.default_rng(seed).permutation(len(images.train[0]))[:rows]
    return Problem(name, network, open_data((images.train[0][chosen], images.train[1][chosen])))


def target_of(on: Problem, length: float, jobs: Measured | Simulated) -> float:
    """What bsp converges to, less a small part of all that it gained after its first pass; for networks the loss of
    `fsp` after so long."""
    if on.name in NETWORKS:
        turns = 1 if isinstance(jobs, Simulated) else NETWORK_TARGET_RUNS
        ends = [jobs.train(on, length, sync="fsp", max_seconds=length).objective for _ in range(turns)]
        return statistics.median(end for end in ends if end is not None)
    done = jobs.train(on, length, sync="bsp", tolerance=1e-6, max_iterations=MOST_PASSES)
    first = next(row["objective"] for row in done.rows if row["objective"] is not None)
    return float(done.objective + WITHIN[on.name] * (first - done.objective))


def explained(done: Any, points: int, target: float) -> dict[str, Any]:
    """Where the time of a job went. `path`: passes over the data, seconds, and the distance to the target relative to
    it, at eight updates; `intervals`: the same passes and η in milliseconds."""
    rows = done.rows
    passes: list[float] = []
    for row in rows:
        passes.append((passes[-1] if passes else 0.0) + row["visits"] / points)
    known = [i for i, row in enumerate(rows) if row["objective"] is not None]
    some = [known[round(k * (len(known) - 1) / 7)] for k in range(8)] if known else []
    costs = sorted(row["barrier_cost"] for row in rows) or [0.0]
    first = next((i for i, total in enumerate(passes) if total >= 1.0), len(rows) - 1)
    return {
        "outcome": done.outcome, "seconds": done.seconds, "passes": passes[-1] if passes else 0.0,
        "updates": len(rows), "updates a pass": len(rows) / max(passes[-1] if passes else 0.0, 1e-9),
        "first update": [rows[0]["seconds"], passes[0]] if rows else [],
        "first pass": [rows[first]["seconds"], first + 1] if rows else [],
        "utilization": done.utilization, "barrier, median": statistics.median(costs), "barrier, most": costs[-1],
        "path": [[passes[i], rows[i]["seconds"], rows[i]["objective"] / target - 1.0] for i in dict.fromkeys(some)],
        "intervals": [[passes[i], (rows[i]["interval"] or 0.0) * 1e3] for i in dict.fromkeys(some)],
        "reasons": [[rows[i]["seconds"], row["reason"]] for i, row in enumerate(rows) if row["reason"]][:12],
        "audited": done.audit.get("difference"),
    }  # fmt: skip


def raced(
    on: Problem, straggler: str, length: float, target: float, given: argparse.Namespace, jobs: Measured | Simulated,
    notes: dict[str, Any],
) -> dict[str, list[float | None]]:  # fmt: skip
    """Seconds of each turn by model; None where the target was not reached in time."""
    times: dict[str, list[float | None]] = {model: [] for model in given.models.split(",")}
    for _ in range(given.repeat or (1 if given.virtual else REPEATS.get(length, 3))):
        limit = 20.0 * length
        for model, seen in times.items():
            done = jobs.train(
                on, length, sync=model, target=target, tolerance=0.0, straggler=straggler, max_seconds=limit
            )
            seen.append(done.seconds if done.converged else None)
            if given.explain:
                notes[model] = explained(done, int(on.data.rows), target)
            if model == "fsp" and done.converged:
                limit = CUT_OFF * done.seconds + 0.05 * length
    return times


def median_seconds(turns: list[float | None]) -> float | None:
    """None where most turns did not reach the target."""
    middle = statistics.median(float("inf") if turn is None else turn for turn in turns)
    return None if middle == float("inf") else middle


def listed(option: str, text: str, known: Iterable[str]) -> list[str]:
    """The words of an option, all of which are known."""
    words = text.split(",")
    if wrong := [word for word in words if word not in known]:
        raise UsageError(f"{option} {text}: {wrong[0]!r} is none of {', '.join(known)}.")
    return words


def conditions(given: argparse.Namespace) -> dict[str, str]:
    """Stragglers by the name of the condition."""
    who = quarter(given.workers)
    every = {"even": "", "8x": f"{who}:8x", "pauses": f"{who}:32ms/1000"}
    return {name: every[name] for name in listed("--conditions", given.conditions, every)}


def chosen(given: argparse.Namespace) -> list[tuple[str, float]]:
    """Algorithm and length of the problems of this part: dealt out in turn, the longest first."""
    lengths = sorted((float(word) for word in given.lengths.split(",")), reverse=True)
    every = [(name, length) for length in lengths for name in listed("--only", given.only, (*PASSES, *NETWORKS))]
    number, _, parts = given.part.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise UsageError(f"--part {given.part} must be i/n with i from 1 to n.")
    return every[int(number) - 1 :: int(parts)]


def seeded(given: argparse.Namespace) -> Iterator[tuple[str, float, int | None]]:
    """The problems of this part; networks on virtual time once for each seed, which nobody has chosen."""
    drawn = np.random.SeedSequence().generate_state(given.seeds) if given.virtual else []
    for name, length in chosen(given):
        if given.virtual and name in NETWORKS:
            yield from ((name, length, int(seed)) for seed in drawn)
        else:
            yield name, length, None


def made(
    name: str,
    length: float,
    jobs: Measured | Simulated,
    problems: Problems,
    given: argparse.Namespace,
    seed: int | None = None,
) -> Problem:
    if name not in NETWORKS:
        return begun_at_random(problems.get(name, jobs.rows(name, length, problems)))
    require_torch()
    images = fashion(given.images, None)
    if isinstance(jobs, Simulated):
        jobs.seed = seed or 0
    return network_problem(name, images, jobs.network_rows(name, length, images), seed)


Cell = tuple[str, dict[str, Any]]


def cells(given: argparse.Namespace, notes: dict[str, Any]) -> Iterator[Cell]:
    """Each cell with its times; without times where there was no time left for it."""
    jobs: Measured | Simulated = Simulated(given) if given.virtual else Measured(given)
    began, longest = time.monotonic(), 0.0
    try:
        with Problems() as problems:
            for name, length, seed in seeded(given):
                which = "" if seed is None else f" seed {seed}"
                labels = {f"{name} {length:g} s {kind}{which}": slow for kind, slow in conditions(given).items()}
                if time.monotonic() - began > given.seconds:
                    yield from ((label, {"left out": f"{given.seconds:g} s were over"}) for label in labels)
                    continue
                try:
                    on = made(name, length, jobs, problems, given, seed)
                    target, longest = target_of(on, length, jobs), 0.0
                except UsageError as refused:  # such as networks without PyTorch: the other problems can be raced
                    yield from ((label, {"left out": str(refused)}) for label in labels)
                    continue
                for label, straggler in labels.items():
                    entered = time.monotonic()
                    if entered - began + longest > given.seconds:
                        yield label, {"left out": f"{given.seconds:g} s were over"}
                        continue
                    turns = raced(on, straggler, length, target, given, jobs, notes.setdefault(label, {}))
                    longest = max(longest, time.monotonic() - entered)
                    yield label, {"rows": int(on.data.rows), "target": target, **judged(turns)}
    finally:
        jobs.close()


def judged(turns: dict[str, list[float | None]]) -> dict[str, Any]:
    """The best model of a cell, and every median divided by its."""
    medians = {model: median_seconds(seen) for model, seen in turns.items()}
    known = {model: seconds for model, seconds in medians.items() if seconds is not None}
    best = min(known, key=lambda model: known[model], default=None)
    ratios = {model: None if best is None or t is None else t / known[best] for model, t in medians.items()}
    return {"best": best, "seconds": medians, "ratio": ratios, "turns": turns}


def behind(record: dict[str, Any], model: str) -> list[str]:
    """Cells in which a model did not reach the target, or took more than 1.05 times as long as the best."""
    raced_in = {label: cell["ratio"] for label, cell in record.items() if model in cell.get("ratio", ())}
    return [label for label, ratio in raced_in.items() if ratio[model] is None or ratio[model] > BEHIND]


def told(record: dict[str, Any], model: str) -> str:
    count = sum(model in cell.get("ratio", ()) for cell in record.values())
    late = behind(record, model)
    return (
        f"{model} is more than 5 % behind the best model in {len(late)} of {count} cells: {', '.join(late) or 'none'}."
    )


def page(record: dict[str, Any], workers: int) -> str:
    """A table of all cells as Markdown."""
    models = list(dict.fromkeys(model for cell in record.values() for model in cell.get("ratio", ())))
    lines = [
        "# Cells: every model, length and kind of straggler",
        "",
        f"{workers} workers. A cell is the median time to the target divided by that of the best model in it; a dash:",
        "cut off after 1.5 times the time of `fsp`, or not reached. `python -m bench.figures.cells`, whose docstring",
        "says what the problems are. Summary: [cells.json](cells.json).",
        "",
        *(told(record, model) for model in ("fsp", "auto") if model in models),
        "",
        f"| cell | best | {' | '.join(models)} |",
        f"|{'---|' * (len(models) + 2)}",
    ]
    for label, cell in record.items():
        if "ratio" not in cell or cell["best"] is None:
            lines.append(f"| {label} | {cell.get('left out', 'nobody reached the target')} |{' |' * len(models)}")
            continue
        ratios = ["–" if cell["ratio"].get(m) is None else f"{cell['ratio'][m]:.2f}" for m in models]
        lines.append(f"| {label} | {cell['best']}, {cell['seconds'][cell['best']]:.3g} s | {' | '.join(ratios)} |")
    return "\n".join(lines) + "\n"


def merged(paths: list[Path]) -> dict[str, Any]:
    """The records of several parts as one; a cell that was raced counts before one that was left out."""
    parts = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    every: dict[str, Any] = {}
    for label, cell in (item for part in parts for item in part["cells"].items()):
        if "ratio" in cell or label not in every:
            every[label] = cell
    return {"workers": parts[0]["workers"], "cells": dict(sorted(every.items()))}


def _in_short(note: dict[str, Any]) -> str:
    return (
        f"{note['seconds']:.3f} s ({note['outcome']}): {note['passes']:.2f} passes, "
        f"{note['updates a pass']:.1f} updates a pass, "
        f"barrier {1e3 * note['barrier, median']:.2f} ms, utilization {note['utilization']:.0%}"
    )


def save(given: argparse.Namespace, record: dict[str, Any]) -> None:
    if given.out:
        given.out.write_text(json.dumps(record, indent=1), encoding="utf-8")
    if given.page:
        given.page.write_text(page(record["cells"], record["workers"]), encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--models", default=MODELS, help="with commas between, fsp first")
    parser.add_argument("--only", default="kmeans,gmm,fcm,lr,nmf,cnn,lenet", help="algorithms, with commas between")
    parser.add_argument("--lengths", default="0.1,1,5", help="seconds of bsp, with commas between")
    parser.add_argument("--conditions", default="even,8x,pauses", help="with commas between")
    parser.add_argument("--repeat", type=int, default=0, help="runs of each model; 5, 3, 1 by length where 0")
    parser.add_argument("--part", default="1/1", help="i/n: every n-th problem, from the i-th on")
    parser.add_argument("--seconds", type=float, default=540.0, help="after which no further cell is begun")
    parser.add_argument("--images", type=Path, help="folder with the IDX files of Fashion-MNIST")
    parser.add_argument("--rows", type=int, default=16_384, help="with --virtual")
    parser.add_argument("--virtual", action="store_true")
    parser.add_argument("--seeds", type=int, default=1, help="with --virtual: choices of images and weights")
    parser.add_argument("--explain", type=Path, help="a file for where the time of each model went")
    parser.add_argument("--merge", type=Path, nargs="+", help="records of parts; nothing is run")
    parser.add_argument("--out", type=Path, help="the record as JSON")
    parser.add_argument("--page", type=Path, help="a table of all cells as Markdown")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    warnings.simplefilter("ignore")
    record: dict[str, Any] = {"workers": given.workers, "cells": {}}
    notes: dict[str, Any] = {}
    for label, cell in () if given.merge else cells(given, notes):
        record["cells"][label] = cell
        shown = {model: "–" if ratio is None else f"{ratio:.2f}" for model, ratio in cell.get("ratio", {}).items()}
        ended = cell.get("left out") or f"best {cell['best']}"
        print(f"{label:20s}", " ".join(f"{model} {ratio}" for model, ratio in shown.items()), ended, flush=True)
        for model, note in notes.get(label, {}).items():
            print("   ", model, _in_short(note), flush=True)
        if given.explain:
            given.explain.write_text(json.dumps(notes, indent=1), encoding="utf-8")
        save(given, record)
    if given.merge:
        record = merged(given.merge)
        save(given, record)
    for model in ("fsp", "auto"):
        print(told(record["cells"], model))


if __name__ == "__main__":
    with errors_as_sentences():
        main()
