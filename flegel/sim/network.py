"""How long messages take: latency, links that several share, racks. Decides nothing and loses nothing.

Coordinator and worker 0 stand in rack 0; workers are dealt to racks in equal runs. A message passes the sender's own
link, the uplink of the rack where it leaves one, and the coordinator's link, and each link carries one after the other.
Messages of one pair never overtake each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class NetworkSpec:
    """What the network is made of."""

    latency: float = 0.0003
    """Seconds one way, inside a rack."""
    bandwidth: float = math.inf
    """Bytes a second of a worker's link."""
    hub: float = math.inf
    """Bytes a second of the coordinator's link, in each direction."""
    racks: int = 1
    rack_latency: float = 0.0
    """Additional seconds between racks."""
    uplink: float = math.inf
    """Bytes a second of a rack's uplink, in each direction."""
    jitter: float = 0.0
    """Mean of an exponential addition to each message."""


class Network:
    """The links of a job, and until when each is taken."""

    def __init__(self, spec: NetworkSpec, workers: int, seed: int = 0) -> None:
        self.spec, self.workers = spec, workers
        self._down = self._up = 0.0
        self._rack_down, self._rack_up = [0.0] * spec.racks, [0.0] * spec.racks
        self._last: dict[tuple[int, int], float] = {}
        self._rng = np.random.default_rng([seed, 77])
        self._draws: list[float] = []
        w = spec
        self._plain = all(map(math.isinf, (w.bandwidth, w.hub, w.uplink))) and w.racks == 1 and not w.jitter

    def rack(self, worker: int) -> int:
        return worker * self.spec.racks // max(self.workers, 1)

    def down(self, worker: int, size: int, at: float) -> float:
        """When an order sent at `at` arrives."""
        spec = self.spec
        if self._plain:
            return at + spec.latency
        self._down = when = max(self._down, at) + size / spec.hub
        if rack := self.rack(worker):
            self._rack_down[rack] = when = max(self._rack_down[rack], when) + size / spec.uplink
            when += spec.rack_latency
        return self._arrival(worker, 0, when + spec.latency + size / spec.bandwidth)

    def up(self, worker: int, size: int, at: float) -> float:
        """When an answer sent at `at` arrives."""
        spec = self.spec
        if self._plain:
            return at + spec.latency
        when = at + size / spec.bandwidth
        if rack := self.rack(worker):
            self._rack_up[rack] = when = max(self._rack_up[rack], when) + size / spec.uplink
            when += spec.rack_latency
        self._up = when = max(self._up, when) + size / spec.hub
        return self._arrival(worker, 1, when + spec.latency)

    def _arrival(self, worker: int, way: int, when: float) -> float:
        """When a message arrives, with random delay; messages of one way never overtake each other."""
        if not self.spec.jitter:
            return when
        if not self._draws:
            self._draws = self._rng.exponential(self.spec.jitter, 4096).tolist()
        when = max(when + self._draws.pop(), self._last.get((worker, way), 0.0))
        self._last[(worker, way)] = when
        return when
