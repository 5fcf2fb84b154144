"""Jobs with parameter servers on virtual time: the real machines of coordinator, servers and workers, no process.

Each server has a thread of its own, with the costs of a coordinator's thread for each message and byte. Arrays are one
number for each slice and stand for as many bytes as are said. Servers and workers do not fail here: faults are the
business of `bench/faults`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core.pytree import Array
from flegel.core.shard import Shard
from flegel.core.sharding import Sharding
from flegel.declarations.placement import ParameterPlacement
from flegel.declarations.statistics import Statistics
from flegel.job import AlgorithmRef, Criteria, SyncSpec
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import Command, FromWorker, Send, StartWorker, Timeouts, WorkerJoined
from flegel.machine.server.care import FIRST_SERVER, MAX_SERVERS, ServerCare, is_server
from flegel.machine.server.client import Push, SliceClient
from flegel.machine.server.group import ServerGroup
from flegel.machine.server.part import ServersPart
from flegel.machine.server.server import Command as ServerCommand
from flegel.machine.server.server import ParameterServer, ToCoordinator, ToServer, ToWorker
from flegel.messages import LoadShard, Order, Report, TreeLayout
from flegel.params.sharded import cuts_for
from flegel.server_messages import ServeJob, ServerMap, ServerReady
from flegel.sim.coordinator_cost import CoordinatorCost, Costs
from flegel.sim.simulation import MESSAGE_HEADER_BYTES, Simulation
from flegel.sim.trainer import Learner, Pace
from flegel.sim.worker import SimWorker
from flegel.sync import make_policy

FOREVER = Timeouts(load=float("inf"), silence=float("inf"), report=float("inf"))


class VisitCounts(Algorithm):
    """θ counts visits, once in each unit; the objective falls with every pass."""

    placement = ParameterPlacement(sharding=Sharding({"value": 0}, {"value": 0}))
    statistics = Statistics(spent=("value",))

    def initParameter(self, sample: Any, rng: Any) -> Any:
        raise TypeError("θ of a simulated job is given.")

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return oldParameter + aggregator

    def objective(self, aggregator: Any, parameter: Any) -> float:
        return 1.0 / (1.0 + float(parameter[0]))


class VisitLearner:
    """A worker's visits, in each unit."""

    def __init__(self, points: int, units: int) -> None:
        self.points, self.columns = points, 1
        self._change = np.zeros(units)

    def train(self, parameter: Any, start: int, end: int, iteration: int, shard: Shard | None = None) -> None:
        self._change += end - start

    def clear(self) -> None:
        self._change[:] = 0.0

    def changes(self) -> tuple[Array, ...]:
        return (self._change.copy(),)


class ServedSimWorker(SimWorker):
    """A worker whose θ lies on servers."""

    world: ServedSimulation
    client: SliceClient | None = None

    def order(self, body: Order, arrays: tuple[Array, ...]) -> None:
        if isinstance(body, LoadShard):
            self.client = SliceClient(arrays[:1], body.version)
            super().order(body, arrays)
        elif isinstance(body, ServerMap):
            assert self.client is not None
            self.push(self.client.use_map(body))
        else:
            assert self.client is not None
            self.push(self.client.order(body, arrays))
            self._go_on()

    def _go_on(self) -> None:
        assert self.client is not None
        for body, arrays in self.client.ready_orders():
            super().order(body, arrays)

    def send(self, body: Any, arrays: tuple[Array, ...], now: float) -> None:
        if isinstance(body, Report) and self.client is not None:
            self.push(self.client.report(body, arrays))
        else:
            super().send(body, arrays, now)

    def push(self, pushes: list[Push]) -> None:
        for push in pushes:
            self.world.to_server(self.id, push.server, push.body, push.arrays, self.now)

    def from_server(self, server: int, body: Any, arrays: tuple[Array, ...]) -> None:
        assert self.client is not None
        for answer, frames in self.client.hear(server, body, arrays):
            super().send(answer, frames, self.now)
        self._go_on()


