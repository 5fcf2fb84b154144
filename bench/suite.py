"""What the benchmarks share: arguments, the paper's cases at three sizes, a clock for the whole, one JSON at the end.

A benchmark is a script that opens a `Suite`, holds contests in it and says what came out. It skips what this version
of the engine, or this machine, cannot do, and says so in its record; it never makes a figure up.
"""

from __future__ import annotations

import argparse
import ast
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from flegel.api import resolve
from flegel.compare import Bench, Comparison, Contest, hold, in_memory, setting, write
from flegel.compare.contender import parse_contenders
from flegel.compare.suite import lacking
from flegel.datasets import Dataset, open_data
from flegel.errors import FlegelError
from flegel.runtime.local import LocalCluster

BUDGET = {"smoke": 12.0, "small": 270.0, "paper": 3000.0}  # seconds after which no further contest begins
LIMIT = {"smoke": 4.0, "small": 20.0, "paper": 120.0}  # seconds after which a run is given up
REPEAT = {"smoke": 1, "small": 3, "paper": 5}
FULL_BATCH = "bsp,bsp-mini,fsp-binary,fsp"


class Case(NamedTuple):
    """An algorithm on a data set; rows by scale."""

    algorithm: str
    data: str
    settings: dict[str, Any]
    rows: dict[str, int]
    within: float = 0.001
    """How far from what bsp converges to the target lies; more where the last per mille takes most of the time."""

    @property
    def name(self) -> str:
        return f"{self.algorithm}-{self.data}"


def _rows(smoke: int, small: int, paper: int) -> dict[str, int]:
    return {"smoke": smoke, "small": small, "paper": paper}


LARGER = [
    Case("gmm", "puf", {"k": 5}, _rows(4_000, 200_000, 6_000_000)),
    Case("kmeans", "higgs", {"k": 10}, _rows(20_000, 4_000_000, 11_000_000)),
    Case("fcm", "higgs", {"k": 10}, _rows(10_000, 1_000_000, 11_000_000)),
    Case("lr", "nbaiot", {}, _rows(5_000, 400_000, 6_739_534), 0.05),
    Case("nmf", "ml25m", {}, _rows(2_000, 10_000, 162_541), 0.005),
    Case("cnn", "mnist", {}, _rows(1_000, 10_000, 60_000)),
]
"""The paper's larger tuple, LDT (its Table 1)."""

SMALLER = [
    Case("gmm", "susy", {"k": 5}, _rows(10_000, 500_000, 5_000_000)),
    Case("kmeans", "hepmass", {"k": 10}, _rows(20_000, 3_000_000, 7_000_000)),
    Case("fcm", "hepmass", {"k": 10}, _rows(10_000, 700_000, 7_000_000)),
    Case("lr", "higgs", {}, _rows(10_000, 2_000_000, 11_000_000)),
    Case("nmf", "ml10m", {}, _rows(2_000, 10_000, 69_878), 0.005),
    Case("cnn", "syn", {}, _rows(1_000, 20_000, 120_000)),
]
"""The smaller one, SDT."""

KMEANS = LARGER[1]


