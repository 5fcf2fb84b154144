"""What goes wrong in a simulated job: a scenario of faults from a seed, and a network that suffers them. No real clock.

A `Scenario` says everything about a job and its faults; the same seed gives the same scenario, and the same scenario
the same events. `LossyNetwork` delivers, loses, doubles, delays and partitions; it does not look into messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from bench.faults.reliable_channel import Packet
from flegel.messages import Envelope
from flegel.sim.event_queue import EventQueue

FIRST_SERVER = 960
"""As machine/server/care.py numbers them."""
COORDINATOR = -1
"""The coordinator's address in the network."""
SEVEN = ("bsp", "bsp-mini", "ssp", "asp", "psp", "fsp-binary", "fsp")
FREEZES = (1.0, 5.0, 9.0, 20.0, 60.0)
HOUR = 3600.0
MODELS = ("bsp", "fsp", "fsp", "fsp-binary", "bsp-mini", "ssp", "asp", "psp")


@dataclass(frozen=True)
class Fault:
    """Something that happens to one worker at one time."""

    at: float
    worker: int
    kind: str
    """killed, crashed, frozen, cut (off from everybody), deaf (nothing reaches it), mute (nothing that it sends gets
    away), slow (its links are delayed), jump (of its clock), leave, join. `COORDINATOR` can be frozen and its clock can
    jump ahead, as that of a virtual machine that was moved; it never goes back. servers: the job is to have `worker`
    parameter servers."""
    seconds: float = 0.0
    """How long it is frozen or cut off; by how much its clock jumps."""


@dataclass(frozen=True)
class Scenario:
    """A job and what happens to it."""

    seed: int
    sync: str = "bsp"
    workers: int = 3
    tiles: int = 2
    rest: int = 0
    """Points of a worker: whole tiles, and some more."""
    iterations: int = 12
    drop: float = 0.0
    duplicate: float = 0.0
    latency: float = 0.001
    scatter: float = 0.0
    """Mean of an exponential addition to the latency of each packet: packets overtake each other."""
    random_moves: int = 0
    """Moves of points between workers at random times."""
    random_rests: int = 0
    """Times that workers are sent to rest, or called back."""
    speeds: tuple[float, ...] = (20_000.0,)
    """Points a second; workers take turns."""
    skew: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Of a worker's clock: seconds ahead, and seconds that it counts in one."""
    disk: dict[int, float] = field(default_factory=dict)
    """Seconds that a worker takes to read rows."""
    faults: tuple[Fault, ...] = ()
    replace: bool = True
    collect: bool = True
    servers: int = 0
    """Parameter servers; 0: the coordinator holds θ."""
    slices: int = 0
    """Of θ; 0: one for each server."""
    replicas: int = 1

    @property
    def without_faults(self) -> Scenario:
        """The same job without any fault."""
        return replace(
            self, drop=0.0, duplicate=0.0, scatter=0.0, skew={}, disk={}, faults=(), random_moves=0, random_rests=0,
        )  # fmt: skip


def losing(seed: int) -> Scenario:
    """The network at its worst: 30 % dropped, 30 % doubled, packets that overtake each other; bulk synchronous."""
    random = Random(f"losing {seed}")
    return Scenario(
        seed,
        workers=random.randint(2, 5),
        tiles=random.randint(1, 3),
        rest=random.randint(0, 9),
        iterations=random.randint(6, 14),
        drop=0.3,
        duplicate=0.3,
        scatter=random.choice([0.001, 0.005, 0.02]),
        speeds=_speeds(random),
    )


def anything(seed: int) -> Scenario:
    """Any model, any mixture of faults."""
    random = Random(f"anything {seed}")
    workers = random.randint(2, 5)
    sync = random.choice(MODELS)
    flexible = sync.startswith("fsp")
    return Scenario(
        seed,
        sync=sync,
        workers=workers,
        tiles=random.randint(1, 4),
        rest=random.randint(0, 9),
        iterations=random.randint(8, 24) * (3 if sync in ("asp", "ssp") else 2 if flexible else 1),
        drop=random.choice([0.0, 0.05, 0.3]),
        duplicate=random.choice([0.0, 0.05, 0.3]),
        scatter=random.choice([0.0, 0.001, 0.01]),
        random_moves=random.choice([0, 5, 20]) if flexible else 0,
        speeds=_speeds(random),
        skew={
            w: (random.uniform(-100, 100), random.uniform(0.98, 1.02)) for w in range(workers) if random.random() < 0.3
        },
        disk={w: random.choice([0.1, 1.0]) for w in range(workers) if random.random() < 0.2},
        faults=_draw_faults(random, workers),
        replace=random.random() < 0.8,
        collect=random.random() < 0.7,
    )


