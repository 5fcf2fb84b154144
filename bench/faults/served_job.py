"""A job with parameter servers under faults, on virtual time: the real machines, and laws of their own. No process.

Servers are machines like workers are: they die, freeze, are cut off and come back after they were replaced. Between
workers and servers nothing repeats what the network loses but the machines themselves. Besides the laws of
`faulty_job.py`, after every commit:

1. every slice has one primary, and who is primary by the newest map and has done the last op holds θ and the totals
   that the coordinator's mirror has, to the last bit;
2. nobody else who follows the newest map serves that slice;
3. all workers of a round trained under one version of θ (law 3 there: one θ, bit by bit).

At the end of a `bsp` job in which no worker was lost, θ is that of the same job without servers, whatever became of
the servers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from bench.faults.faulty_job import FaultyJob, Outcome, Violation
from bench.faults.faulty_worker import Clusters, ClusterSums, FaultyWorker, empty_statistics
from bench.faults.reliable_channel import Packet
from bench.faults.scenarios import Fault, Scenario
from flegel.core import pytree, sharding
from flegel.core.pytree import Array
from flegel.core.sharding import Cuts, Sharding
from flegel.declarations.placement import ParameterPlacement
from flegel.job import AlgorithmRef
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import Event
from flegel.machine.server.care import FIRST_SERVER, ServerCare
from flegel.machine.server.client import Push, SliceClient
from flegel.machine.server.cutting import Cutting
from flegel.machine.server.events import ScaleServers
from flegel.machine.server.group import ServerGroup
from flegel.machine.server.network_plan import NetworkPlan
from flegel.machine.server.paced_answers import PacedAnswers
from flegel.machine.server.part import ServersPart
from flegel.machine.server.server import Command, ParameterServer, ToCoordinator, ToServer, ToWorker
from flegel.messages import Answer, Envelope, LoadShard, ReleaseJob, Report, ResetPoints, Train
from flegel.params.sharded import cuts_for
from flegel.params.tree_layout import forms_of, with_stand_ins
from flegel.plan.placement.slice_size import SliceRule
from flegel.server_messages import ServeJob, ServerMap, ServerReady

RETRY = 0.1  # seconds after which workers ask again for what has not come


class ShardedClusters(Clusters):
    """Clusters by slices."""

    placement = ParameterPlacement(sharding=Sharding({"value": 0}, {"sums": 0, "counts": 0}))
    updateParameter = Clusters.updateParameter


class ServedSite(FaultyWorker):
    """A worker whose θ lies on servers."""

    world: ServedJob

    def __init__(self, world: ServedJob, number: int, life: int) -> None:
        super().__init__(world, number, life)
        self.client: SliceClient | None = None
        self.void: set[int] = set()
        """Rounds whose reports will never be folded: the points begin again."""
        self._map: ServerMap | None = None
        self._later(RETRY, self._retry)

    def _received(self, packet: Packet) -> None:
        for body, arrays in self._end.receive(packet):
            if self.world.logged:
                self.world.log(f"worker {self.name} is ordered {body}")
            if isinstance(body, LoadShard):
                arrays = with_stand_ins(body, arrays)
                self.client = SliceClient(arrays[:1], -1 if body.forms else body.version)
            if isinstance(body, ServerMap):
                assert self.client is not None
                self._map = body
                self._push(self.client.use_map(body))
            elif self.client is None or isinstance(body, ReleaseJob):
                self.executor.order(body, arrays, self.now)
            else:
                self._push(self.client.order(body, arrays))
        self._go_on()

    def _go_on(self) -> None:
        if self.client is not None:
            for body, arrays in self.client.ready_orders():
                if isinstance(body, Train):
                    self.world.note_version(self.client.version, arrays[0], f"worker {self.name}")
                if isinstance(body, ResetPoints):
                    self.void.update(self.client.kept_rounds)
                self.executor.order(body, arrays, self.now)

    def _retry(self) -> None:
        if self.client is not None and self.client.waits:
            self._push(self.client.retry())
        self._later(RETRY, self._retry)

    def send(self, body: Answer, arrays: tuple[Array, ...], now: float) -> None:
        if isinstance(body, Report) and self.client is not None:
            self._push(self.client.report(body, arrays))
        else:
            self._tell_coordinator(body, arrays)

    def _tell_coordinator(self, body: Answer, arrays: tuple[Array, ...]) -> None:
        envelope = Envelope("job", 0, self.number, self.life, self._sequence, body)
        self._sequence += 1
        self._end.send((envelope, arrays))

    def _push(self, pushes: list[Push]) -> None:
        for push in pushes:
            assert self._map is not None
            self.world.to_server(self, self._map.addresses.get(push.server, ""), push.server, push.body, push.arrays)

    def from_server(self, server: int, body: Any, arrays: tuple[Array, ...]) -> None:
        self._awake(self._heard, server, body, arrays)

    def _heard(self, server: int, body: Any, arrays: tuple[Array, ...]) -> None:
        if self.client is not None:
            for answer, frames in self.client.hear(server, body, arrays):
                self._tell_coordinator(answer, frames)
            self._go_on()


class FaultyServer(FaultyWorker):
    """A server process: of a worker it has the life and the way to the coordinator, no points."""

    world: ServedJob

    def __init__(self, world: ServedJob, number: int, life: int) -> None:
        super().__init__(world, number, life)
        self.machine: ParameterServer | None = None
        self._map: ServerMap | None = None
        self._lives: dict[int, int] = {}

    def _received(self, packet: Packet) -> None:
        for body, arrays in self._end.receive(packet):
            if self.world.logged:
                self.world.log(f"server {self.name} is ordered {body}")
            if isinstance(body, ServeJob):
                paced = PacedAnswers(at_once=1, above=0)  # each slice is an answer, and each is acknowledged
                self.machine = ParameterServer(
                    ShardedClusters(), self.number, np.zeros(0), empty_statistics(), answers=paced
                )
                self._answer(ServerReady(self.name), ())
            elif self.machine is not None and not isinstance(body, ReleaseJob):
                self._map = body if isinstance(body, ServerMap) else self._map
                self._run(self.machine.order(body, arrays))

    def _answer(self, body: Answer, arrays: tuple[Array, ...]) -> None:
        envelope = Envelope("job", 0, self.number, self.life, self._sequence, body)
        self._sequence += 1
        self._end.send((envelope, tuple(np.array(a) for a in arrays)))

    def _run(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case ToCoordinator(body, arrays):
                    self._answer(body, arrays)
                case ToServer(server, message, arrays):
                    assert self._map is not None, "nothing is sent to servers before there is a map"
                    self.world.to_server(self, self._map.addresses.get(server, ""), server, message, arrays)
                case ToWorker(worker, message, arrays):
                    site = self.world.workers.get(worker)
                    if isinstance(site, ServedSite) and site.life == self._lives.get(worker):
                        copies = tuple(np.array(a) for a in arrays)
                        deliver = site.from_server
                        self.world.network.send(self.number, worker, message, deliver, self.number, message, copies)

    def from_peer_process(self, sender: int, life: int, body: Any, arrays: tuple[Array, ...]) -> None:
        self._awake(self._hear, sender, life, body, arrays)

    def _hear(self, sender: int, life: int, body: Any, arrays: tuple[Array, ...]) -> None:
        if self.machine is None or life < self._lives.get(sender, 0):
            return
        self._lives[sender] = life
        hear = self.machine.hear_server if sender >= FIRST_SERVER else self.machine.hear_worker
        self._run(hear(sender, body, arrays))


class OneForEach(Cutting):
    """One slice for each server."""

    def __init__(self, group: ServerGroup) -> None:
        super().__init__(SliceRule(0), group.cuts_into)

    def anew(self, now: Cuts, servers: int, workers: int, replicas: int, network: NetworkPlan | None) -> Cuts:
        return self._make(servers, None)


class ServedJob(FaultyJob):
    """A `FaultyJob` with `scenario.servers`."""

    care: ServerCare
    _versions: dict[int, bytes]
    """Every θ that there was."""

    def _make_coordinator(self, **options: Any) -> Coordinator:
        scenario, theta = self.scenario, options["store"].parameter
        algorithm = options["algorithm"] = ShardedClusters()
        cuts = cuts_for(algorithm, theta, empty_statistics(), scenario.slices or scenario.servers)
        group = ServerGroup(algorithm, theta, empty_statistics(), cuts)
        serve = ServeJob(AlgorithmRef("x", {}), ("array", ()), ("ClusterSums", ClusterSums._fields))
        count = min(scenario.servers, cuts.count)
        self._versions = {0: theta.tobytes()}
        cutting = None if scenario.slices else OneForEach(group)
        self.care = ServerCare(group, serve, count, scenario.replicas, options["timeouts"], cutting=cutting)
        options["store"] = group
        forms = forms_of(theta, empty_statistics()) if scenario.seed % 2 else ()
        options["loads"] = {
            w: msgspec.structs.replace(load, version=0, forms=forms) for w, load in options["loads"].items()
        }
        options["parts"] = [ServersPart(self.care), *options["parts"]]
        return Coordinator(**options)

    def _make_worker(self, number: int, life: int) -> FaultyWorker:
        return (FaultyServer if number >= FIRST_SERVER else ServedSite)(self, number, life)

    def inject(self, fault: Fault) -> None:
        if fault.kind == "servers" and self.done is None:
            self.tell(ScaleServers(fault.worker))
        else:
            super().inject(fault)

    def to_server(self, sender: FaultyWorker, address: str, server: int, body: Any, arrays: tuple[Array, ...]) -> None:
        """To the process at that address, if it still is there."""
        site = self.workers.get(server)
        if isinstance(site, FaultyServer) and site.name == address:
            copies = tuple(np.array(a) for a in arrays)
            self.network.send(
                sender.number, server, body, site.from_peer_process, sender.number, sender.life, body, copies
            )

    # -- laws ----------------------------------------------------------------------------------------------

    def _open_changes(self, present: list[FaultyWorker]) -> list[Any]:
        found = [worker.change for worker in present if worker.executor.machine.extra_visits]
        for worker in present:
            if isinstance(worker, ServedSite) and worker.client is not None:
                folded = self.care.group.rounds.get(worker.number, -1)
                for round_, arrays in worker.client.kept_reports():
                    if round_ > folded and round_ not in worker.void:
                        found.append(ClusterSums(*arrays))
        return found

    def trained(self, worker: FaultyWorker, round_: int, theta: tuple[Array, ...], ids: Array) -> None:
        """Without barriers an order may be carried out under a newer θ than the one that it was given with."""
        if self.scenario.sync in ("asp", "ssp"):
            self._theta.pop(round_, None)
        super().trained(worker, round_, theta, ids)

    def note_version(self, version: int, theta: Array, who: str) -> None:
        """A version of θ is one θ, whoever put it together."""
        known = self._versions.setdefault(version, theta.tobytes())
        if known != theta.tobytes():
            raise Violation(f"{who} has another θ of version {version} than others")

    def tell(self, event: Event) -> None:
        super().tell(event)
        group = self.care.group
        if group.pending is None and group.done_op == group.op:
            self.note_version(group.version, group.parameter, "the coordinator")

    def check(self) -> None:
        if not self.machine.membership.steady:
            return  # a loss that was heard while the fold was under way was handled right after it
        super().check()
        group = self.care.group
        assert group.assignment is not None
        for number, primary in enumerate(group.assignment.primary):
            claims = []
            for site in self.workers.values():
                if isinstance(site, FaultyServer) and site.machine is not None and not site.dead:
                    current = site.machine.map is not None and site.machine.map.version == group.map_version
                    if current and number in site.machine.slices:
                        claims.append(site)
            if [site.number for site in claims] not in ([], [primary]):
                raise Violation(f"slice {number} of server {primary} is served by {[s.name for s in claims]}")
            if claims:
                self._check_slice(number, claims[0])

    def _check_slice(self, number: int, site: FaultyServer) -> None:
        group, cuts = self.care.group, self.care.group.cuts
        assert site.machine is not None
        state = site.machine.slices[number].state
        if state.op != group.op or state.op != group.done_op:
            return
        pairs = (
            ("θ", sharding.cut(group.parameter, cuts.parameter, *cuts.slices[number]), state.parameter),
            ("statistics", sharding.cut(group.statistics, cuts.statistics, *cuts.slices[number]), state.ledger.total),
        )
        for name, mirrored, held in pairs:
            for one, other in zip(pytree.flatten(mirrored), pytree.flatten(held), strict=True):
                if not np.array_equal(one, other):
                    raise Violation(f"{name} of slice {number} on {site.name} is {other.tolist()}, not {one.tolist()}")


def run_served(scenario: Scenario, log: Callable[[str], None] | None = None) -> Outcome:
    """The job under its faults, and beside one without servers and faults where it must come to the same."""
    found = ServedJob(scenario, log).run()
    if scenario.sync == "bsp" and not found.incidents and not found.error:
        calm = FaultyJob(scenario.without_faults).run()
        if found.theta != calm.theta or found.objectives != calm.objectives:
            raise Violation("the result is not that of the same job without servers and faults")
    return found
