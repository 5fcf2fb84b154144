"""How long messages take: latency, links that several share, racks. Decides nothing and loses nothing.

Coordinator and worker 0 stand in rack 0; workers are dealt to racks in equal runs. A message passes the sender's own
link, the uplink of the rack where it leaves one, and the coordinator's link, and each link carries one after the other.
Messages of one pair never overtake each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

DOWN, UP = 0, 1
"""Ways of a message: to a worker, to the coordinator."""
NETWORK_RANDOM_STREAM = 77
"""Number of the stream of random numbers for delays, apart from those of speeds and rows with the same seed."""
DRAWS_AT_ONCE = 4096
"""Random delays drawn by one call of numpy, to spare a call for each message."""


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
        self._hub_down_free_at = self._hub_up_free_at = 0.0
        """Until when, in seconds, the coordinator's link is taken, by direction; likewise each rack's uplink."""
        self._rack_down_free_at, self._rack_up_free_at = [0.0] * spec.racks, [0.0] * spec.racks
        self._last_arrival: dict[tuple[int, int], float] = {}
        """By worker and way (`DOWN` or `UP`)."""
        self._rng = np.random.default_rng([seed, NETWORK_RANDOM_STREAM])
        self._jitter_draws: list[float] = []
        """Random delays that are drawn and not used yet."""
        unlimited = all(map(math.isinf, (spec.bandwidth, spec.hub, spec.uplink)))
        self._only_latency = unlimited and spec.racks == 1 and not spec.jitter
        """Every message takes the same time, whatever its size."""

    def rack(self, worker: int) -> int:
        return worker * self.spec.racks // max(self.workers, 1)

    def down(self, worker: int, size: int, at: float) -> float:
        """When an order sent at `at` arrives."""
        spec = self.spec
        if self._only_latency:
            return at + spec.latency
        self._hub_down_free_at = when = max(self._hub_down_free_at, at) + size / spec.hub
        if rack := self.rack(worker):
            self._rack_down_free_at[rack] = when = max(self._rack_down_free_at[rack], when) + size / spec.uplink
            when += spec.rack_latency
        return self._arrival(worker, DOWN, when + spec.latency + size / spec.bandwidth)

    def up(self, worker: int, size: int, at: float) -> float:
        """When an answer sent at `at` arrives."""
        spec = self.spec
        if self._only_latency:
            return at + spec.latency
        when = at + size / spec.bandwidth
        if rack := self.rack(worker):
            self._rack_up_free_at[rack] = when = max(self._rack_up_free_at[rack], when) + size / spec.uplink
            when += spec.rack_latency
        self._hub_up_free_at = when = max(self._hub_up_free_at, when) + size / spec.hub
        return self._arrival(worker, UP, when + spec.latency)

    def _arrival(self, worker: int, way: int, when: float) -> float:
        """When a message arrives, with random delay; messages of one way never overtake each other."""
        if not self.spec.jitter:
            return when
        if not self._jitter_draws:
            self._jitter_draws = self._rng.exponential(self.spec.jitter, DRAWS_AT_ONCE).tolist()
        when = max(when + self._jitter_draws.pop(), self._last_arrival.get((worker, way), 0.0))
        self._last_arrival[(worker, way)] = when
        return when
