"""Runs a comparison: same data, same start, same target, candidates taking turns on one set of warm workers.

Never trusts the engine's own figure: the final objective of a model is evaluated again on the data, from scratch.
Never drops a bad run: one that diverges, stalls, fails, hits the limit or is disturbed is in the record, and marked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flegel.algorithm import Algorithm, described_hyper
from flegel.api.jobs import LocalCluster, run
from flegel.compare.candidate import Candidate, parse_candidates, supported
from flegel.compare.picture import picture
from flegel.compare.record import Attempt, Comparison, Picture, RunEnvironment
from flegel.compare.stats import first_reaching, loosened, median, turns
from flegel.datasets import Dataset, open_data
from flegel.errors import FlegelError, UsageError
from flegel.job import check_seed
from flegel.plan.stragglers import parse_stragglers
from flegel.results.result import Result
from flegel.runtime import clock
from flegel.runtime.job.find_algorithm import resolve
from flegel.runtime.job.request import default_workers
from flegel.runtime.processes import host

DEFAULT_TARGET_GAP = 0.001  # of the objective that bsp converges to: the default target is so far from it
STALLED_CHANGE = 1e-9  # relative change of the objective over a pass; a run with less makes no progress any more
LEAST_LIMIT_SECONDS, MOST_LIMIT_SECONDS, LIMIT_FACTOR = (
    10.0,
    120.0,
    60.0,
)  # of a run: at least, at most, and in times of the reference
OUT_OF_TIME = "The time for this comparison was over"
LEAST_RUN_SECONDS = 0.1  # that every run gets, however short the reference was
MAX_VALUES_TO_CHECK_EACH = 20_000_000  # of the data; with more, one model of each candidate is evaluated, not every one


@dataclass
class ComparisonSettings:
    """What is compared, and how."""

    algorithm: Algorithm
    data: Dataset
    candidates: list[Candidate]
    workers: int
    repeat: int = 3
    straggler: str = ""
    target: float | None = None
    target_note: str = "given"
    within: float = DEFAULT_TARGET_GAP
    gap: float | None = None
    """Instead of `within`: distance of the target from bsp's end, as a share of what bsp gains after its first pass.
    Comparable between algorithms, which a share of the objective is not."""
    tolerance: float = 1e-4
    max_passes: int | None = None
    """Limit of the run that finds the target."""
    max_seconds: float | None = None
    seed: int = 0
    partition: str = "shuffle"
    cluster: LocalCluster | None = None
    reference: str = ""
    """Label of the candidate that runs first; the other runs are stopped after a multiple of its time."""
    give_up_after: Mapping[str, float] = field(default_factory=dict)
    """By synchronization model: multiple of the reference's time after which a run is stopped; "" for all others."""
    seconds_left: Callable[[], float] = lambda: math.inf
    """Seconds in which runs may still begin, and candidates other than the reference may go on. First called when the
    target is known, so that the time to find it need not count."""
    log: Callable[[str], None] = lambda text: None
    title: str = ""
    command: str = ""


def compare(
    algorithm: Algorithm | type[Algorithm] | str,
    data: Any,
    sync: str | Sequence[Candidate] = "bsp,fsp",
    *,
    workers: int | None = None,
    label: str | int | None = None,
    weight: str | int | None = None,
    **options: Any,
) -> Comparison:
    """Compare synchronization models on `data`; options are the fields of `ComparisonSettings`."""
    chosen = resolve(algorithm)
    candidates = parse_candidates(sync) if isinstance(sync, str) else list(sync)
    cluster: LocalCluster | None = options.get("cluster")
    count = workers if workers is not None else cluster.workers if cluster else default_workers()
    rows = in_memory(data if isinstance(data, Dataset) else open_data(data, label=label, weight=weight))
    return run_comparison(ComparisonSettings(chosen, rows, candidates, count, **options))


def in_memory(data: Dataset) -> Dataset:
    """The same rows, read once for all runs."""
    if data.in_memory:
        return data
    rows = data.read()
    held = open_data((rows.features, rows.labels, rows.weights))
    held.name, held.stand_in, held.note = data.name, data.stand_in, data.note
    return held


