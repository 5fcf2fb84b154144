"""Slaves as actors of Ray: spread or packed by a placement group, with CPUs, GPUs and other resources of their own.

`flegel.ray.Cluster(slaves=4)`, in a process that has called `ray.init` or not. A ticket is an argument of a method of
the actor, which Ray sends between its own processes; it is part of no description that Ray shows. An actor that Ray
ends, and a node that it takes away, is one lost worker. More slaves (`cluster.scale`) are more actors; with `most=`
there are as many as fit on Ray's nodes, also while its autoscaler adds and removes nodes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flegel.cluster.launch.launched_cluster import LaunchedCluster
from flegel.cluster.launch.processes import ticket as tickets
from flegel.cluster.launch.processes.placer import SLAVE_END_SECONDS
from flegel.cluster.launch.processes.slave_host import HostedSlave
from flegel.cluster.launch.processes.ticket import SlaveTicket
from flegel.errors import FlegelError, UsageError

NODES_POLL_SECONDS = 1.0
"""Between two checks how many slaves fit on the nodes of Ray."""
ACTOR_THREADS = 4
"""Of each actor: `run` holds one as long as the slave lives; `drain`, `end` and Ray's own calls need others."""
PLACEMENT_STRATEGIES = ("SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK")


def fitting(nodes: Sequence[Mapping[str, Any]], bundle: Mapping[str, float]) -> int:
    """How many slaves that each take `bundle` fit on the nodes that are alive, as `ray.nodes()` lists them."""
    needs = {name: amount for name, amount in bundle.items() if amount > 0}
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    return sum(int(min(have.get(name, 0.0) / amount for name, amount in needs.items())) for have in alive if needs)


class SlaveActor:
    """In a process of Ray: one slave."""

    def __init__(self) -> None:
        self._slave: HostedSlave | None = None

    def run(self, ticket: bytes) -> str:
        """Run the slave until it ends; returns how it ended. Ray gives it a thread, so `drain` and `end` are
        answered."""
        self._slave = HostedSlave(ticket)
        while (ended := self._slave.wait(1.0)) is None:
            pass
        return ended

    def drain(self) -> None:
        if self._slave is not None:
            self._slave.drain()

    def end(self) -> None:
        if self._slave is not None:
            self._slave.end()


class RayPlacer:
    """One actor for each slave."""

    system = "ray"

    def __init__(
        self,
        slaves: int,
        strategy: str = "SPREAD",
        cpus: float = 1,
        gpus: float = 0,
        resources: Mapping[str, float] | None = None,
        init: Mapping[str, Any] | None = None,
    ) -> None:
        """`cpus`, `gpus` and `resources` are those of each slave; `init` are arguments of `ray.init`, where this
        process has not called it."""
        if strategy not in PLACEMENT_STRATEGIES:
            raise UsageError(f"Ray has no strategy {strategy!r}; use one of {', '.join(PLACEMENT_STRATEGIES)}.")
        self._slaves, self._strategy, self._init = slaves, strategy, dict(init or {})
        self._bundle = {"CPU": cpus, **({"GPU": gpus} if gpus else {}), **(resources or {})}
        self._cpus, self._gpus, self._resources = cpus, gpus, dict(resources or {})
        self._actors: dict[str, Any] = {}
        self._end_refs: dict[Any, str] = {}
        """Ray's references to the ends of slaves, to their names."""
        self._started_refs: dict[str, Any] = {}
        """What Ray answers for an actor that has started."""
        self._placement_group: Any = None
        self._started_ray_here = False
        self._placed_slaves = 0

    def address(self) -> str:
        return str(self._ray.util.get_node_ip_address())

    def open(self, folder: Path) -> None:
        """Connect to Ray, or start it here where none runs, and reserve room for all slaves."""
        try:
            import ray
        except ImportError:
            raise UsageError("Ray is not installed here: pip install 'flegel[ray]'.") from None
        self._ray: Any = ray
        if not ray.is_initialized():
            ray.init(**{"log_to_driver": False, "include_dashboard": False, **self._init})
            self._started_ray_here = True
        self._placement_group = ray.util.placement_group(
            [dict(self._bundle) for _ in range(self._slaves)], self._strategy
        )

    def place(self, ticket: SlaveTicket) -> None:
        """Start an actor: the first slaves in the placement group, later ones on any node with room."""
        options: dict[str, Any] = {"num_cpus": self._cpus, "num_gpus": self._gpus, "max_concurrency": ACTOR_THREADS}
        if self._resources:
            options["resources"] = self._resources
        if self._placed_slaves < self._slaves:
            options["scheduling_strategy"] = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                self._placement_group, placement_group_bundle_index=self._placed_slaves
            )
        self._placed_slaves += 1
        actor = self._ray.remote(SlaveActor).options(**options).remote()
        self._actors[ticket.name] = actor
        self._started_refs[ticket.name] = actor.__ray_ready__.remote()
        self._end_refs[actor.run.remote(tickets.encode(ticket))] = ticket.name

    def actor(self, name: str) -> Any:
        """The actor of a slave, for `ray.kill`."""
        return self._actors[name]

    def ended(self) -> dict[str, str]:
        """Actors whose slave has ended or that Ray has lost; asks Ray without waiting."""
        if not self._end_refs:
            return {}
        ready, _ = self._ray.wait(list(self._end_refs), num_returns=len(self._end_refs), timeout=0)
        found = {}
        for reference in ready:
            name = self._end_refs.pop(reference)
            try:
                found[name] = str(self._ray.get(reference))
            except self._ray.exceptions.RayError as error:
                found[name] = f"was ended by Ray: {str(error).strip().splitlines()[0]}"
            actor, _ = self._actors.pop(name), self._started_refs.pop(name)
            with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
                self._ray.kill(actor)
        return found

    def remove(self, names: Sequence[str]) -> None:
        """Let slaves drain; an actor that still waits for resources runs nothing, and is killed."""
        for name in names:
            if name in self._actors and self._started(name):
                self._actors[name].drain.remote()
            elif name in self._actors:
                self._ray.kill(self._actors[name])

    def _started(self, name: str) -> bool:
        return bool(self._ray.wait([self._started_refs[name]], timeout=0)[0])

    def room(self) -> int:
        """Slaves that fit on the nodes that Ray has now."""
        return fitting(self._ray.nodes(), self._bundle)

    def request(self, slaves: int) -> None:
        """Tell Ray's autoscaler, where there is one, to have room for so many."""
        from ray.autoscaler.sdk import request_resources

        request_resources(bundles=[dict(self._bundle) for _ in range(slaves)])

    def close(self) -> None:
        """End all slaves, kill their actors and remove the placement group; shut Ray down where `open` started it."""
        if not hasattr(self, "_ray") or not self._ray.is_initialized():
            return
        running = [actor for name, actor in self._actors.items() if self._started(name)]
        actors, self._actors, self._end_refs = list(self._actors.values()), {}, {}
        try:
            with contextlib.suppress(self._ray.exceptions.RayError):
                if running:
                    ends = [actor.end.remote() for actor in running]
                    self._ray.wait(ends, num_returns=len(ends), timeout=SLAVE_END_SECONDS + 10.0)
        finally:  # Ray turns SIGTERM into SystemExit, which its `wait` raises
            self._kill(actors)

    def _kill(self, actors: Sequence[Any]) -> None:
        """End the actors of slaves, give the reserved room back, and end Ray where this launch started it."""
        for actor in actors:
            with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
                self._ray.kill(actor)
        if self._placement_group is not None:
            self._ray.util.remove_placement_group(self._placement_group)
            self._placement_group = None
        if self._started_ray_here:
            self._ray.shutdown()