def resting(seed: int) -> Scenario:
    """Any mixture of faults while workers rest and come back, under models with barriers."""
    random = Random(f"resting {seed}")
    return replace(anything(seed), sync=random.choice(("fsp", "fsp", "fsp-binary")), iterations=48, random_rests=12)


def served(seed: int) -> Scenario:
    """Any model with parameter servers; servers and workers die, freeze and are cut off, copies and maps are late."""
    random = Random(f"served {seed}")
    calm = anything(seed)
    servers = random.randint(1, 3)
    faults = []
    for _ in range(random.choice([0, 1, 1, 2, 3])):
        kind = random.choice(["killed", "killed", "killed", "frozen", "cut", "slow"])
        seconds = random.choice([0.1, 0.6, 3.0, 5.0]) if kind in ("frozen", "cut") else random.uniform(0.01, 0.2)
        who = FIRST_SERVER + random.randrange(servers)
        faults.append(Fault(random.choice([0.2, 0.5, 1.0]) * random.random() + 0.06, who, kind, seconds))
    others = calm.faults if random.random() < 0.4 else ()
    loss = random.choice([0.0, 0.05, 0.2])
    return replace(
        calm, servers=servers, replicas=random.choice([0, 1, 1, 1, 2]), faults=(*others, *faults), drop=loss,
        duplicate=loss,
    )  # fmt: skip


def scaled(seed: int) -> Scenario:
    """As `served`, while the job gets more and fewer servers; some are killed or frozen just then."""
    random = Random(f"scaled {seed}")
    calm = served(seed)
    changes: list[Fault] = []
    for _ in range(random.randint(1, 4)):
        at = random.choice([0.2, 0.5, 1.0]) * random.random() + random.choice([0.0, 0.06])
        changes.append(Fault(at, random.randint(1, 3), "servers"))
        if random.random() < 0.4:
            hurt = FIRST_SERVER + random.randrange(3)
            kind = random.choice(["killed", "killed", "frozen"])
            changes.append(Fault(at + random.choice([0.002, 0.005, 0.02, 0.05]), hurt, kind, 3.0))
    kept = calm.faults if random.random() < 0.5 else ()
    return replace(calm, slices=random.choice([0, 3, 3, 3]), faults=(*kept, *changes))