def check_numbers(settings: ComparisonSettings) -> None:
    """Refuses wrong numbers before anything runs."""
    if settings.repeat < 1:
        raise UsageError(f"--repeat {settings.repeat} leaves nothing to compare.")
    if settings.target is not None and not math.isfinite(settings.target):
        raise UsageError(f"--target {settings.target:g} must be a finite number.")
    if not 0 < settings.within < 1:
        raise UsageError(f"--within {settings.within:g} must be between 0 and 1; 0.001 is a tenth of a percent.")
    if not 0 < settings.tolerance < 1 and not settings.max_passes:
        raise UsageError(f"--tolerance {settings.tolerance:g} must be between 0 and 1, so that bsp converges.")
    if settings.max_seconds is not None and not settings.max_seconds > 0:
        raise UsageError(f"--max-seconds {settings.max_seconds:g} must be more than 0.")
    check_seed(settings.seed)
    parse_stragglers(settings.straggler, settings.workers)


def run_comparison(settings: ComparisonSettings) -> Comparison:
    """Run all candidates, on the given cluster or on one of its own."""
    check_numbers(settings)
    if settings.straggler and not supported("straggler"):
        raise UsageError("This version of Flegel cannot slow workers on purpose.")
    if settings.cluster is not None:
        return ComparisonRunner(settings, settings.cluster).run()
    with LocalCluster(settings.workers) as cluster:
        return ComparisonRunner(settings, cluster).run()


class RaceTarget(NamedTuple):
    """What the runs of a comparison race for."""

    objective: float
    note: str
    """Where the objective comes from."""
    limit_seconds: float
    """After which a run is given up."""


