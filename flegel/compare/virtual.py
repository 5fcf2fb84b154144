"""Contests on virtual time: the same machines, policies and reports as in a real one, on workers that are models.

`World` says what machines, network and coordinator are like; `Stage` puts a job onto it, with its data trained for
real or with a curve that was fitted to them; `simulate` runs all contenders. Nothing here reads a clock, so that the
same request gives the same record, to the last byte.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flegel.compare.contender import Contender
from flegel.compare.contest import CHECK_EACH_UP_TO, LIMIT_FACTOR, Arena, Contest, check_numbers
from flegel.compare.picture import picture
from flegel.compare.record import Attempt, Comparison, Setting
from flegel.compare.stats import loosened, thinned
from flegel.errors import FlegelError, UsageError
from flegel.machine.balancing import Balancing
from flegel.machine.coordinator import Coordinator
from flegel.machine.events import Patience
from flegel.machine.ledger import Ledger
from flegel.messages import Form, Load
from flegel.plan.straggler import parse_stragglers
from flegel.result import Result, balance_row, utilization, worker_rows
from flegel.runtime.flag import new_flag
from flegel.runtime.rows import reorder
from flegel.runtime.run import Plan, Request, check_data, remarks
from flegel.share import TILE, Share, Sparse, make_share
from flegel.sim.cluster import Simulation
from flegel.sim.desk import MEASURED, Costs
from flegel.sim.learning import Curve, CurveLearner, Progress, curve, fit
from flegel.sim.network import Network, Wires
from flegel.sim.speeds import Course, Speeds, draw
from flegel.sim.trainer import KernelLearner, Learner, Pace
from flegel.spec import AlgorithmRef, Criteria, SyncSpec
from flegel.sync import balance_mode, make_policy
from flegel.tree import Tree, as_float64, flatten

MOST = 200_000  # workers
REAL_UP_TO = 256  # workers whose points are trained for real unless asked for
UNITS = 8192  # points of a worker where nothing is trained
FINE, FITTED, MOST_PASSES = 8, 16, 100  # updates a pass, workers and passes of the training that a curve is fitted to
SHOWN = 256  # workers in a record
FOR_EVER = Patience(load=float("inf"), silence=float("inf"), report=float("inf"))


@dataclass(frozen=True)
class World:
    """What everything is like."""

    pass_seconds: float = 1.0
    """What the typical worker needs for a pass over its share."""
    speeds: Speeds = field(default_factory=Speeds)
    wires: Wires = field(default_factory=lambda: Wires(latency=MEASURED.message))
    costs: Costs = MEASURED
    learning: str = "auto"
    """`real`, `curve`, or `auto`: real for few workers."""
    size: int | None = None
    """Bytes of θ and of a report; those of the algorithm where None."""
    rates: dict[int, float] | None = None
    """Points a second by worker, where they are known."""
    courses: dict[int, Course] = field(default_factory=dict)
    progress: Progress | None = None
    """A curve to go by, where there is one already."""


class Stage:
    """A job's data and algorithm in a world."""

    def __init__(self, contest: Contest, world: World) -> None:
        self.contest, self.world, self.workers = contest, world, contest.workers
        self.request = Request(contest.algorithm, contest.data, min(self.workers, contest.data.rows), seed=contest.seed)
        check_data(self.request)
        self.plan = Plan(self.request, None)
        self.real = self._is_real()
        self.size = world.size
        self.progress: Progress | None = None
        self.reference = (0.0, 0.0)
        """Passes and objective at which bsp counts as converged, where that comes from a fit."""
        if not self.real:
            arrays = (flatten(self.plan.parameter), flatten(self.plan.zero))
            self.size = world.size or max(sum(a.nbytes for a in each) for each in arrays)
            self.progress = world.progress or self._fit()
        else:
            self._kernel = self.plan.compile().kernel
            self._shares = self._deal(self.workers)

    def _is_real(self) -> bool:
        rows, wanted = self.contest.data.rows, self.world.learning
        if wanted not in ("auto", "real", "curve"):
            raise UsageError(f"--learning {wanted!r} must be auto, real or curve.")
        if wanted == "real" and rows < TILE * self.workers:
            raise UsageError(
                f"{rows} rows are too few to be trained for real by {self.workers} workers; give {TILE * self.workers} "
                "or more, or --learning curve."
            )
        if wanted == "auto":
            few = self.workers <= REAL_UP_TO and rows >= TILE * self.workers
            return few and self.world.progress is None
        return wanted == "real"

    def _deal(self, workers: int) -> list[Share]:
        """The shares of a real job with the same seed."""
        data, algorithm = self.contest.data, self.contest.algorithm
        features, labels = data.load()
        shares = []
        for index, ids in enumerate(data.owners(workers, self.contest.partition, self.contest.seed)):
            rows: Any = reorder(features, ids) if isinstance(features, Sparse) else features[ids]
            state = algorithm.initState(len(ids), data.columns, np.random.default_rng([self.contest.seed, index]))
            own = labels[ids] if labels is not None and algorithm.supervised else None
            shares.append(make_share(rows, own, state, algorithm.layout, ids))
        return shares

    def _learners(self, shares: list[Share]) -> dict[int, Learner]:
        algorithm, flag = self.contest.algorithm, new_flag()
        fresh = [replace(s, state=s.state.copy(), halted=np.zeros_like(s.halted)) for s in shares]
        return {i: KernelLearner(algorithm, self._kernel, s, self.plan.zero, flag) for i, s in enumerate(fresh)}

    def _fit(self) -> Progress:
        """Real training by a few equal workers, with updates every eighth of a pass and every pass."""
        self.contest.say(f"fitting a progress curve to {self.contest.data.rows:,} rows, trained for real")
        count = min(FITTED, max(1, self.contest.data.rows // TILE))
        self._kernel, shares = self.plan.compile().kernel, self._deal(count)
        points = max(s.points for s in shares)
        found = []
        for sync, per_pass in ((SyncSpec("fsp", 1.0 / FINE), FINE), (SyncSpec("bsp"), 1)):
            job = self._coordinator(
                self.contest.algorithm, self.plan.parameter, self.plan.zero, sync,
                Criteria(max_iterations=MOST_PASSES * per_pass, tolerance=1e-6), count, None,
            )  # fmt: skip
            Simulation(
                job, {i: Pace(float(points)) for i in range(count)}, self._learners(shares), Costs(0.0, 0.0)
            ).run()
            visits = np.cumsum([row.visits for row in job.trace]) / self.contest.data.rows
            pairs = zip(visits.tolist(), (row.estimate for row in job.trace), strict=True)
            found.append([(p, float(f)) for p, f in pairs if f is not None])
        if not found[0] or not found[1]:
            raise UsageError(f"{type(self.contest.algorithm).__name__} has no objective, so there is nothing to fit.")
        self.reference = _settled(found[1], self.contest.tolerance)
        return fit(found[0], found[1], 1.0 / FINE, self.contest.algorithm.maximize)

    def _coordinator(
        self,
        algorithm: Any,
        parameter: Tree,
        zero: Tree,
        sync: SyncSpec,
        criteria: Criteria,
        workers: int,
        balancing: Balancing | None,
    ) -> Coordinator:
        form = Form("array", ())
        load = Load(AlgorithmRef("", {}), {}, 0, workers, self.contest.seed, form, form)
        return Coordinator(
            algorithm, make_policy(sync), criteria, as_float64(parameter), Ledger(algorithm, zero),
            dict.fromkeys(range(workers), load), patience=FOR_EVER, balancing=balancing,
        )  # fmt: skip

    def run(
        self,
        contender: Contender,
        criteria: Criteria,
        straggler: str,
        dice: int,
        watch: Callable[[Coordinator], None] | None = None,
    ) -> Result:
        """One job to its end. `dice` decides speeds, stragglers and the network's jitter."""
        sync = SyncSpec(contender.sync, **contender.options)
        self._check(sync)
        mode = balance_mode(sync, self.workers) if self.real and not self.world.costs.tree else "off"
        balancing = None if mode == "off" else Balancing(mode, criteria)
        learners: dict[int, Learner]
        if self.progress is not None:
            algorithm: Any = curve(self.progress, self.workers * UNITS)
            job = self._coordinator(algorithm, np.zeros(2), np.zeros(2), sync, criteria, self.workers, None)
            learners = {w: CurveLearner(UNITS, self.contest.data.columns) for w in range(self.workers)}
        else:
            algorithm, plan = self.contest.algorithm, self.plan
            job = self._coordinator(algorithm, plan.parameter, plan.zero, sync, criteria, self.workers, balancing)
            learners = self._learners(self._shares)
        network = Network(self.world.wires, self.workers, dice)
        paces = self._paces(straggler, dice)
        Simulation(job, paces, learners, self.world.costs, network, self.size).run(watch=watch)
        return self._result(contender, job)

    def _check(self, sync: SyncSpec) -> None:
        """What this world cannot show is refused rather than shown wrong."""
        if self.progress is not None and sync.balance not in (None, "off"):
            raise UsageError("With a progress curve there are no points that could move; use --learning real.")
        if self.world.costs.tree and (sync.name in ("ssp", "asp", "psp") or sync.balance not in (None, "off")):
            raise UsageError(f"--tree is a model of barriers for everybody; {sync.name} cannot be simulated with it.")

    def _paces(self, straggler: str, dice: int) -> dict[int, Pace]:
        slow = parse_stragglers(straggler, self.workers, dice)
        world, count = self.world, self.workers
        if world.rates is not None:
            rates = world.rates
            if self.progress is not None:  # units stand for points
                scale = UNITS / (self.contest.data.rows / count)
                rates = {w: r * scale for w, r in rates.items()}
            courses = world.courses
        else:
            factors, courses = draw(world.speeds, count, dice)
            share = UNITS if self.progress is not None else self.contest.data.rows / count
            rates = {w: share / world.pass_seconds * factors[w] for w in range(count)}
        return {w: Pace(rates[w], slow, w, count, courses.get(w)) for w in range(count)}

    def _result(self, contender: Contender, job: Coordinator) -> Result:
        assert job.verdict is not None
        workers = worker_rows(job)
        values = (row.estimate for row in reversed(job.trace))
        algorithm, data = self.contest.algorithm, self.contest.data
        return Result(
            algorithm=algorithm,
            name=type(algorithm).__name__.lower(),
            dataset=data.summary(),
            sync=contender.sync,
            workers=self.workers,
            seed=self.contest.seed,
            converged=job.verdict.converged,
            reason=job.verdict.reason,
            objective=next((v for v in values if v is not None), None),
            iterations=job.iteration,
            seconds=job.seconds,
            load_seconds=0.0,
            rows=[vars(row) for row in job.trace],
            worker=workers,
            utilization=utilization(workers),
            staleness=dict(sorted(job.staleness.items())),
            parameter=job.final_parameter(),
            kernel="simulated",
            warnings=remarks(job) if self.real else [],
            classes=data.classes,
            balance=balance_row(job),
        )


def _settled(curve: list[tuple[float, float]], tolerance: float) -> tuple[float, float]:
    """Where a pass first changes the objective by no more than the tolerance."""
    for (_, before), (passes, value) in itertools.pairwise(curve):
        if abs(value - before) <= tolerance * max(abs(before), 1e-300):
            return passes, value
    return curve[-1]


class VirtualArena(Arena):
    """A contest on a stage."""

    contest: VirtualContest

    def __init__(self, contest: VirtualContest) -> None:
        super().__init__(contest, None)
        self.stage = Stage(contest, contest.world)
        self.last: Result | None = None
        self.runs: dict[str, Result] = {}
        """The first run of each contender."""
        self._dice = contest.seed
        self.notes.append(described(self.stage))

    def _setting(self) -> Setting | None:
        return None

    def _target(self) -> tuple[float, str, float]:
        contest = self.contest
        if contest.target is not None:
            return contest.target, contest.target_note, contest.max_seconds or self._long()
        if self.stage.progress is None:
            target, note, limit = super()._target()
            if contest.max_seconds is None:  # virtual seconds cost nothing
                limit = LIMIT_FACTOR * self.last.seconds if self.last else self._long()
            return target, note, limit
        passes, end = self.stage.reference
        target = loosened(end, contest.within, self.maximize)
        note = f"within {100 * contest.within:.2g} % of the {end:.6g} that bsp, trained for real, converged to in "
        note += f"{passes:.0f} passes"
        return target, note, contest.max_seconds or self._long()

    def _long(self) -> float:
        """Seconds after which a run is given up: a thousand passes of the typical worker."""
        return 1000 * self.stage.world.pass_seconds

    def _run(self, contender: Contender, **criteria: Any) -> Result:
        """As `flegel.run` would."""
        straggler = criteria.pop("straggler", "")
        watch = self.contest.watch(contender.label)
        self.last = self.stage.run(contender, Criteria(**criteria), straggler, self._dice, watch)
        return self.last

    def _check(self) -> None:
        """Only where points were trained, and few enough to look at them all."""
        if self.stage.real and self.contest.data.rows * self.contest.data.columns <= CHECK_EACH_UP_TO:
            super()._check()

    def _attempt(self, contender: Contender, number: int, again: bool = False) -> Attempt:
        contest = self.contest
        self._dice = contest.seed + 1000 * number
        slowed = {"straggler": contest.straggler} if contest.straggler else {}
        try:
            result = self._run(contender, target=self.target, tolerance=0.0, max_seconds=self.limit, **slowed)
        except UsageError:
            raise
        except FlegelError as error:
            attempt = Attempt(contender=contender.label, round=number, outcome="failed", reason=str(error))
        else:
            attempt = self._judge(contender, number, result)
            shown = picture(result.rows, thinned(result.worker, SHOWN), result.staleness)
            self.results[len(self.attempts)] = (result, shown)
            self.runs.setdefault(contender.label, result)
        self.attempts.append(attempt)
        contest.say(_told(attempt, contest.repeat))
        return attempt


def _told(attempt: Attempt, repeat: int) -> str:
    time = f"{attempt.reached:.4g} s" if attempt.reached is not None else f"{attempt.outcome} ({attempt.reason})"
    turn = f"{attempt.round + 1}/{repeat} " if repeat > 1 else ""
    return f"{turn}{attempt.contender}: {time}, {attempt.barriers} updates of θ"


def described(stage: Stage) -> str:
    """The world in a sentence: what a reader must know before believing a figure."""
    world, costs, wires = stage.world, stage.world.costs, stage.world.wires
    speeds = "speeds as recorded" if world.courses else f"speeds {world.speeds.spread}"
    if world.rates is None:
        speeds = f"a pass of the typical worker takes {world.pass_seconds:g} s, {speeds}"
    if world.speeds.drift:
        speeds += f", drifting by {world.speeds.drift.size:g} every {world.speeds.drift.every:g} s"
    if world.speeds.spot:
        speeds += f", revoked {world.speeds.spot.per_hour:g} times an hour for {world.speeds.spot.outage:g} s"
    racks = f" in {wires.racks} racks" if wires.racks > 1 else ""
    if stage.progress is not None:
        learning = f"progress follows a curve fitted to real training, with a loss κ = {stage.progress.loss:.2f}"
    else:
        learning = "every point is trained for real"
    size = f", {stage.size:,} bytes of θ" if stage.size else ""
    groups = f"; heads of groups of {costs.tree} between, which the engine does not have" if costs.tree else ""
    shards = f"; θ in {costs.shards} parts, which the engine does not have" if costs.shards > 1 else ""
    return (
        f"Simulated, on virtual time: {speeds}; {wires.latency * 1e6:.0f} µs to the coordinator{racks}, whose thread "
        f"takes {costs.merge * 1e6:.0f} µs a report and {costs.send * 1e6:.0f} µs an order{size}{groups}{shards}; "
        f"{learning}."
    )


@dataclass
class VirtualContest(Contest):
    """A contest and the world in which it is held."""

    world: World = field(default_factory=World)
    watch: Callable[[str], Callable[[Coordinator], None] | None] = lambda label: None
    """Given a contender, what to call now and then with its coordinator."""


def arena(contest: VirtualContest) -> VirtualArena:
    """Ready to hold it; afterwards it has the runs too."""
    if not 1 <= contest.workers <= MOST:
        raise UsageError(f"The number of simulated workers must be 1 to {MOST:,}, not {contest.workers:,}.")
    check_numbers(contest)
    return VirtualArena(contest)


def simulate(contest: VirtualContest) -> Comparison:
    """Hold it."""
    return arena(contest).hold()


__all__ = ["Curve", "Stage", "VirtualArena", "VirtualContest", "World", "arena", "simulate"]
