"""Comparisons on virtual time: the state machines, policies and reports of real runs, on modelled workers.

`ClusterModel` describes machines, network and coordinator; `JobSimulator` runs a job on it, training its data for real
or following a progress curve that was fitted to them; `simulate` runs all candidates. Never reads a clock: the same
request gives the same record, to the last byte.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from flegel.compare.candidate import Candidate
from flegel.compare.comparison import (
    LIMIT_FACTOR,
    MAX_VALUES_TO_CHECK_EACH,
    ComparisonRunner,
    ComparisonSettings,
    RaceTarget,
    check_numbers,
)
from flegel.compare.picture import picture
from flegel.compare.record import Attempt, Comparison, RunEnvironment
from flegel.compare.stats import loosened, thinned
from flegel.configuration.active import active
from flegel.core.precision import SMALLEST_DIVISOR
from flegel.core.pytree import Tree, flatten, starting
from flegel.core.shard import TILE, Shard, Sparse, make_shard
from flegel.core.stop_flag import new_flag
from flegel.declarations.accepts import RowHooks
from flegel.declarations.kernels import KernelHooks
from flegel.declarations.optional import hook
from flegel.errors import FlegelError, UsageError
from flegel.job import AlgorithmRef, Criteria, Job, SyncSpec
from flegel.machine.balance.balance_control import BalanceControl
from flegel.machine.balance.part import BalancePart
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import Timeouts
from flegel.machine.coordinator.observation import JobSnapshot
from flegel.messages import LoadShard, TreeLayout
from flegel.params.local import LocalStore
from flegel.plan.stragglers import parse_stragglers
from flegel.results.result import Result, sections, utilization, worker_rows
from flegel.runtime.backends.registry import choose
from flegel.runtime.job.collected_result import remarks
from flegel.runtime.job.prepared_job import PreparedJob
from flegel.runtime.job.request import Request, check_data
from flegel.runtime.worker.row_sources import reorder
from flegel.sim.coordinator_cost import MEASURED, Costs
from flegel.sim.learning_curve import CurveLearner, FittedProgress, curve, fit
from flegel.sim.network import Network, NetworkSpec
from flegel.sim.simulation import Simulation
from flegel.sim.speeds import Course, Speeds, draw
from flegel.sim.trainer import BackendLearner, CallPace, KernelLearner, Learner, Pace
from flegel.sync import balance_mode, make_policy, matching
from flegel.wording import counted

if TYPE_CHECKING:
    from flegel.torch.backend import NetworkBackend

MAX_SIMULATED_WORKERS = 200_000  # a pass of so many takes a minute of real time
MAX_TRAINED_WORKERS = 256  # up to which points are trained for real by default
CURVE_POINTS_PER_WORKER = 8192  # where progress follows a curve: fine enough for intervals of a thousandth of a pass
FIT_UPDATES_PER_PASS, FIT_WORKERS, FIT_MAX_PASSES = 8, 16, 100  # of the training that a curve is fitted to
MAX_RECORDED_WORKERS = 256  # in the record of a comparison, chosen evenly: a report draws a line for each
NO_TIMEOUTS = Timeouts(load=float("inf"), silence=float("inf"), report=float("inf"))


@dataclass(frozen=True)
class ClusterModel:
    """Speeds of workers, network and costs of the coordinator."""

    pass_seconds: float = 1.0
    """Seconds of one thread of the typical worker for a pass over its shard."""
    speeds: Speeds = field(default_factory=Speeds)
    network: NetworkSpec = field(default_factory=lambda: NetworkSpec(latency=MEASURED.message))
    costs: Costs = MEASURED
    learning: str = "auto"
    """`real`, `curve`, or `auto`: real for few workers."""
    size: int | None = None
    """Bytes of θ and of a report; those of the algorithm where None."""
    rates: dict[int, float] | None = None
    """Points a second by worker, where they are known."""
    courses: dict[int, Course] = field(default_factory=dict)
    progress: FittedProgress | None = None
    """A progress curve, where one is fitted already."""
    call: float = 0.0
    """Seconds of each call of the library besides its points, for algorithms that have a backend of their own."""
    threads: int = 1
    """Of each worker: a team, which is so many times as fast (docs/teams.md)."""


class JobSimulator:
    """Runs jobs of one algorithm and data set on a cluster model."""

    def __init__(self, settings: ComparisonSettings, model: ClusterModel) -> None:
        """Prepare the job once: shards of all simulated workers for real training, or a progress curve fitted
        to a few."""
        self.settings, self.model, self.workers = settings, model, settings.workers
        job = Job(workers=min(self.workers, settings.data.rows), seed=settings.seed)
        self.request = Request(settings.algorithm, settings.data, job)
        check_data(self.request)
        self.plan = PreparedJob(self.request, None)
        self.real = self._is_real()
        """Simulated workers train real rows; otherwise their progress follows a fitted curve."""
        self.size = model.size
        self.progress: FittedProgress | None = None
        self.reference = (0.0, 0.0)
        """Passes and objective at which bsp counts as converged, where that comes from a fit."""
        if not self.real:
            arrays = (flatten(self.plan.parameter), flatten(self.plan.zero))
            self.size = model.size or max(sum(a.nbytes for a in each) for each in arrays)
            self.progress = model.progress or self._fit()
        else:
            self._kernel = self.plan.compile().kernel
            self._shards = self._make_shards(self.workers)

    def _is_real(self) -> bool:
        """Whether simulated workers train their points, or learning follows a curve; refuses what cannot work."""
        rows, wanted = self.settings.data.rows, self.model.learning
        if wanted not in ("auto", "real", "curve"):
            raise UsageError(f"--learning {wanted!r} must be auto, real or curve.")
        if wanted == "real" and rows < TILE * self.workers:
            raise UsageError(
                f"{counted(rows, 'row')} are too few to be trained for real by {counted(self.workers, 'worker')}; give "
                f"{TILE * self.workers} or more, or --learning curve."
            )
        if wanted == "auto":
            few = self.workers <= MAX_TRAINED_WORKERS and rows >= TILE * self.workers
            return few and self.model.progress is None
        return wanted == "real"

    def _make_shards(self, workers: int) -> list[Shard]:
        """The shards that a real job with the same seed has."""
        data, algorithm = self.settings.data, self.settings.algorithm
        features, labels, _, weights = data.read()
        unit = hook(algorithm, RowHooks.unit_rows)()
        shards = []
        for index, ids in enumerate(data.owners(workers, self.settings.partition, self.settings.seed)):
            rows: Any = reorder(features, ids) if isinstance(features, Sparse) else features[ids]
            state = algorithm.initState(len(ids), data.columns, np.random.default_rng([self.settings.seed, index]))
            own = algorithm.accepts.kept_labels(None if labels is None else labels[ids])
            mine = None if weights is None else weights[ids]
            layout = hook(algorithm, KernelHooks.layout_for)(data.columns)
            shards.append(make_shard(rows, own, state, layout, ids, weights=mine, unit=unit))
        return shards

    def _learners(self, shards: list[Shard]) -> dict[int, Learner]:
        algorithm, flag = self.settings.algorithm, new_flag()
        fresh = [replace(s, state=s.state.copy(), halted=np.zeros_like(s.halted)) for s in shards]
        if own := algorithm.kernels.backend:
            backend = cast("NetworkBackend", choose("cpu", own)).by_clock(lambda: 0.0)
            theta, zero = self.plan.parameter, self.plan.zero
            kernels = [backend.build(algorithm, s, theta, zero, interpret=False) for s in fresh]
            return {i: BackendLearner(algorithm, kernels[i], s, flag) for i, s in enumerate(fresh)}
        return {i: KernelLearner(algorithm, self._kernel, s, self.plan.zero, flag) for i, s in enumerate(fresh)}

    def _fit(self) -> FittedProgress:
        """Real training by a few equal workers, with updates every eighth of a pass and every pass."""
        self.settings.log(f"fitting a progress curve to {self.settings.data.rows:,} rows, trained for real")
        count = min(FIT_WORKERS, max(1, self.settings.data.rows // TILE))
        self._kernel, shards = self.plan.compile().kernel, self._make_shards(count)
        points = max(s.points for s in shards)
        found = []
        for sync, per_pass in (
            (SyncSpec("fsp", 1.0 / FIT_UPDATES_PER_PASS), FIT_UPDATES_PER_PASS),
            (SyncSpec("bsp"), 1),
        ):
            job = self._coordinator(
                self.settings.algorithm,
                self.plan.parameter,
                self.plan.zero,
                sync,
                Criteria(max_iterations=FIT_MAX_PASSES * per_pass, tolerance=1e-6),
                count,
                None,
            )
            Simulation(
                job, {i: Pace(float(points)) for i in range(count)}, self._learners(shards), Costs(0.0, 0.0)
            ).run()
            visits = np.cumsum([row.visits for row in job.trace]) / self.settings.data.rows
            pairs = zip(visits.tolist(), (row.estimate for row in job.trace), strict=True)
            found.append([(p, float(f)) for p, f in pairs if f is not None])
        if not found[0] or not found[1]:
            raise UsageError(f"{type(self.settings.algorithm).__name__} has no objective, so there is nothing to fit.")
        self.reference = _converged_at(found[1], self.settings.tolerance)
        return fit(found[0], found[1], 1.0 / FIT_UPDATES_PER_PASS, self.settings.algorithm.learning.maximize)

    def _coordinator(
        self,
        algorithm: Any,
        parameter: Tree,
        zero: Tree,
        sync: SyncSpec,
        criteria: Criteria,
        workers: int,
        balancing: BalanceControl | None,
    ) -> Coordinator:
        """The coordinator of a real job, with θ in its memory, no time limits for workers, and balance where it is
        given."""
        form = TreeLayout("array", ())
        load = LoadShard(AlgorithmRef("", {}), {}, 0, workers, self.settings.seed, form, form)
        store = LocalStore(algorithm, starting(parameter, algorithm.placement.typed), zero)
        return Coordinator(
            algorithm,
            make_policy(sync),
            criteria,
            store,
            dict.fromkeys(range(workers), load),
            timeouts=NO_TIMEOUTS,
            parts=[] if balancing is None else [BalancePart(balancing)],
        )

    def run(
        self,
        candidate: Candidate,
        criteria: Criteria,
        straggler: str,
        seed: int,
        watch: Callable[[JobSnapshot], None] | None = None,
    ) -> Result:
        """One job to its end; `seed` decides speeds, stragglers and the network's jitter."""
        sync = SyncSpec(candidate.sync, **candidate.options)
        self._check(sync)
        mode = balance_mode(sync, self.workers) if self.real else "off"
        balancing = None if mode == "off" else BalanceControl(mode, criteria, matching=matching(sync))
        learners: dict[int, Learner]
        if self.progress is not None:
            algorithm: Any = curve(self.progress, self.workers * CURVE_POINTS_PER_WORKER)
            job = self._coordinator(algorithm, np.zeros(2), np.zeros(2), sync, criteria, self.workers, None)
            learners = {
                w: CurveLearner(CURVE_POINTS_PER_WORKER, self.settings.data.columns) for w in range(self.workers)
            }
        else:
            algorithm, plan = self.settings.algorithm, self.plan
            job = self._coordinator(algorithm, plan.parameter, plan.zero, sync, criteria, self.workers, balancing)
            learners = self._learners(self._shards)
        network = Network(self.model.network, self.workers, seed)
        paces = self._paces(straggler, seed)
        Simulation(job, paces, learners, self.model.costs, network, self.size).run(watch=watch)
        return self._result(candidate, job)

    def _check(self, sync: SyncSpec) -> None:
        """Refuses what the cluster model cannot represent."""
        if self.progress is not None and sync.balance not in (None, "off"):
            raise UsageError("With a progress curve there are no points that could move; use --learning real.")

    def _paces(self, straggler: str, seed: int) -> dict[int, Pace]:
        """The speed of each simulated worker: as recorded, or drawn from the model, with stragglers."""
        slow = parse_stragglers(straggler, self.workers, seed)
        model, count = self.model, self.workers
        if model.rates is not None:
            rates = model.rates
            if self.progress is not None:  # units stand for points
                scale = CURVE_POINTS_PER_WORKER / (self.settings.data.rows / count)
                rates = {w: r * scale for w, r in rates.items()}
            courses = model.courses
        else:
            factors, courses = draw(model.speeds, count, seed)
            share = CURVE_POINTS_PER_WORKER if self.progress is not None else self.settings.data.rows / count
            rates = {w: share / model.pass_seconds * model.threads * factors[w] for w in range(count)}
        paces = {w: Pace(rates[w], slow, w, count, courses.get(w)) for w in range(count)}
        if not self.settings.algorithm.kernels.in_batches:
            return paces
        rules, smallest = active().networks, active().training.batched_call_multiple
        return {w: CallPace(pace, model.call, smallest, rules.processor_samples) for w, pace in paces.items()}

    def _result(self, candidate: Candidate, job: Coordinator) -> Result:
        """The result of a simulated job, in the form of a real one; its seconds are virtual."""
        assert job.verdict is not None
        workers = worker_rows(job)
        values = (row.estimate for row in reversed(job.trace))
        algorithm, data = self.settings.algorithm, self.settings.data
        return Result(
            algorithm=algorithm,
            name=type(algorithm).__name__.lower(),
            dataset=data.summary(),
            sync=candidate.sync,
            workers=self.workers,
            seed=self.settings.seed,
            converged=job.verdict.converged,
            reason=job.verdict.reason,
            outcome=job.verdict.outcome,
            objective=next((v for v in values if v is not None), None),
            iterations=job.iteration,
            seconds=job.state.seconds,
            load_seconds=0.0,
            rows=[vars(row) for row in job.trace],
            worker=workers,
            utilization=utilization(workers),
            staleness=dict(sorted(job.commits.staleness.items())),
            parameter=job.commits.final_parameter(),
            kernel="simulated",
            sync_choice=job.state.policy.choice,
            warnings=remarks(job) if self.real else [],
            classes=data.classes,
            **sections(job),
        )