class RayCluster(LaunchedCluster):
    """`with flegel.ray.Cluster(slaves=4) as cluster: flegel.run(KMeans(k=10), data, cluster=cluster)`."""

    def __init__(
        self,
        slaves: int,
        *,
        slots: int = 1,
        strategy: str = "SPREAD",
        cpus: float | None = None,
        gpus: float = 0,
        resources: Mapping[str, float] | None = None,
        init: Mapping[str, Any] | None = None,
        most: int | None = None,
        **launch: Any,
    ) -> None:
        """`cpus` (one for each slot by default), `gpus` and `resources` are those of each slave; `init` goes to
        `ray.init` where this process has not called it. With `most`, Ray's autoscaler is asked for room for so many
        slaves, `slaves` is the least number, and a job that runs alone gets all slots as nodes come and go."""
        if most is not None and most < slaves:
            raise UsageError(f"The largest number of slaves, {most}, is below the number to begin with, {slaves}.")
        placer = RayPlacer(slaves, strategy, slots if cpus is None else cpus, gpus, resources, init)
        super().__init__(placer, slaves, slots=slots, **launch)
        if most is not None:
            placer.request(most)
            threading.Thread(target=self._follow, args=(placer, slaves, most), name="ray nodes", daemon=True).start()

    def _follow(self, placer: RayPlacer, least_slaves: int, most_slaves: int) -> None:
        """In a thread: as many slaves as fit, and all of their slots for the one job that runs."""
        slaves = least_slaves
        while not self._closing.wait(NODES_POLL_SECONDS):
            with contextlib.suppress(FlegelError):
                wanted = max(least_slaves, min(most_slaves, placer.room()))
                if wanted != slaves:
                    self._say(f"Ray has room for {wanted} slaves; there were {slaves}")
                    self.scale(wanted)
                    slaves = wanted
                self._share()
        with contextlib.suppress(Exception):  # Ray may be gone already, and with it the request
            placer.request(0)

    def _share(self) -> None:
        running = [job for job in self.jobs() if job.state == "running"]
        if len(running) != 1 or not running[0].snapshot:
            return
        job, here = running[0], [slave.slots for slave in self.slaves() if slave.state == "here" and slave.slots]
        each = job.slots_of_worker
        have = sum(job.slots.values()) // each if each else len(job.slots)
        wanted = sum(slots // each for slots in here) if each else len(here)
        if wanted and have != wanted:
            self.ask(lambda client: client.scale(job.job, wanted))

    def kill(self, name: str) -> None:
        """Let Ray end the actor of one slave, as it does with a node that it loses."""
        placer = self._placer
        if not isinstance(placer, RayPlacer):
            raise FlegelError("This cluster has no actors.")
        placer._ray.kill(placer.actor(name))


Cluster = RayCluster