class ServedSimulation(Simulation):
    """One job with servers on virtual time. `size`: bytes that θ, and each report, stand for."""

    worker_class = ServedSimWorker

    def __init__(
        self, job: Coordinator, paces: dict[int, Pace], learners: dict[int, Learner], costs: Costs, size: int
    ) -> None:
        super().__init__(job, paces, learners, costs)
        servers = job.part(ServersPart)
        assert servers is not None
        self._care = servers.care
        self._servers: dict[int, ParameterServer] = {}
        self._threads: dict[int, CoordinatorCost] = {}
        self._unit = size / self._care.group.cuts.count
        for worker in self.workers.values():
            assert isinstance(worker, ServedSimWorker)
            worker.world = self

    def _weight(self, arrays: tuple[Array, ...]) -> int:
        """Bytes that a message stands for."""
        return MESSAGE_HEADER_BYTES + round(self._unit * sum(a.size for a in arrays))

    # -- the coordinator -----------------------------------------------------------------------------------

    def execute(self, commands: list[Command], now: float) -> None:
        others: list[Command] = []
        for command in commands:
            if type(command) is Send and is_server(command.worker):
                left = self.coordinator_thread.send_done_at(
                    command.worker, self._weight(command.arrays), command.arrays, now
                )
                arrives = left + self.costs.message
                self.events.at(arrives, self._ordered, command.worker, command.body, command.arrays)
            elif type(command) is StartWorker:
                self.events.at(now, self._tell, WorkerJoined(command.worker))
            else:
                others.append(command)
        super().execute(others, now)

    def _tell(self, event: Any) -> None:
        self.execute(self.job.handle(event, self.events.now), self.events.now)

    def message_bytes(self, arrays: tuple[Array, ...]) -> int:
        return self._weight(arrays)

    # -- servers -------------------------------------------------------------------------------------------

    def _ordered(self, server: int, body: Any, arrays: tuple[Array, ...]) -> None:
        if isinstance(body, ServeJob):
            self._servers[server] = ParameterServer(VisitCounts(), server, np.zeros(0), np.zeros(0))
            self._threads[server] = CoordinatorCost(self.costs, 0)
            self._answer(server, ServerReady(str(server)), (), self.events.now)
        else:
            taken = self._threads[server].taken_at(server, self._weight(arrays), self.events.now)
            self._carry_out(server, self._servers[server].order(body, arrays), taken)

    def to_server(self, sender: int, server: int, body: Any, arrays: tuple[Array, ...], now: float) -> None:
        self.events.at(now + self.costs.message, self._heard, sender, server, body, arrays)

    def _heard(self, sender: int, server: int, body: Any, arrays: tuple[Array, ...]) -> None:
        machine = self._servers[server]
        taken = self._threads[server].taken_at(sender, self._weight(arrays), self.events.now)
        hear = machine.hear_server if sender in self._servers else machine.hear_worker
        self._carry_out(server, hear(sender, body, arrays), taken)

    def _carry_out(self, server: int, commands: list[ServerCommand], now: float) -> None:
        thread, way = self._threads[server], self.costs.message
        for command in commands:
            left = thread.send_done_at(0, self._weight(command.arrays), command.arrays, now)
            match command:
                case ToCoordinator(body, arrays):
                    self._answer(server, body, arrays, left)
                case ToServer(other, body, arrays):
                    self.to_server(server, other, body, tuple(a.copy() for a in arrays), left)
                case ToWorker(worker, body, arrays):
                    to = self.workers[worker]
                    assert isinstance(to, ServedSimWorker)
                    self.events.at(left + way + self.costs.wake, to.from_server, server, body, arrays)

    def _answer(self, server: int, body: Any, arrays: tuple[Array, ...], now: float) -> None:
        self.events.at(now + self.costs.message, self._answer_arrived, server, body, arrays)

    def _answer_arrived(self, server: int, body: Any, arrays: tuple[Array, ...]) -> None:
        taken = self.coordinator_thread.taken_at(server, self._weight(arrays), self.events.now)
        self.execute(self.job.handle(FromWorker(server, body, arrays), taken), taken)


def served_job(sync: SyncSpec, criteria: Criteria, workers: int, servers: int, replicas: int = 1) -> Coordinator:
    """A coordinator of so many workers and servers, one slice a server."""
    algorithm = VisitCounts()
    theta = np.zeros(servers)
    cuts = cuts_for(algorithm, theta, theta, servers)
    group = ServerGroup(algorithm, theta, np.zeros(servers), cuts)
    form = TreeLayout("array", ())
    serve = ServeJob(AlgorithmRef("", {}), ("array", ()), ("array", ()))
    care = ServerCare(group, serve, servers, min(replicas, servers - 1), FOREVER)
    load = LoadShard(AlgorithmRef("", {}), {}, 0, workers, 0, form, form, version=0)
    return Coordinator(
        parts=[ServersPart(care)], algorithm=algorithm, policy=make_policy(sync), criteria=criteria, store=group,
        loads=dict.fromkeys(worker_numbers(workers), load), timeouts=FOREVER,
    )  # fmt: skip


def worker_numbers(workers: int) -> Iterator[int]:
    """Numbers that no server has."""
    for at in range(workers):
        yield at if at < FIRST_SERVER else at + MAX_SERVERS
