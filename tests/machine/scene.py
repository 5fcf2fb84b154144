"""A coordinator on a stage: a tiny algorithm, loads, reports, and short ways to feed events. No clock, no workers."""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.job import AlgorithmRef, Criteria, SyncSpec
from flegel.machine.balance.balance_control import BalanceControl
from flegel.machine.balance.part import BalancePart
from flegel.machine.checkpoint.checkpoint_schedule import CheckpointSchedule
from flegel.machine.checkpoint.part import CheckpointsPart
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import Command, Done, FromWorker, Send, SetTimer, Timeouts, Timer
from flegel.machine.coordinator.part import CoordinatorPart
from flegel.messages import LoadShard, Report, ShardLoaded, Stop, Train, TreeLayout
from flegel.params.local import LocalStore
from flegel.sync import make_policy


class Mean(Algorithm):
    """Statistics are (sum, count); θ is their quotient; F is a number that the test plants in the sum."""

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.zeros(2)

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return np.array([aggregator[0] / max(aggregator[1], 1.0), aggregator[1]])

    def objective(self, aggregator: Any, parameter: Any) -> float | None:
        return float(aggregator[0])


def load(worker: int, count: int) -> LoadShard:
    form = TreeLayout("array", ())
    return LoadShard(AlgorithmRef("x", {}), {"kind": "memory"}, worker, count, 0, form, form)


class Scene:
    """One coordinator and what it has said so far."""

    def __init__(
        self,
        workers: int = 2,
        sync: str = "bsp",
        interval: float | None = None,
        points: int = 10,
        criteria: Criteria | None = None,
        algorithm: Algorithm | None = None,
        collect: bool = False,
        timeouts: Timeouts | None = None,
        coordination: str | None = None,
        replace: bool = True,
        balance: BalanceControl | None = None,
        checkpoints: CheckpointSchedule | None = None,
        store: type[LocalStore] = LocalStore,
        devices: tuple[str, ...] = (),
    ) -> None:
        self.algorithm = algorithm or Mean()
        self.count, self.points = workers, points
        parts: list[CoordinatorPart] = [] if balance is None else [BalancePart(balance)]
        if checkpoints is not None:
            parts.append(CheckpointsPart(checkpoints))
        self.machine = Coordinator(
            algorithm=self.algorithm,
            policy=make_policy(SyncSpec(sync, interval, coordination=coordination)),
            devices=devices,
            criteria=criteria or Criteria(max_iterations=100, tolerance=0),
            store=store(self.algorithm, np.zeros(2), np.zeros(2)),
            loads={w: load(w, workers) for w in range(workers)},
            collect=collect,
            timeouts=timeouts or Timeouts(),
            debug=True,
            replace_lost_workers=replace,
            parts=parts,
        )

    def start(self, now: float = 0.0) -> list[Command]:
        return self.machine.start(now)

    def loaded(self, now: float = 1.0) -> list[Command]:
        """All workers are ready; what the last one's answer set off."""
        self.start(0.0)
        said: list[Command] = []
        for worker in range(self.count):
            said = self.say(worker, ShardLoaded(self.points, 3, "compiled", "", 0.1), now)
        return said

    def say(self, worker: int, body: Any, now: float, arrays: tuple[np.ndarray, ...] = ()) -> list[Command]:
        return self.machine.handle(FromWorker(worker, body, arrays), now)

    def report(
        self,
        worker: int,
        now: float,
        change: tuple[float, float] = (1.0, 1.0),
        visits: int | None = None,
        round: int | None = None,
        exhausted: bool = True,
        unseen: int = 0,
        halted: int = 0,
    ) -> list[Command]:
        done = self.points if visits is None else visits
        number = self.machine.view.round if round is None else round
        body = Report(number, done, exhausted, unseen, halted, 0.5, 0.01, 0.02)
        return self.say(worker, body, now, (np.array(change),))

    def timer(self, name: str, now: float, tag: int = 0) -> list[Command]:
        return self.machine.handle(Timer(name, tag), now)

    @property
    def total(self) -> Any:
        return pytree.flatten(self.machine.store.statistics)[0]


def trains(commands: list[Command]) -> dict[int, Train]:
    return {c.worker: c.body for c in commands if isinstance(c, Send) and isinstance(c.body, Train)}


def stops(commands: list[Command]) -> dict[int, int]:
    """Worker to the round that it was told to end."""
    return {c.worker: c.body.round for c in commands if isinstance(c, Send) and isinstance(c.body, Stop)}


def timers(commands: list[Command]) -> dict[str, float]:
    return {c.timer.name: c.at for c in commands if isinstance(c, SetTimer)}


def done(commands: list[Command]) -> Done | None:
    return next((c for c in commands if isinstance(c, Done)), None)
