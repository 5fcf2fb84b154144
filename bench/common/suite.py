"""What the benchmarks share: arguments, the paper's cases at three sizes, a clock for the whole, one JSON at the end.

A benchmark is a program that opens a `Suite`, runs comparisons in it and states the answer. It skips what this version
of the engine, or this machine, cannot do, and says so in its record; it never makes a figure up.
"""

from __future__ import annotations

import argparse
import ast
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, NoReturn

from bench.common.data_cache import DataCache
from bench.common.problems import with_one_start
from bench.common.record import Bench, Chart, Table, read
from bench.common.scripts import UNDER_WAY, check_only, lacking
from flegel.algorithm import Algorithm
from flegel.api.jobs import LocalCluster, resolve, run
from flegel.compare import Comparison, ComparisonSettings, run_comparison, run_environment, write
from flegel.compare.candidate import parse_candidates
from flegel.compare.comparison import OUT_OF_TIME
from flegel.datasets import Dataset
from flegel.errors import FlegelError, Terminated, UsageError

BUDGET = {"smoke": 7200.0, "laptop": 120.0, "small": 270.0, "paper": 3000.0}
"""Seconds for all comparisons of a benchmark. At smoke, where each has to be complete also on a machine whose
processors are used by others, a bound that is never near."""
LIMIT = {"smoke": 4.0, "laptop": 15.0, "small": 30.0, "paper": 180.0}  # seconds after which a run is stopped
REPEAT = {"smoke": 1, "laptop": 3, "small": 3, "paper": 5}
FULL_BATCH = "bsp,bsp-mini,fsp-binary,fsp"
RACE = "bsp,bsp-mini,asp,fsp-binary,fsp"
REFERENCE = "fsp"
GIVE_UP_AFTER = {"bsp": 13.0, "": 4.0}
"""Multiples of the time of fsp after which another model is stopped; its time is then a lower bound."""
LAPTOP = 64  # part of `small` that a laptop gets
TERMINATED = 128 + signal.SIGTERM  # exit code
PASSES = 150  # at most, of bsp when it finds the target
TOLERANCE = 1e-6  # of bsp when it finds the target


class Case(NamedTuple):
    """An algorithm on a data set; rows by scale."""

    algorithm: str
    data: str
    settings: dict[str, Any]
    rows: dict[str, int]
    gap: float = 0.02
    """How far short of bsp's end the target lies, as a share of what bsp gains after its first pass. Optima that
    k-means reaches from different starts differ by 4 % of that, so its target is no nearer than 7 %."""

    @property
    def name(self) -> str:
        return f"{self.algorithm}-{self.data}"


