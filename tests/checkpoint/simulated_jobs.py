"""Simulated jobs that keep checkpoints and go on from any of them: the machines of a real job on virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flegel.algorithm import Sample
from flegel.algorithms.kmeans import KMeans
from flegel.core import pytree
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag
from flegel.job import AlgorithmRef, Criteria, SyncSpec
from flegel.machine.balance.balance_control import BalanceControl
from flegel.machine.balance.part import BalancePart
from flegel.machine.checkpoint import shard_states
from flegel.machine.checkpoint.checkpoint_schedule import CheckpointSchedule
from flegel.machine.checkpoint.events import BeginCheckpoint, SaveCheckpointPart, SaveCommit
from flegel.machine.checkpoint.part import CheckpointsPart
from flegel.machine.checkpoint.resume import NewerCommit, restore
from flegel.machine.checkpoint.shard_states import WorkerState
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import Timeouts
from flegel.machine.coordinator.part import CoordinatorPart
from flegel.machine.plain_data import pack, unpack
from flegel.messages import LoadShard, TreeLayout
from flegel.params.local import LocalStore
from flegel.plan.stragglers import parse_stragglers
from flegel.runtime.backends.numba.kernels import build_kernel
from flegel.sim.simulation import Costs, simulate
from flegel.sim.trainer import KernelLearner, Pace
from flegel.sync import balance_mode, make_policy

FOR_EVER = Timeouts(load=float("inf"), silence=float("inf"), report=float("inf"))
ROWS, COLUMNS = 3000, 4


def data(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    means = rng.normal(scale=1.2, size=(6, COLUMNS))
    return means[rng.integers(6, size=ROWS)] + rng.normal(size=(ROWS, COLUMNS))


@dataclass
class Shelf:
    """All checkpoints and commits of a simulated job."""

    saves: list[BeginCheckpoint] = field(default_factory=list)
    parts: dict[int, dict[int, WorkerState]] = field(default_factory=dict)
    commits: list[SaveCommit] = field(default_factory=list)
    numbers: dict[int, np.ndarray] = field(default_factory=dict)
    """Of each worker's points: workers send them only when they change."""

    def __call__(self, command: BeginCheckpoint | SaveCheckpointPart | SaveCommit) -> None:
        match command:
            case BeginCheckpoint():
                self.saves.append(command)
            case SaveCheckpointPart(worker, kept, arrays):
                state, halted, ids, *pending = (a.copy() for a in arrays)
                known = self.numbers[worker] = ids if len(ids) else self.numbers[worker]
                self.parts.setdefault(kept.number, {})[worker] = WorkerState(kept, known, state, halted, tuple(pending))
            case SaveCommit():
                self.commits.append(command)

    def stored(self, save: BeginCheckpoint) -> dict[str, Any]:
        """As it comes back from a file."""
        found: dict[str, Any] = unpack(pack(save.state))
        return found


def job(
    sync: SyncSpec | str,
    *,
    every: float = 0.0,
    workers: int = 3,
    criteria: Criteria | None = None,
    straggler: str = "",
    shelf: Shelf | None = None,
    save: BeginCheckpoint | None = None,
    newer: NewerCommit | None = None,
    anew: bool = False,
    seed: int = 0,
) -> Coordinator:
    """k-means under a model; with `save`, from that checkpoint of the shelf on, perhaps on other workers, perhaps with
    all points unvisited (`anew`)."""
    spec = SyncSpec(sync) if isinstance(sync, str) else sync
    rows = data(seed)
    algorithm = KMeans(k=5, init="random")
    sample = Sample(rows, None, ROWS, COLUMNS)
    theta = pytree.as_doubles(algorithm.initParameter(sample, np.random.default_rng(seed)))
    zero = pytree.zeros_like(algorithm.initAggregator(sample, theta))
    owners = np.array_split(np.random.default_rng(9).permutation(ROWS), workers)
    parts: list[WorkerState] = []
    if save is not None:
        assert shelf is not None
        held = [shelf.parts[save.number][w] for w in save.workers]
        parts = held if len(held) == workers else shard_states.redeal(held, workers)
        if anew:
            fresh = np.random.default_rng(1)
            parts = [shard_states.unvisited(p, algorithm.initState(p.points, COLUMNS, fresh)) for p in parts]
        owners = [p.ids for p in parts]
    learners = {}
    for w, ids in enumerate(owners):
        state = algorithm.initState(len(ids), COLUMNS, np.random.default_rng(w))
        share = make_shard(rows[ids], None, state, algorithm.kernels.layout, ids)
        kernel = build_kernel(algorithm, share, theta, zero).kernel
        learners[w] = KernelLearner(algorithm, kernel, share, zero, new_flag())
    form = TreeLayout("array", ())
    loads = {
        w: LoadShard(AlgorithmRef("x", {}), {}, w, workers, 0, form, form, kept=parts[w].kept if parts else None)
        for w in range(workers)
    }
    limits = criteria or Criteria(max_iterations=60, tolerance=0)
    mode = balance_mode(spec, workers)
    plugged: list[CoordinatorPart] = [] if mode == "off" else [BalancePart(BalanceControl(mode, limits))]
    if every:
        plugged.append(CheckpointsPart(CheckpointSchedule(every)))
    made = Coordinator(
        algorithm, make_policy(spec), limits, LocalStore(algorithm, theta, zero), loads,
        timeouts=FOR_EVER, debug=True, parts=plugged, shards={w: p.frames() for w, p in enumerate(parts)},
    )  # fmt: skip
    now = 0.0
    if save is not None and shelf is not None:
        stored = shelf.stored(save)
        now = stored["now"]
        restore(made, stored, dict(enumerate(parts)), newer, redealt=workers != len(save.workers))
    slow = parse_stragglers(straggler, workers)
    paces = {w: Pace(100_000.0, slow, w, workers) for w in range(workers)}
    return simulate(made, paces, dict(learners), Costs(), save=shelf or Shelf(), now=now)


def objectives(done: Coordinator) -> list[float]:
    return [row.objective for row in done.trace if row.objective is not None]