def arguments(doc: str | None, extra: Sequence[tuple[str, dict[str, Any]]] = ()) -> argparse.Namespace:
    """--scale, --workers, --repeat, --out, --seed; the same for every benchmark."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--scale", choices=list(BUDGET), default="small")
    parser.add_argument("--workers", type=int, default=None, help="one a core by default; two at smoke")
    parser.add_argument("--repeat", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="folder for NAME.json")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=None, help="seconds after which no further contest begins")
    parser.add_argument("--only", default="", help="names of algorithms with commas between; all by default")
    for name, options in extra:
        parser.add_argument(name, **options)
    return parser.parse_args()


class Suite:
    """One benchmark under way: warm workers, the data read last, and the record that is written at the end."""

    def __init__(self, script: str, doc: str | None, options: argparse.Namespace) -> None:
        self.options, self.scale = options, options.scale
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = options.workers or (2 if self.scale == "smoke" else cores)
        self.repeat = options.repeat or REPEAT[self.scale]
        self.budget = options.budget or BUDGET[self.scale]
        self.began = time.monotonic()
        command = shlex.join(["python", f"bench/{Path(script).name}", *sys.argv[1:]])
        question = (doc or "").splitlines()[0]
        self.record = Bench(
            name=Path(script).stem,
            figure=_figure(Path(script)),
            question=question,
            scale=self.scale,
            seconds=0.0,
            setting=setting(command),
        )
        self._clusters: dict[int, LocalCluster] = {}
        self._data: tuple[str, Dataset] | None = None
        self._targets: dict[str, tuple[float, str]] = {}

    def __enter__(self) -> Suite:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for cluster in self._clusters.values():
            cluster.close()
        self.record.seconds = time.monotonic() - self.began
        if kind is None:
            path = self.options.out / f"{self.record.name}.json"
            write(self.record, path)
            for text in self.record.answer:
                print(text)
            for what, why in self.record.skipped:
                print(f"left out: {what} ({why})")
            print(path)

    # -- asking ------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        if text:
            print(f"  [{time.monotonic() - self.began:5.0f} s] {text}", file=sys.stderr)

    def answer(self, text: str) -> None:
        """A sentence about what came out."""
        self.record.answer.append(text)

    def skip(self, what: str, why: str) -> None:
        self.say(f"left out: {what} ({why})")
        self.record.skipped.append((what, why))

    def over(self, what: str) -> bool:
        """The time for this benchmark is up; what would come next is named as left out."""
        if time.monotonic() - self.began < self.budget:
            return False
        self.skip(what, f"the {self.budget:.0f} s for this benchmark were over")
        return True

    def has(self, *needs: str, for_: str) -> bool:
        """The engine can do this; else it is named as left out."""
        missing = next((why for need in needs if (why := lacking(need))), "")
        if missing:
            self.skip(for_, missing)
        return not missing

    def cluster(self, workers: int) -> LocalCluster:
        """Warm workers; one size at a time, so that idle ones take no memory from the others."""
        if workers not in self._clusters:
            for other in self._clusters.values():
                other.close()
            self._clusters = {workers: LocalCluster(workers)}
            self._clusters[workers].__enter__()
        return self._clusters[workers]

    def data(self, case: Case) -> Dataset:
        """The rows of a case at this scale, in memory; the last set is kept."""
        name = f"{case.data}:{case.rows[self.scale]}"
        if self._data is None or self._data[0] != name:
            self._data = None
            self.say(f"reading {name}")
            self._data = (name, in_memory(open_data(name)))
        return self._data[1]

    def contest(self, case: Case, sync: str, straggler: str = "", **options: Any) -> Comparison | None:
        """Hold one, unless it cannot be, or the time is up; then that is in the record."""
        what = options.pop("title", case.name)
        only = self.options.only
        if only and case.algorithm not in only.split(","):
            return None
        workers = options.pop("workers", self.workers)
        if not self.has(f"algorithm:{case.algorithm}", for_=what) or self.over(what):
            return None
        if case.name in self._targets and "target" not in options:
            options["target"], options["target_note"] = self._targets[case.name]
        try:
            algorithm = resolve(case.algorithm)
            algorithm = type(algorithm)(**case.settings)
            self.say(what)
            found = hold(
                Contest(
                    algorithm,
                    self.data(case),
                    parse_contenders(sync),
                    workers,
                    straggler=straggler,
                    title=what,
                    cluster=self.cluster(workers),
                    seed=self.options.seed,
                    say=lambda text: self.say(f"    {text}"),
                    **{
                        "repeat": self.repeat,
                        "max_seconds": LIMIT[self.scale],
                        "within": 0.01 if self.scale == "smoke" else case.within,
                        **options,
                    },
                )
            )
        except FlegelError as error:
            self.skip(what, str(error))
            return None
        self._targets.setdefault(case.name, (found.target, found.target_note))
        self.record.contests.append(found)
        return found


def _figure(path: Path) -> str:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="FIGURE")], value=ast.Constant(value=str(text))):
                return text
    return ""


def quarter(workers: int) -> str:
    """A quarter of the workers, as in the paper (4 of 16)."""
    count = max(1, workers // 4)
    return "0" if count == 1 else f"0-{count - 1}"


def shown(ratio: tuple[float, bool] | None) -> str:
    """A ratio, with > where it is a lower bound."""
    if ratio is None:
        return "–"
    return f"{'> ' if ratio[1] else ''}{ratio[0]:.2f}"