class ComparisonRunner:
    """Runs the candidates of one comparison on a cluster and collects the attempts."""

    def __init__(self, settings: ComparisonSettings, cluster: LocalCluster | None) -> None:
        """`cluster`: where all runs train; None: each job finds its own."""
        self.settings, self.cluster = settings, cluster
        self.features, self.labels = settings.data.load()
        self.maximize = settings.algorithm.learning.maximize
        self.attempts: list[Attempt] = []
        self.results: dict[int, tuple[Result, Picture]] = {}
        self.notes: list[str] = [settings.data.note] if settings.data.note else []
        self.skipped_runs: list[str] = []

    def run(self) -> Comparison:
        """Find the target, run all candidates in turns, repeat disturbed runs, evaluate the models, and return the
        record."""
        settings = self.settings
        target, note, limit = self._target()
        self.target, self.limit = target, limit
        settings.log(f"target: {target:.6g} ({note})")
        out: set[str] = set()
        for number, order in enumerate(turns(self._reference_first(), settings.repeat)):
            for candidate in order:
                if candidate.label not in out and not self._out_of_time(candidate, number):
                    attempt = self._attempt(candidate, number)
                    if attempt.outcome == "limit":
                        out.add(candidate.label)
        if out and settings.repeat > 1:
            names = ", ".join(c.label for c in settings.candidates if c.label in out)
            self.notes.append(f"Given up once and not run again: {names}.")
        if self.skipped_runs:
            self.notes.append(f"{OUT_OF_TIME} before these runs: {', '.join(self.skipped_runs)}.")
        self._rerun_disturbed(out)
        self._check()
        return Comparison(
            title=settings.title or f"{type(settings.algorithm).__name__} on {settings.data.name}",
            algorithm=type(settings.algorithm).__name__,
            hyperparameters={k: _plain(v) for k, v in described_hyper(settings.algorithm).items()},
            dataset=settings.data.summary(),
            workers=settings.workers,
            straggler=settings.straggler,
            seed=settings.seed,
            maximize=self.maximize,
            target=target,
            target_note=note,
            limit=limit,
            candidates=[c.label for c in settings.candidates],
            attempts=self.attempts,
            pictures=self._pictures(),
            notes=self.notes,
            environment=self._environment(),
        )

    def _reference_first(self) -> list[Candidate]:
        """The candidates, the reference first."""
        return sorted(self.settings.candidates, key=lambda c: c.label != self.settings.reference)

    def _out_of_time(self, candidate: Candidate, number: int) -> bool:
        """Too little time is left for this run: one that is stopped before the reference was done tells nothing."""
        times = self._reference_times()
        least = median(times) if times and candidate.label != self.settings.reference else 0.0
        if self.settings.seconds_left() > least:
            return False
        self.skipped_runs.append(f"{candidate.label} {number + 1}")
        return True

    def _reference_times(self) -> list[float]:
        return [a.reached for a in self.attempts if a.candidate == self.settings.reference and a.reached is not None]

    def _limit(self, candidate: Candidate) -> float:
        """Seconds after which this run is stopped; the reference has the limit of the whole comparison."""
        settings, limit = self.settings, self.limit
        times = self._reference_times()
        factor = settings.give_up_after.get(candidate.sync, settings.give_up_after.get(""))
        if candidate.label == settings.reference:
            return limit
        if times and factor is not None:
            limit = min(limit, factor * median(times) + LEAST_RUN_SECONDS)
        return max(min(limit, settings.seconds_left()), LEAST_RUN_SECONDS)

    def _environment(self) -> RunEnvironment | None:
        """Where and when it was measured."""
        return run_environment(self.settings.command)

    def _target(self) -> RaceTarget:
        """The given objective, or one found by a run of bsp without stragglers."""
        settings = self.settings
        if settings.target is not None:
            return RaceTarget(settings.target, settings.target_note, settings.max_seconds or MOST_LIMIT_SECONDS)
        settings.log("finding the target: bsp, without stragglers")
        cap = settings.max_seconds or MOST_LIMIT_SECONDS
        passes = {"max_iterations": settings.max_passes} if settings.max_passes else {}
        result = self._run(Candidate("bsp", "bsp"), tolerance=settings.tolerance, max_seconds=cap, **passes)
        if result.objective is None:
            raise UsageError(f"{result.name} has no objective, so there is no target to race for.")
        limit = settings.max_seconds or min(max(LIMIT_FACTOR * result.seconds, LEAST_LIMIT_SECONDS), MOST_LIMIT_SECONDS)
        ended = "converged to" if result.converged else "came to"
        first = next((row["objective"] for row in result.rows if row["objective"] is not None), None)
        if first is None:
            note = (
                f"the {result.objective:.6g} that bsp without stragglers {ended} in this run, "
                f"an estimate: it did not visit all points in {result.seconds:.3g} s"
            )
            return RaceTarget(result.objective, note, limit)
        if settings.gap is not None:
            note = (
                f"{100 * settings.gap:.2g} % short of all that bsp without stragglers gained after its first pass, "
                f"when it {ended} {result.objective:.6g} in this run, in {result.iterations} passes and "
                f"{result.seconds:.3g} s"
            )
            return RaceTarget(result.objective + settings.gap * (first - result.objective), note, limit)
        note = (
            f"within {100 * settings.within:.2g} % of the {result.objective:.6g} that bsp without stragglers {ended} "
            f"in this run, in {result.iterations} passes and {result.seconds:.3g} s"
        )
        return RaceTarget(loosened(result.objective, settings.within, self.maximize), note, limit)

    def _run(self, candidate: Candidate, **criteria: Any) -> Result:
        """One job of the comparison: the settings that all candidates share, the candidate's options, and when to
        end."""
        settings = self.settings
        return run(
            settings.algorithm,
            settings.data,
            workers=settings.workers,
            sync=candidate.sync,
            seed=settings.seed,
            partition=settings.partition,
            cluster=self.cluster,
            **candidate.options,
            **criteria,
        )

    def _attempt(self, candidate: Candidate, number: int, again: bool = False) -> Attempt:
        """One run of a candidate with the load of the machine during it. An error of the run is its outcome, not an
        exception."""
        slowed = {"straggler": self.settings.straggler} if self.settings.straggler else {}
        before = host.reading()
        try:
            limit = self._limit(candidate)
            result = self._run(candidate, target=self.target, tolerance=STALLED_CHANGE, max_seconds=limit, **slowed)
        except FlegelError as error:
            attempt = Attempt(candidate=candidate.label, round=number, outcome="failed", reason=str(error), again=again)
        else:
            attempt = self._judge(candidate, number, result)
            attempt.again = again
            self.results[len(self.attempts)] = (
                result,
                picture(result.rows, result.worker, getattr(result, "staleness", {})),
            )
        load = host.load_since(before)
        attempt.other_programs_share = load.other_programs_share
        attempt.steal, attempt.load_average = load.steal, load.average
        attempt.disturbed = load.disturbance
        self.attempts.append(attempt)
        self.settings.log(_describe(attempt, self.settings.repeat))
        return attempt

    def _judge(self, candidate: Candidate, number: int, result: Result) -> Attempt:
        """The outcome of a run: when it first reached the target, or how it ended without."""
        curve = [(row["seconds"], row["objective"]) for row in result.rows]
        reached = first_reaching(curve, self.target, self.maximize)
        if result.reason.startswith("diverged") or (
            result.objective is not None and not math.isfinite(result.objective)
        ):
            outcome, reached = "diverged", None
        elif reached is not None:
            outcome = "reached"
        else:
            outcome = "limit" if result.outcome == "limit" else "stalled"
        passes = [w["passes"] for w in result.worker if w["points"]] or [0.0]
        return Attempt(
            candidate=candidate.label,
            round=number,
            outcome=outcome,
            reason=result.reason,
            reached=reached,
            seconds=result.seconds,
            objective=_plain(result.objective),
            barriers=result.iterations,
            utilization=result.utilization,
            passes_low=min(passes),
            passes_high=max(passes),
            load_seconds=result.load_seconds,
        )

    def _check(self) -> None:
        """Models against the data, from scratch; outside all measurements, several at a time.

        Of large data only the run in the middle of each candidate that got there: a look at it takes seconds. Not of
        weighted rows: `evaluate` counts every row once.
        """
        if self.settings.data.weighted:
            self.notes.append("Rows have weights: objectives are those of the jobs, models were not evaluated again.")
            return
        large = self.settings.data.rows * self.settings.data.columns > MAX_VALUES_TO_CHECK_EACH
        wanted = (
            [i for i in self._median_runs().values() if self.attempts[i].reached is not None] if large else self.results
        )
        evaluate = self.settings.algorithm.evaluate
        with ThreadPoolExecutor(max(1, min(len(host.cores()), len(wanted)))) as pool:
            found = pool.map(lambda i: evaluate(self.features, self.labels, self.results[i][0].parameter), wanted)
            for i, evaluation in zip(wanted, found, strict=True):
                if evaluation is not None:
                    metrics = {k: float(v) for k, v in evaluation.metrics.items() if math.isfinite(v)}
                    self.attempts[i].checked, self.attempts[i].metrics = _plain(float(evaluation.objective)), metrics

    def _rerun_disturbed(self, out: set[str]) -> None:
        """Repeats disturbed runs, unless more than half were: then the machine is busy and repeating does not help."""
        disturbed = [a for a in self.attempts if a.disturbed]
        if not disturbed:
            return
        if 2 * len(disturbed) > len(self.attempts):
            self.notes.append(
                f"{len(disturbed)} of {len(self.attempts)} runs were disturbed by other programs; the machine was busy "
                "all the time, so they were not repeated. Take ratios, not seconds, from this comparison."
            )
            return
        by_label = {c.label: c for c in self.settings.candidates}
        again = [a for a in disturbed if a.candidate not in out]
        done = 0
        for attempt in again:
            if self.settings.seconds_left() > 0:
                self._attempt(by_label[attempt.candidate], attempt.round, again=True)
                done += 1
        self.notes.append(f"{len(disturbed)} runs were disturbed by other programs, of which {done} were run again.")

    def _median_runs(self) -> dict[str, int]:
        """By candidate: the index of the run with the median time."""
        found: dict[str, int] = {}
        for candidate in self.settings.candidates:
            mine = [i for i, a in enumerate(self.attempts) if a.candidate == candidate.label and i in self.results]
            quiet = [i for i in mine if not self.attempts[i].disturbed] or mine
            if quiet:
                middle = median([self.attempts[i].seconds for i in quiet])
                found[candidate.label] = min(quiet, key=lambda i: abs(self.attempts[i].seconds - middle))
        return found

    def _pictures(self) -> dict[str, Picture]:
        return {label: self.results[i][1] for label, i in self._median_runs().items()}


def run_environment(command: str = "") -> RunEnvironment:
    """Machine, versions, commit and date of this process."""
    return RunEnvironment(
        date=clock.wall(),
        commit=host.commit(),
        machine=host.machine(),
        versions=host.versions(),
        command=command,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.tolist() if hasattr(value, "tolist") else value


def _describe(attempt: Attempt, repeat: int) -> str:
    time = f"{attempt.reached:.3g} s" if attempt.reached is not None else f"{attempt.outcome} ({attempt.reason})"
    mark = f", disturbed: {attempt.disturbed}" if attempt.disturbed else ""
    return f"{attempt.round + 1}/{repeat} {attempt.candidate}: {time}{mark}"
