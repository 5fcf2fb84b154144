"""A cluster of played workers without sockets: frames go straight into memory and back. See coordinator_load.py --dry.

The real coordinator, driver and wire work as always; what is missing is ZeroMQ, its thread and the kernel. The seconds
that playing takes are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.common.simulated_workers import statistics
from flegel.core.pytree import Array
from flegel.messages import Answer, Envelope, LoadShard, Order, ReleaseJob, Report, ShardLoaded, Train, WorkerBeat
from flegel.runtime.transport.codec import EMPTY, PackedArrays, Sequencer, decode


class InMemoryCluster:
    """What the driver needs, and nothing else."""

    def __init__(self, workers: int, aggregator: int) -> None:
        sums, counts = statistics(aggregator)
        self.rounds: list[float] = []
        """Processor seconds of the coordinator for each round, from its reports to the next orders."""
        self._since = 0.0
        self._orders = {w: Sequencer("dry", 0, w, 0) for w in range(workers)}
        self._answers = {w: Sequencer("dry", 0, w, 0) for w in range(workers)}
        self._parcels = [PackedArrays((np.full(sums, float(w + 1)), np.ones(counts))) for w in range(workers)]
        self._told: list[tuple[int, Order]] = []

    def new_job(self) -> str:
        return "dry"

    def end_job(self) -> None:
        """Nothing is left."""

    def incarnations(self) -> dict[int, int]:
        return dict.fromkeys(self._orders, 0)

    def send(self, worker: int, body: Order, parcel: PackedArrays = EMPTY) -> None:
        self._orders[worker].wrap(body, parcel)
        self._told.append((worker, body))

    def receive(self, timeout: float) -> Iterator[tuple[Envelope, tuple[Array, ...]]]:
        self.rounds.append(time.thread_time() - self._since)
        answers = [self._answer(worker, body) for worker, body in self._told]
        self._told = []
        self._since = time.thread_time()
        for frames in answers:
            yield decode(frames)

    def _answer(self, worker: int, order: Order) -> list[bytes]:
        body: Answer = WorkerBeat(0)
        parcel = EMPTY
        if isinstance(order, LoadShard):
            body = ShardLoaded(1000, 10, "played", "", 0.0)
        elif isinstance(order, Train):
            body, parcel = Report(order.round, 1000, True, 0, 0, 1e-3, 0.0, 0.0), self._parcels[worker]
        elif not isinstance(order, ReleaseJob):
            raise SystemExit(f"{type(order).__name__} came instead of Load or Train.")
        return [bytes(part) for part in self._answers[worker].wrap(body, parcel)]

    def deaths(self) -> list[tuple[int, str, bool]]:
        return []

    def take_requests(self) -> list[Any]:
        return []

    def accept_hello(self, envelope: Envelope) -> bool:
        return False

    def start_worker(self, worker: int) -> bool:
        raise NotImplementedError

    def evict(self, worker: int, gently: bool = False) -> None:
        raise NotImplementedError

    def dismiss(self, envelope: Envelope) -> None:
        raise NotImplementedError

    def prepare_spare(self) -> None:
        """Nobody is lost here."""