def _converged_at(curve: list[tuple[float, float]], tolerance: float) -> tuple[float, float]:
    """Where a pass first changes the objective by no more than the tolerance."""
    for (_, before), (passes, value) in itertools.pairwise(curve):
        if abs(value - before) <= tolerance * max(abs(before), SMALLEST_DIVISOR):
            return passes, value
    return curve[-1]


class SimulationRunner(ComparisonRunner):
    """A comparison whose runs are simulated."""

    settings: SimulationSettings

    def __init__(self, settings: SimulationSettings) -> None:
        super().__init__(settings, None)
        self.simulator = JobSimulator(settings, settings.model)
        self.last: Result | None = None
        """The last run: its length limits the next one."""
        self.runs: dict[str, Result] = {}
        """The first run of each candidate."""
        self._seed = settings.seed
        self.notes.append(describe(self.simulator))

    def _environment(self) -> RunEnvironment | None:
        return None

    def _target(self) -> RaceTarget:
        """Find the target as for real runs where points are trained; from the fit of the progress curve otherwise. Time
        limits are in virtual seconds."""
        settings = self.settings
        if settings.target is not None:
            limit = settings.max_seconds or self._default_limit()
            return RaceTarget(settings.target, settings.target_note, limit)
        if self.simulator.progress is None:
            target, note, limit = super()._target()
            if settings.max_seconds is None:  # virtual seconds cost nothing
                limit = LIMIT_FACTOR * self.last.seconds if self.last else self._default_limit()
            return RaceTarget(target, note, limit)
        passes, end = self.simulator.reference
        target = loosened(end, settings.within, self.maximize)
        note = f"within {100 * settings.within:.2g} % of the {end:.6g} that bsp, trained for real, converged to in "
        note += f"{passes:.0f} passes"
        return RaceTarget(target, note, settings.max_seconds or self._default_limit())

    def _default_limit(self) -> float:
        """Seconds after which a run is stopped: a thousand passes of the typical worker."""
        return 1000 * self.simulator.model.pass_seconds

    def _run(self, candidate: Candidate, **criteria: Any) -> Result:
        """As `flegel.run` would."""
        straggler = criteria.pop("straggler", "")
        watch = self.settings.watch(candidate.label)
        self.last = self.simulator.run(candidate, Criteria(**criteria), straggler, self._seed, watch)
        return self.last

    def _check(self) -> None:
        """Only where points were trained, and few enough to look at them all."""
        if self.simulator.real and self.settings.data.rows * self.settings.data.columns <= MAX_VALUES_TO_CHECK_EACH:
            super()._check()

    def _attempt(self, candidate: Candidate, number: int, again: bool = False) -> Attempt:
        """One simulated run. Repeated runs differ by their seed: virtual time has no noise of its own."""
        settings = self.settings
        self._seed = settings.seed + 1000 * number
        slowed = {"straggler": settings.straggler} if settings.straggler else {}
        try:
            result = self._run(candidate, target=self.target, tolerance=0.0, max_seconds=self.limit, **slowed)
        except UsageError:
            raise
        except FlegelError as error:
            attempt = Attempt(candidate=candidate.label, round=number, outcome="failed", reason=str(error))
        else:
            attempt = self._judge(candidate, number, result)
            shown = picture(result.rows, thinned(result.worker, MAX_RECORDED_WORKERS), result.staleness)
            self.results[len(self.attempts)] = (result, shown)
            self.runs.setdefault(candidate.label, result)
        self.attempts.append(attempt)
        settings.log(_describe(attempt, settings.repeat))
        return attempt


