"""The comparison itself: same data, same start, same target, contenders taking turns on one set of warm workers.

Never trusts the engine's own figure: the final objective of a model is evaluated again on the data, from scratch.
Never drops a bad run: one that diverges, stalls, fails, hits the limit or is disturbed is in the record, and marked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from flegel.algorithm import Algorithm
from flegel.api import resolve, run
from flegel.compare.contender import Contender, parse_contenders, supported
from flegel.compare.picture import picture
from flegel.compare.record import Attempt, Comparison, Picture, Setting
from flegel.compare.stats import first_reaching, loosened, median, turns
from flegel.datasets import Dataset, open_data
from flegel.errors import FlegelError, UsageError
from flegel.job import check_seed
from flegel.plan.stragglers import parse_stragglers
from flegel.result import Result
from flegel.runtime import clock
from flegel.runtime.job.request import default_workers
from flegel.runtime.processes import host
from flegel.runtime.processes.local_cluster import LocalCluster

WITHIN = 0.001  # of what bsp converges to: the default target
STALLED = 1e-9  # relative change over a full pass: nothing happens any more
LEAST_LIMIT, MOST_LIMIT, LIMIT_FACTOR = 10.0, 120.0, 60.0
LATE = "The time for this contest was over"
HEADROOM = 0.1  # seconds that every run gets
CHECK_EACH_UP_TO = 20_000_000  # values; beyond that one model of each contender is evaluated, not every one


@dataclass
class Contest:
    """What is compared, and how."""

    algorithm: Algorithm
    data: Dataset
    contenders: list[Contender]
    workers: int
    repeat: int = 3
    straggler: str = ""
    target: float | None = None
    target_note: str = "given"
    within: float = WITHIN
    gap: float | None = None
    """Instead of `within`: the target lies so large a share of what bsp gains after its first pass short of its end.
    Says the same for every algorithm, where a share of the objective may be nothing or everything."""
    tolerance: float = 1e-4
    max_passes: int | None = None
    """Of the run that finds the target."""
    max_seconds: float | None = None
    seed: int = 0
    partition: str = "shuffle"
    cluster: LocalCluster | None = None
    head: str = ""
    """A contender that runs first, and whose time is the measure for giving up the others."""
    enough: Mapping[str, float] = field(default_factory=dict)
    """By synchronization model: after so many times what `head` took a run is given up; "" stands for the rest."""
    left: Callable[[], float] = lambda: math.inf
    """Seconds until no further run may begin, nor one of a rival under way go on. Asked first when the target is
    known, so that the time to find it need not count."""
    say: Callable[[str], None] = lambda text: None
    title: str = ""
    command: str = ""


def compare(
    algorithm: Algorithm | type[Algorithm] | str,
    data: Any,
    sync: str | Sequence[Contender] = "bsp,fsp",
    *,
    workers: int | None = None,
    label: str | int | None = None,
    **options: Any,
) -> Comparison:
    """Compare synchronization models on `data`; options are the fields of `Contest`."""
    chosen = resolve(algorithm)
    contenders = parse_contenders(sync) if isinstance(sync, str) else list(sync)
    cluster: LocalCluster | None = options.get("cluster")
    count = workers if workers is not None else cluster.workers if cluster else default_workers()
    return hold(Contest(chosen, in_memory(open_data(data, label=label)), contenders, count, **options))


def in_memory(data: Dataset) -> Dataset:
    """The same rows, read once for all runs."""
    if data.in_memory:
        return data
    features, labels = data.load()
    held = open_data((features, labels) if labels is not None else features)
    held.name, held.stand_in, held.note = data.name, data.stand_in, data.note
    return held


def check_numbers(contest: Contest) -> None:
    """What can be seen to be wrong before anything runs."""
    if contest.repeat < 1:
        raise UsageError(f"--repeat {contest.repeat} leaves nothing to compare.")
    if contest.target is not None and not math.isfinite(contest.target):
        raise UsageError(f"--target {contest.target:g} must be a finite number.")
    if not 0 < contest.within < 1:
        raise UsageError(f"--within {contest.within:g} must be between 0 and 1; 0.001 is a tenth of a percent.")
    if not 0 < contest.tolerance < 1 and not contest.max_passes:
        raise UsageError(f"--tolerance {contest.tolerance:g} must be between 0 and 1, so that bsp converges.")
    if contest.max_seconds is not None and not contest.max_seconds > 0:
        raise UsageError(f"--max-seconds {contest.max_seconds:g} must be more than 0.")
    check_seed(contest.seed)
    parse_stragglers(contest.straggler, contest.workers)


def hold(contest: Contest) -> Comparison:
    """Run it."""
    check_numbers(contest)
    if contest.straggler and not supported("straggler"):
        raise UsageError("This version of Flegel cannot slow workers on purpose.")
    if contest.cluster is not None:
        return Arena(contest, contest.cluster).hold()
    with LocalCluster(contest.workers) as cluster:
        return Arena(contest, cluster).hold()


class Arena:
    """A contest on a cluster."""

    def __init__(self, contest: Contest, cluster: LocalCluster | None) -> None:
        self.contest, self.cluster = contest, cluster
        self.features, self.labels = contest.data.load()
        self.maximize = contest.algorithm.maximize
        self.attempts: list[Attempt] = []
        self.results: dict[int, tuple[Result, Picture]] = {}
        self.notes: list[str] = [contest.data.note] if contest.data.note else []
        self.missed: list[str] = []

    def hold(self) -> Comparison:
        contest = self.contest
        target, note, limit = self._target()
        self.target, self.limit = target, limit
        contest.say(f"target: {target:.6g} ({note})")
        out: set[str] = set()
        for number, order in enumerate(turns(self._headed(), contest.repeat)):
            for contender in order:
                if contender.label not in out and not self._late(contender, number):
                    attempt = self._attempt(contender, number)
                    if attempt.outcome == "limit":
                        out.add(contender.label)
        if out and contest.repeat > 1:
            names = ", ".join(c.label for c in contest.contenders if c.label in out)
            self.notes.append(f"Given up once and not run again: {names}.")
        if self.missed:
            self.notes.append(f"{LATE} before these runs: {', '.join(self.missed)}.")
        self._again(out)
        self._check()
        return Comparison(
            title=contest.title or f"{type(contest.algorithm).__name__} on {contest.data.name}",
            algorithm=type(contest.algorithm).__name__,
            hyperparameters={k: _plain(v) for k, v in contest.algorithm.hyper().items()},
            dataset=contest.data.summary(),
            workers=contest.workers,
            straggler=contest.straggler,
            seed=contest.seed,
            maximize=self.maximize,
            target=target,
            target_note=note,
            limit=limit,
            contenders=[c.label for c in contest.contenders],
            attempts=self.attempts,
            pictures=self._pictures(),
            notes=self.notes,
            setting=self._setting(),
        )

    def _headed(self) -> list[Contender]:
        """The contenders, the measure of all others first."""
        return sorted(self.contest.contenders, key=lambda c: c.label != self.contest.head)

    def _late(self, contender: Contender, number: int) -> bool:
        """There is no time for it: a rival that is given up sooner than the head was done would tell nothing."""
        least = median(times) if (times := self._head_times()) and contender.label != self.contest.head else 0.0
        if self.contest.left() > least:
            return False
        self.missed.append(f"{contender.label} {number + 1}")
        return True

    def _head_times(self) -> list[float]:
        return [a.reached for a in self.attempts if a.contender == self.contest.head and a.reached is not None]

    def _limit(self, contender: Contender) -> float:
        """Seconds after which this run is given up; the measure of all others is not cut short."""
        contest, limit = self.contest, self.limit
        times = self._head_times()
        factor = contest.enough.get(contender.sync, contest.enough.get(""))
        if contender.label == contest.head:
            return limit
        if times and factor is not None:
            limit = min(limit, factor * median(times) + HEADROOM)
        return max(min(limit, contest.left()), HEADROOM)

    def _setting(self) -> Setting | None:
        """Where and when."""
        return setting(self.contest.command)

    def _target(self) -> tuple[float, str, float]:
        """The objective to reach, where it comes from, and after how many seconds a run is given up."""
        contest = self.contest
        if contest.target is not None:
            return contest.target, contest.target_note, contest.max_seconds or MOST_LIMIT
        contest.say("finding the target: bsp, without stragglers")
        cap = contest.max_seconds or MOST_LIMIT
        passes = {"max_iterations": contest.max_passes} if contest.max_passes else {}
        result = self._run(Contender("bsp", "bsp"), tolerance=contest.tolerance, max_seconds=cap, **passes)
        if result.objective is None:
            raise UsageError(f"{result.name} has no objective, so there is no target to race for.")
        limit = contest.max_seconds or min(max(LIMIT_FACTOR * result.seconds, LEAST_LIMIT), MOST_LIMIT)
        ended = "converged to" if result.converged else "came to"
        if contest.gap is not None:
            first = next(row["objective"] for row in result.rows if row["objective"] is not None)
            note = (
                f"{100 * contest.gap:.2g} % short of all that bsp without stragglers gained after its first pass, when "
                f"it {ended} {result.objective:.6g} in this run, in {result.iterations} passes and "
                f"{result.seconds:.3g} s"
            )
            return result.objective + contest.gap * (first - result.objective), note, limit
        note = (
            f"within {100 * contest.within:.2g} % of the {result.objective:.6g} that bsp without stragglers {ended} in "
            f"this run, in {result.iterations} passes and {result.seconds:.3g} s"
        )
        return loosened(result.objective, contest.within, self.maximize), note, limit

    def _run(self, contender: Contender, **criteria: Any) -> Result:
        contest = self.contest
        return run(
            contest.algorithm,
            contest.data,
            workers=contest.workers,
            sync=contender.sync,
            seed=contest.seed,
            partition=contest.partition,
            cluster=self.cluster,
            **contender.options,
            **criteria,
        )

    def _attempt(self, contender: Contender, number: int, again: bool = False) -> Attempt:
        slowed = {"straggler": self.contest.straggler} if self.contest.straggler else {}
        before = host.reading()
        try:
            limit = self._limit(contender)
            result = self._run(contender, target=self.target, tolerance=STALLED, max_seconds=limit, **slowed)
        except FlegelError as error:
            attempt = Attempt(contender=contender.label, round=number, outcome="failed", reason=str(error), again=again)
        else:
            attempt = self._judge(contender, number, result)
            attempt.again = again
            self.results[len(self.attempts)] = (
                result,
                picture(result.rows, result.worker, getattr(result, "staleness", {})),
            )
        load = host.load_since(before)
        attempt.foreign, attempt.steal, attempt.load_average = load.foreign, load.steal, load.average
        attempt.disturbed = load.disturbance
        self.attempts.append(attempt)
        self.contest.say(_told(attempt, self.contest.repeat))
        return attempt

    def _judge(self, contender: Contender, number: int, result: Result) -> Attempt:
        curve = [(row["seconds"], row["objective"]) for row in result.rows]
        reached = first_reaching(curve, self.target, self.maximize)
        if result.reason.startswith("diverged") or (
            result.objective is not None and not math.isfinite(result.objective)
        ):
            outcome, reached = "diverged", None
        elif reached is not None:
            outcome = "reached"
        else:
            outcome = "stalled" if result.converged else "limit"
        passes = [w["passes"] for w in result.worker if w["points"]] or [0.0]
        return Attempt(
            contender=contender.label,
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

        Of large data only the run in the middle of each contender that got there: a look at it takes seconds.
        """
        large = self.contest.data.rows * self.contest.data.columns > CHECK_EACH_UP_TO
        wanted = (
            [i for i in self._middles().values() if self.attempts[i].reached is not None] if large else self.results
        )
        evaluate = self.contest.algorithm.evaluate
        with ThreadPoolExecutor(max(1, min(len(host.cores()), len(wanted)))) as pool:
            found = pool.map(lambda i: evaluate(self.features, self.labels, self.results[i][0].parameter), wanted)
            for i, evaluation in zip(wanted, found, strict=True):
                if evaluation is not None:
                    metrics = {k: float(v) for k, v in evaluation.metrics.items() if math.isfinite(v)}
                    self.attempts[i].checked, self.attempts[i].metrics = _plain(float(evaluation.objective)), metrics

    def _again(self, out: set[str]) -> None:
        """Disturbed runs once more, unless the machine is so busy that it would not help."""
        disturbed = [a for a in self.attempts if a.disturbed]
        if not disturbed:
            return
        if 2 * len(disturbed) > len(self.attempts):
            self.notes.append(
                f"{len(disturbed)} of {len(self.attempts)} runs were disturbed by other programs; the machine was busy "
                "all the time, so they were not repeated. Take ratios, not seconds, from this comparison."
            )
            return
        by_label = {c.label: c for c in self.contest.contenders}
        again = [a for a in disturbed if a.contender not in out]
        done = 0
        for attempt in again:
            if self.contest.left() > 0:
                self._attempt(by_label[attempt.contender], attempt.round, again=True)
                done += 1
        self.notes.append(f"{len(disturbed)} runs were disturbed by other programs, of which {done} were run again.")

    def _middles(self) -> dict[str, int]:
        """Of each contender, which run is in the middle."""
        found: dict[str, int] = {}
        for contender in self.contest.contenders:
            mine = [i for i, a in enumerate(self.attempts) if a.contender == contender.label and i in self.results]
            quiet = [i for i in mine if not self.attempts[i].disturbed] or mine
            if quiet:
                middle = median([self.attempts[i].seconds for i in quiet])
                found[contender.label] = min(quiet, key=lambda i: abs(self.attempts[i].seconds - middle))
        return found

    def _pictures(self) -> dict[str, Picture]:
        return {label: self.results[i][1] for label, i in self._middles().items()}


def setting(command: str = "") -> Setting:
    """Here and now."""
    return Setting(
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


def _told(attempt: Attempt, repeat: int) -> str:
    time = f"{attempt.reached:.3g} s" if attempt.reached is not None else f"{attempt.outcome} ({attempt.reason})"
    mark = f", disturbed: {attempt.disturbed}" if attempt.disturbed else ""
    return f"{attempt.round + 1}/{repeat} {attempt.contender}: {time}{mark}"
