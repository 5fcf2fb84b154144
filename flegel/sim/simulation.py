"""Coordinator and workers on a virtual clock: the same machines as in a real job, no process, no socket, no sleep.

`simulate` takes a coordinator and the simulated workers, and runs events in the order of their virtual times until
the job is over. The same input gives the same job, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.errors import ProtocolError
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import Command, Done, FromWorker, Note, PartCommand, Send, SetTimer, Timer
from flegel.machine.coordinator.observation import JobSnapshot, observe
from flegel.sim.coordinator_cost import Costs
from flegel.sim.event_queue import EventQueue, no_collections
from flegel.sim.network import Network, NetworkSpec
from flegel.sim.trainer import Learner, Pace
from flegel.sim.worker import SimWorker

__all__ = ["Costs", "Simulation", "simulate"]

MESSAGE_HEADER_BYTES = 120  # bytes of a message beside its arrays
EVENTS_BETWEEN_LOOKS = 20_000
"""Events after which `watch` is called."""


class Simulation:
    """One job on virtual time."""

    worker_class: ClassVar[type[SimWorker]] = SimWorker

    def __init__(
        self,
        job: Coordinator,
        paces: dict[int, Pace],
        learners: dict[int, Learner],
        costs: Costs | None = None,
        network: Network | None = None,
        size: int | None = None,
        save: Callable[[PartCommand], None] = lambda command: None,
        now: float = 0.0,
    ) -> None:
        """`size`: bytes of θ and of a report, where the arrays of this job only stand for larger ones.

        `save` gets what belongs into checkpoints; `now` is when the job begins.
        """
        self.job, self.costs = job, costs or Costs()
        self.events = EventQueue()
        self.events.now = now
        self._save = save
        self.network = network or Network(NetworkSpec(latency=self.costs.message), len(paces))
        self.coordinator_thread = self.costs.thread(len(paces))
        self._size = size
        self._measured_arrays: tuple[object, int] = ((), MESSAGE_HEADER_BYTES)
        """The arrays of the last message and their bytes: all workers get the same θ."""
        self._end_of_job: Done | None = None
        sent = pytree.without(job.parameter, job.state.algorithm.placement.unsent)
        self.workers = {
            id: self.worker_class(id, paces[id], learners[id], self.events, self.costs, sent) for id in paces
        }
        for worker in self.workers.values():
            worker.answer = self._answered
            worker.peers = self.workers

    def run(self, limit: int | None = None, watch: Callable[[JobSnapshot], None] | None = None) -> Coordinator:
        """Run the job to its end; raises the error that made it fail. `watch` is called every few thousand events."""
        with no_collections():
            self._run(limit, watch)
        if self._end_of_job is None:
            raise ProtocolError(
                f"The simulated job did not end; it stands in {self.job.phase}, round {self.job.view.round}."
            )
        if self._end_of_job.error is not None:
            raise self._end_of_job.error
        return self.job

    def _run(self, limit: int | None, watch: Callable[[JobSnapshot], None] | None) -> None:
        """Run events until the job is done, the `limit` of events is reached or none is left; `watch` sees the job in
        between."""
        self.execute(self.job.start(self.events.now), self.events.now)
        events_left = limit if limit is not None else 1 << 62  # without a limit: more than any job has
        while events_left > 0 and self._end_of_job is None:
            before = self.events.count
            self.events.run(min(events_left, EVENTS_BETWEEN_LOOKS))
            events_left -= EVENTS_BETWEEN_LOOKS
            if watch is not None:
                watch(observe(self.job))
            if self.events.count == before and self.events.idle:
                break

    # -- between coordinator and workers -------------------------------------------------------------------

    def message_bytes(self, arrays: tuple[Array, ...]) -> int:
        """Bytes of a message with these arrays, or with arrays of the size that the simulation was told."""
        if not arrays:
            return MESSAGE_HEADER_BYTES
        if self._size is not None:
            return self._size + MESSAGE_HEADER_BYTES
        if self._measured_arrays[0] is not arrays:  # all workers get the same θ: measured once
            self._measured_arrays = (arrays, sum(a.nbytes for a in arrays) + MESSAGE_HEADER_BYTES)
        return self._measured_arrays[1]

    def execute(self, commands: list[Command], now: float) -> None:
        """Carry out the coordinator's commands in virtual time: a message arrives after the coordinator's work and the
        network's delay."""
        thread, network, wake_seconds = self.coordinator_thread, self.network, self.costs.wake
        for command in commands:
            if type(command) is Send:
                size = self.message_bytes(command.arrays)
                sent_at = thread.send_done_at(command.worker, size if command.arrays else 0, command.arrays, now)
                arrives = network.down(command.worker, size, sent_at)
                to = self.workers[command.worker]
                self.events.at(arrives + wake_seconds, to.order, command.body, command.arrays)
                continue
            match command:
                case SetTimer(at, timer):
                    if timer.name != "watch" or not self._silence_check_is_off():
                        self.events.at(at, self._timer, timer)
                case Note(text):
                    self.job.notes.append(text)
                case PartCommand():  # what a part asks of its I/O; of these, a simulation carries out checkpoints alone
                    self._save(command)
                case Done():
                    self._end_of_job, self.events.over = command, True

    def _silence_check_is_off(self) -> bool:
        """The silence check is off: simulated workers send no heartbeats."""
        timeouts = self.job.state.timeouts
        return not self.job.has_deadlines and math.isinf(timeouts.silence + timeouts.report)

    def _timer(self, timer: Timer) -> None:
        now = self.coordinator_thread.idle_at(self.events.now)
        self.execute(self.job.handle(timer, now), now)

    def _answered(self, worker: int, body: Any, arrays: tuple[Array, ...], when: float) -> None:
        size = self.message_bytes(arrays)
        self.events.at(self.network.up(worker, size, when), self._arrived, worker, body, arrays, size)

    def _arrived(self, worker: int, body: Any, arrays: tuple[Array, ...], size: int) -> None:
        taken = self.coordinator_thread.taken_at(worker, size, self.events.now)
        if self.coordinator_thread.in_order:
            self._taken(worker, body, arrays, taken)
        else:
            self.events.at(taken, self._taken, worker, body, arrays, taken)

    def _taken(self, worker: int, body: Any, arrays: tuple[Array, ...], now: float) -> None:
        job, iteration = self.job, self.job.iteration
        commands = job.handle(FromWorker(worker, body, arrays), now)
        if job.iteration != iteration and self.costs.update:
            self.coordinator_thread.work(self.costs.update)
        if commands:
            self.execute(list(commands), now)


def simulate(
    job: Coordinator,
    paces: dict[int, Pace],
    learners: dict[int, Learner],
    costs: Costs | None = None,
    limit: int = 10_000_000,
    save: Callable[[PartCommand], None] = lambda command: None,
    now: float = 0.0,
) -> Coordinator:
    """Run the job to its end on virtual time; raises what made it fail."""
    return Simulation(job, paces, learners, costs, save=save, now=now).run(limit)