def rows(smoke: int, small: int, paper: int) -> dict[str, int]:
    """By scale: `small` suits some sixteen cores, `laptop` two to four that have other things to do."""
    return {"smoke": smoke, "laptop": max(smoke, small // LAPTOP), "small": small, "paper": paper}


FUZZY = {"k": 10, "m": 1.3}  # with m = 2 all memberships in 28 columns are alike, and a few passes end it
NETWORK = {"epochs": 60.0}  # one update a pass under bsp: fewer do not come near a minimum
LARGER = [
    Case("kmeans", "higgs", {"k": 50}, rows(8_000, 8_000_000, 11_000_000), 0.07),
    Case("fcm", "higgs", FUZZY, rows(5_000, 2_000_000, 11_000_000), 0.005),
    Case("gmm", "puf", {"k": 5}, rows(4_000, 500_000, 6_000_000), 0.01),
    Case("lr", "nbaiot", {}, rows(4_000, 1_000_000, 6_739_534), 0.003),
    Case("nmf", "ml25m", {}, rows(2_000, 20_000, 162_541), 0.03),
    Case("cnn", "mnist", NETWORK, rows(1_000, 10_000, 60_000)),
]
"""The larger data set of each of the paper's algorithms: its LDT = {PUF, HIGGS, HIGGS, DET, ML25M, MNIST}."""

SMALLER = [
    Case("kmeans", "hepmass", {"k": 50}, rows(8_000, 6_000_000, 7_000_000), 0.07),
    Case("fcm", "hepmass", FUZZY, rows(5_000, 1_500_000, 7_000_000), 0.005),
    Case("gmm", "susy", {"k": 5}, rows(10_000, 5_000_000, 5_000_000), 0.04),
    Case("lr", "higgs", {}, rows(10_000, 4_000_000, 11_000_000), 0.001),
    Case("nmf", "ml10m", {}, rows(2_000, 20_000, 69_878), 0.03),
    Case("cnn", "syn", NETWORK, rows(1_000, 20_000, 120_000)),
]
"""The smaller one: the paper's SDT = {SUSY, MASS, MASS, HIGGS, ML10M, SYN}. It counts SYN as smaller than MNIST."""

SWEEP = LARGER[0]._replace(rows=rows(8_000, 4_000_000, 11_000_000))
"""For figures with many comparisons."""
KMEANS, FUZZY_MEANS, MIXTURE, LOGISTIC, RATINGS, CONVOLUTIONAL = LARGER


def arguments(doc: str | None, extra: Sequence[tuple[str, dict[str, Any]]] = ()) -> argparse.Namespace:
    """--scale, --workers, --repeat, --out, --seed; the same for every benchmark."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--scale", choices=list(BUDGET), default="small")
    parser.add_argument("--workers", type=int, default=None, help="one a core by default; two at smoke")
    parser.add_argument("--repeat", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="folder for NAME.json")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=_positive, default=None, help="seconds for all comparisons together")
    parser.add_argument("--cache", type=Path, default=None, help="folder for rows and targets that other scripts use")
    parser.add_argument("--only", default="", help="names of algorithms with commas between; all by default")
    for name, options in extra:
        parser.add_argument(name, **options)
    given = parser.parse_args()
    try:
        check_only(given.only)
    except UsageError as error:
        parser.error(str(error))
    return given


def parts_option(known: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """`--parts` of a benchmark that measures several figures."""
    return "--parts", {"type": _words(known), "default": list(known), "help": f"{', '.join(known)}; all by default"}


def _words(known: Sequence[str]) -> Callable[[str], list[str]]:
    def read_words(text: str) -> list[str]:
        words = [word for word in text.split(",") if word]
        if unknown := sorted(set(words) - set(known)):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is none of {', '.join(known)}")
        return words or list(known)

    return read_words


def _positive(word: str) -> float:
    value = float(word)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{word} must be more than 0 seconds")
    return value


class Suite:
    """One benchmark under way: warm workers, the data read last, and the record that is written at the end."""

    kept_clusters: ClassVar[dict[int, LocalCluster] | None] = None
    """Warm workers that benchmarks of one process hand on; None where each has its own."""
    first_of_process: ClassVar[bool] = True
    """The time in which this process was started belongs to its first benchmark."""

    @classmethod
    @contextmanager
    def warm(cls) -> Iterator[None]:
        """Benchmarks of this block use the same workers one after the other."""
        cls.kept_clusters = {}
        try:
            yield
        finally:
            for cluster in cls.kept_clusters.values():
                cluster.close()
            cls.kept_clusters = None

    def __init__(self, script: str, doc: str | None, options: argparse.Namespace) -> None:
        self.options, self.scale = options, options.scale
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = options.workers or (2 if self.scale == "smoke" else cores)
        self.repeat = options.repeat or REPEAT[self.scale]
        self.budget = options.budget or BUDGET[self.scale]
        self.began = time.monotonic() - (_age() if Suite.first_of_process else 0.0)
        Suite.first_of_process = False
        command = shlex.join(["python", "-m", f"bench.figures.{Path(script).stem}", *sys.argv[1:]])
        question = (doc or "").splitlines()[0]
        self.record = Bench(
            name=Path(script).stem,
            figure=_figure(Path(script)),
            question=question,
            scale=self.scale,
            seconds=0.0,
            environment=run_environment(command),
        )
        self.record.unfinished = UNDER_WAY
        self._clusters: dict[int, LocalCluster] = Suite.kept_clusters or {}
        self._data: tuple[str, Dataset] | None = None
        self._cache = DataCache(options.cache)
        self._targets: dict[str, tuple[float, str]] = {}
        self._algorithms: dict[str, Algorithm] = {}
        self._expected = 0
        self._over = False

    def __enter__(self) -> Suite:
        signal.signal(signal.SIGTERM, raise_terminated)
        self.save()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self.record.unfinished = f"the {self.budget:.0f} s for this benchmark were over" if self._over else ""
        elif isinstance(error, SystemExit | KeyboardInterrupt):
            self.record.unfinished = f"it was ended after {time.monotonic() - self.began:.0f} s"
        else:
            self.record.unfinished = f"it failed: {kind.__name__}: {error}"
        path = self.save()  # before anything that takes time: whoever asked us to end will not wait for long
        for text in self.record.answer:
            print(text)
        for what, why in self.record.skipped:
            print(f"left out: {what} ({why})")
        print(path)
        self._end_clusters(keep=kind is None)
        self._cache.close()

    def save(self) -> Path:
        """The record as it stands; done after every comparison, so that nothing is lost when the script is ended."""
        self.record.seconds = time.monotonic() - self.began
        path: Path = self.options.out / f"{self.record.name}.json"
        write(self.record, path)
        return path

    # -- telling -----------------------------------------------------------------------------------------------

    def chart(self, chart: Chart) -> None:
        """Put it into the record; one with the same title gives way."""
        self.record.charts = [c for c in self.record.charts if c.title != chart.title] + [chart]

    def table(self, table: Table) -> None:
        self.record.tables = [t for t in self.record.tables if t.title != table.title] + [table]

    def answer(self, text: str, *figures: str) -> None:
        """A sentence about what came out; of these figures of the papers, where a benchmark measures several."""
        if text not in self.record.answer:
            self.record.answer.append(text)
        for figure in figures:
            told = self.record.by_figure.setdefault(figure, [])
            told += [] if text in told else [text]

    def answer_time(self, text: str, ran: str, *figures: str) -> None:
        """A sentence about speed. At smoke, where jobs end after tens of milliseconds, it would say nothing of the
        mechanism: `ran`, what was run, stands in its place."""
        self.answer(text if self.scale != "smoke" else ran, *figures)

    def expect(self, comparisons: int) -> None:
        """So many comparisons are still to come; each may take an equal part of the time that is left."""
        self._expected = comparisons

    # -- asking ------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        if text:
            print(f"  [{time.monotonic() - self.began:5.0f} s] {text}", file=sys.stderr)

    def skip(self, what: str, why: str) -> None:
        self.say(f"left out: {what} ({why})")
        self.record.skipped.append((what, why))

    def left(self) -> float:
        """Seconds of the budget that are left."""
        return float(self.began + self.budget - time.monotonic())

    def _part(self, share: float) -> Callable[[], float]:
        """Seconds left of a part of the budget; it begins to run out when it is first asked for."""
        ends: list[float] = []

        def left() -> float:
            if not ends:
                ends.append(time.monotonic() + share * self.left())
            return ends[0] - time.monotonic()

        return left

    def over(self, what: str) -> bool:
        """The time for this benchmark is up; what would come next is named as left out."""
        if self.left() > 0:
            return False
        self.late(what, f"the {self.budget:.0f} s for this benchmark were over")
        return True

    def late(self, what: str, why: str) -> None:
        """There is no time for this; the benchmark is not complete."""
        self._over = True
        self.skip(what, why)

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

    def _end_clusters(self, keep: bool) -> None:
        """Workers end, or are kept for the next benchmark of this process; after a failure nobody knows their state."""
        if Suite.kept_clusters is not None:
            Suite.kept_clusters = self._clusters if keep else {}
        if Suite.kept_clusters is None or not keep:
            for cluster in self._clusters.values():
                cluster.close()

    def use_cluster(self, workers: int, cluster: LocalCluster) -> None:
        """Take workers that somebody else has started, and will end, for comparisons of this size."""
        for own in self._clusters.values():
            own.close()
        self._clusters = {workers: cluster}

    def leave_clusters(self) -> None:
        """Comparisons to come start workers of their own; those that are up belong to whoever started them."""
        self._clusters = {}

    def data(self, case: Case) -> Dataset:
        """The rows of a case at this scale, in memory; the last set is kept."""
        name = f"{case.data}:{case.rows[self.scale]}"
        if self._data is None or self._data[0] != name:
            self._data = None
            self.say(f"reading {name}")
            self._data = (name, self._cache.rows(name))
        return self._data[1]

    def _algorithm(self, case: Case) -> Algorithm:
        """One instance for a case, which finds its start once: all runs begin alike, and at once."""
        key = f"{case.algorithm} {case.data} {case.rows[self.scale]} {case.settings}"
        if key not in self._algorithms:
            self._algorithms = {key: with_one_start(type(resolve(case.algorithm))(**case.settings))}
        return self._algorithms[key]

    def earlier(self, name: str, case: Case, straggler: str) -> Comparison | None:
        """The same comparison as another benchmark made it in this run, at this scale and with as many workers."""
        path = self.options.out / f"{name}.json"
        try:
            record = read(path) if path.exists() else None
        except FlegelError:
            return None
        if not isinstance(record, Bench) or record.scale != self.scale:
            return None
        if record.environment.commit != self.record.environment.commit:
            return None
        rows, seed = case.rows[self.scale], self.options.seed
        for found in record.comparisons:
            same = found.title.startswith(f"{case.name},") and found.dataset["rows"] == rows and found.seed == seed
            if same and found.straggler == straggler and found.workers == self.workers:
                return found
        return None

    def a_pass(self, case: Case) -> float:
        """Seconds that a full pass takes without stragglers; 0 where that cannot be had."""
        if not self.chosen(case.algorithm) or lacking(f"algorithm:{case.algorithm}") or self.left() <= 0:
            return 0.0
        found = run(
            self._algorithm(case), self.data(case), workers=self.workers, sync="bsp", max_iterations=5, tolerance=0,
            cluster=self.cluster(self.workers), max_seconds=LIMIT[self.scale], seed=self.options.seed,
        )  # fmt: skip
        return float(found.seconds / max(found.iterations, 1))

    def chosen(self, algorithm: str) -> bool:
        """The user has not left it out."""
        return not self.options.only or algorithm in self.options.only.split(",")

    def compare(self, case: Case, sync: str, straggler: str = "", **options: Any) -> Comparison | None:
        """Runs one, unless it cannot run or the time is over; then that is in the record."""
        what = options.pop("title", case.name)
        if not self.chosen(case.algorithm):
            self._expected -= 1
            return None
        workers = options.pop("workers", self.workers)
        share = 1.0 / max(self._expected, 1)
        self._expected -= 1
        if not self.has(f"algorithm:{case.algorithm}", for_=what) or self.over(what):
            return None
        key = f"{case.name} {case.rows[self.scale]} {case.settings} {case.gap} {self.options.seed}"
        known = self._targets.get(key) or self._cache.target(key)
        if known and "target" not in options:
            options["target"], options["target_note"] = known
        own = "target" not in options
        candidates = parse_candidates(sync)
        try:
            algorithm = self._algorithm(case)
            self.say(what)
            data, cluster = self.data(case), self.cluster(workers)
            found = run_comparison(
                ComparisonSettings(
                    algorithm,
                    data,
                    candidates,
                    workers,
                    straggler=straggler,
                    title=what,
                    cluster=cluster,
                    seed=self.options.seed,
                    log=lambda text: self.say(f"    {text}"),
                    seconds_left=self._part(share),
                    **{
                        "repeat": self.repeat,
                        "max_seconds": LIMIT[self.scale],
                        "gap": case.gap,
                        "tolerance": TOLERANCE,
                        "max_passes": PASSES,
                        "reference": REFERENCE if any(c.label == REFERENCE for c in candidates) else "",
                        "give_up_after": GIVE_UP_AFTER,
                        **options,
                    },
                )
            )
        except FlegelError as error:
            if self.scale == "smoke":
                raise  # which shows that everything works, or what does not
            self.skip(what, str(error))
            return None
        if own:
            self._targets[key] = (found.target, found.target_note)
            self._cache.keep_target(key, found.target, found.target_note)
        if any(note.startswith(OUT_OF_TIME) for note in found.notes):
            self._over = True
        self.record.comparisons.append(found)
        self.save()
        return found


def _age() -> float:
    """Seconds since this process was started: imports take time too, on a busy machine much."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, AttributeError, IndexError):
        return 0.0


def raise_terminated(*_: object) -> NoReturn:
    """For SIGTERM: whoever runs a benchmark ends it, and what was measured is kept."""
    raise Terminated(TERMINATED)  # which the engine hands on from a hook


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