def freezing(seed: int) -> Scenario:
    """One cell of a matrix: model × length × who is frozen, alone or in pairs; 245 seeds are all of them."""
    model, rest = SEVEN[seed % 7], seed // 7
    seconds, who = FREEZES[rest % 5], FROZEN[rest // 5 % len(FROZEN)]
    faults = tuple(Fault(0.03, process, "frozen", seconds) for process in who)
    return Scenario(seed, sync=model, workers=3, tiles=2, rest=5, iterations=_rounds(model), faults=faults)


FROZEN = ((COORDINATOR,), (0,), (2,), (0, 1), (COORDINATOR, 1), (0, 1, 2), (COORDINATOR, 0, 1, 2))
"""Who is frozen at once; the last one is the whole host."""


def partitioned(seed: int) -> Scenario:
    """Workers cut off from everybody, or in one direction only, healed after 5 to 60 s; on a network that loses."""
    random = Random(f"partitioned {seed}")
    faults = [
        Fault(random.uniform(0.01, 0.3), worker, random.choice(("cut", "deaf", "mute")), random.uniform(5.0, 60.0))
        for worker in random.sample(range(4), random.randint(1, 3))
    ]
    return _disturbed(seed, random, tuple(faults))


def jumping(seed: int) -> Scenario:
    """Clocks that jump by an hour, forwards and backwards; that of the coordinator forwards."""
    random = Random(f"jumping {seed}")
    faults = [
        Fault(random.uniform(0.01, 0.3), worker, "jump", random.choice((-HOUR, HOUR)))
        for worker in random.sample(range(4), random.randint(1, 3))
    ]
    if random.random() < 0.5:
        faults.append(Fault(random.uniform(0.01, 0.3), COORDINATOR, "jump", HOUR))
    return _disturbed(seed, random, tuple(faults))


def delayed(seed: int) -> Scenario:
    """Links of some workers are slow for a while: up to 1.5 s a packet."""
    random = Random(f"delayed {seed}")
    faults = [
        Fault(random.uniform(0.01, 0.3), worker, "slow", random.uniform(0.05, 1.5))
        for worker in random.sample(range(4), random.randint(1, 4))
    ]
    return _disturbed(seed, random, tuple(faults))


def _disturbed(seed: int, random: Random, faults: tuple[Fault, ...]) -> Scenario:
    model = SEVEN[seed % 7]
    loss = random.choice((0.0, 0.05))
    return Scenario(
        seed, sync=model, workers=4, tiles=random.randint(1, 3), rest=random.randint(0, 9),
        iterations=_rounds(model), drop=loss, duplicate=loss, speeds=_speeds(random), faults=faults,
    )  # fmt: skip


def _rounds(model: str) -> int:
    """Iterations in which a job of that model runs for some tenths of a second."""
    return {"asp": 90, "ssp": 60, "fsp": 60, "fsp-binary": 40, "bsp-mini": 60}.get(model, 24)


def _speeds(random: Random) -> tuple[float, ...]:
    return tuple(random.choice([5_000.0, 20_000.0, 40_000.0]) for _ in range(3))


def _draw_faults(random: Random, workers: int) -> tuple[Fault, ...]:
    if random.random() < 0.35:
        return ()
    found = []
    for _ in range(random.randint(1, 4)):
        kind = random.choice(["killed", "killed", "crashed", "frozen", "cut", "cut", "leave", "join"])
        seconds = random.choice([0.1, 0.6, 3.0, 5.0]) if kind in ("frozen", "cut") else 0.0
        at = random.choice([0.1, 0.5, 0.5, 1.0]) * random.random()  # most jobs are over within a second
        found.append(Fault(at, random.randrange(workers), kind, seconds))
    crashes = [m for m in found if m.kind == "crashed"]
    return tuple(m for m in found if m not in crashes[2:])


class LossyNetwork:
    """Between coordinator and workers, and from worker to worker."""

    def __init__(self, scenario: Scenario, events: EventQueue, log: Callable[[str], None] | None) -> None:
        self._scenario, self._events, self._log = scenario, events, log
        self._random = Random(f"wires {scenario.seed}")
        self._cuts: dict[int, float] = {}
        self._one_way: dict[tuple[str, int], float] = {}
        self._slow: dict[int, float] = {}
        self.sent = self.lost = self.doubled = 0

    def cut(self, place: int, until: float) -> None:
        """Nothing gets to or from there before that."""
        self._cuts[place] = max(self._cuts.get(place, 0.0), until)

    def cut_one_way(self, kind: str, place: int, until: float) -> None:
        """`deaf`: nothing gets there before that; `mute`: nothing gets away from there."""
        self._one_way[kind, place] = max(self._one_way.get((kind, place), 0.0), until)

    def delay(self, place: int, seconds: float) -> None:
        """Packets to and from there take so much longer."""
        self._slow[place] = seconds

    def send(self, source: int, target: int, what: object, deliver: Callable[..., None], *args: Any) -> None:
        """It arrives once, or never, or twice, after any while. `what` is written out where there is a log."""
        now, random, scenario = self._events.now, self._random, self._scenario
        self.sent += 1
        deaf, mute = self._one_way.get(("deaf", target), 0.0), self._one_way.get(("mute", source), 0.0)
        if now < max(self._cuts.get(source, 0.0), self._cuts.get(target, 0.0), deaf, mute):
            self.lost += 1
            self._tell("is cut off", source, target, what)
            return
        if random.random() < scenario.drop:
            self.lost += 1
            self._tell("loses", source, target, what)
            return
        twice = random.random() < scenario.duplicate
        self.doubled += twice
        for _ in range(1 + twice):
            late = random.expovariate(1.0 / scenario.scatter) if scenario.scatter else 0.0
            late += self._slow.get(source, 0.0) + self._slow.get(target, 0.0)
            self._events.at(now + scenario.latency + late, self._arrive, source, target, what, deliver, args)
        if twice:
            self._tell("doubles", source, target, what)

    def _arrive(
        self, source: int, target: int, what: object, deliver: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        if self._cuts and self._events.now < self._cuts.get(target, 0.0):
            self.lost += 1
            self._tell("is cut off", source, target, what)
            return
        if self._log is not None:
            self._tell("brings", source, target, what)
        deliver(*args)

    def _tell(self, verb: str, source: int, target: int, what: object) -> None:
        if self._log is not None:
            said = named(what) if isinstance(what, Packet) else what
            self._log(f"network {_place_name(source)} → {_place_name(target)} {verb} {said}")


def _place_name(place: int) -> str:
    return "coordinator" if place == COORDINATOR else str(place)


def named(packet: Packet) -> str:
    """What is in it, and its number."""
    if not packet.item:
        return f"ack {packet.number}"
    said = packet.item[0]
    return f"{type(said.body if isinstance(said, Envelope) else said).__name__} {packet.number}"