def _describe(attempt: Attempt, repeat: int) -> str:
    time = f"{attempt.reached:.4g} s" if attempt.reached is not None else f"{attempt.outcome} ({attempt.reason})"
    turn = f"{attempt.round + 1}/{repeat} " if repeat > 1 else ""
    return f"{turn}{attempt.candidate}: {time}, {attempt.barriers} updates of θ"


def describe(simulator: JobSimulator) -> str:
    """The cluster model in a sentence, which stands as a note in every record."""
    model, costs, network = simulator.model, simulator.model.costs, simulator.model.network
    speeds = "speeds as recorded" if model.courses else f"speeds {model.speeds.spread}"
    if model.rates is None:
        speeds = f"a pass of the typical worker takes {model.pass_seconds / model.threads:g} s, {speeds}"
    if model.threads > 1:
        speeds = f"workers are teams of {model.threads} threads, {speeds}"
    if model.speeds.drift:
        speeds += f", drifting by {model.speeds.drift.size:g} every {model.speeds.drift.every:g} s"
    if model.speeds.spot:
        speeds += f", revoked {model.speeds.spot.per_hour:g} times an hour for {model.speeds.spot.outage:g} s"
    racks = f" in {network.racks} racks" if network.racks > 1 else ""
    if simulator.progress is not None:
        learning = f"progress follows a curve fitted to real training, with a loss κ = {simulator.progress.loss:.2f}"
    else:
        learning = "every point is trained for real"
    size = f", {simulator.size:,} bytes of θ" if simulator.size else ""
    return (
        f"Simulated, on virtual time: {speeds}; {network.latency * 1e6:.0f} µs to the coordinator{racks}, whose thread "
        f"takes {costs.merge * 1e6:.0f} µs a report and {costs.send * 1e6:.0f} µs an order{size}; "
        f"{learning}."
    )


@dataclass
class SimulationSettings(ComparisonSettings):
    """A comparison and the cluster model on which it runs."""

    model: ClusterModel = field(default_factory=ClusterModel)
    watch: Callable[[str], Callable[[JobSnapshot], None] | None] = lambda label: None
    """Given a candidate's label, a function to call now and then with a snapshot of its job, or None."""


def simulation_runner(settings: SimulationSettings) -> SimulationRunner:
    """Checks the settings; the runner's `runs` has the first run of each candidate afterwards."""
    if not 1 <= settings.workers <= MAX_SIMULATED_WORKERS:
        raise UsageError(
            f"The number of simulated workers must be 1 to {MAX_SIMULATED_WORKERS:,}, not {settings.workers:,}."
        )
    check_numbers(settings)
    return SimulationRunner(settings)


def simulate(settings: SimulationSettings) -> Comparison:
    """Run all candidates."""
    return simulation_runner(settings).run()


__all__ = ["ClusterModel", "JobSimulator", "SimulationRunner", "SimulationSettings", "simulate", "simulation_runner"]
