"""Times in a report, checked before anything is computed from them: a worker's clock may jump or be broken. Pure.

A worker counts its own seconds. Speeds, barrier costs, intervals, moves and rests follow from them, so a time that
cannot be true is replaced here, once, and no model has to ask again. What a worker says may be wrong by some percent;
speeds average over rounds.
"""

from __future__ import annotations

import math

import msgspec

from flegel.configuration.active import active
from flegel.messages import Report

SHORTEST_VISIT = 1e-12
"""Seconds. The fastest kernels on GPUs need 1e-10 for a point."""


def credible(seconds: float, elapsed: float) -> float:
    """What another clock has counted while `elapsed` seconds passed here; 0, not measured, where that cannot be."""
    return seconds if 0.0 <= seconds <= longest(elapsed) and seconds < math.inf else 0.0


def longest(elapsed: float) -> float:
    """Seconds that a healthy clock may have counted while `elapsed` seconds passed here."""
    return elapsed * active().liveness.clock_drift + active().liveness.scheduling_noise_seconds


def checked(body: Report, rate: float, elapsed: float) -> Report:
    """The report itself where its times can be true, else one with those replaced that cannot.

    `elapsed`: seconds on the coordinator's clock since before the work of this report began; 0 or less where that
    clock itself has gone back, so that nothing is known. `rate`: points a second in earlier reports. Seconds of
    computing that cannot be true become those that the visits would have taken at that rate; 0 where none is known,
    which means that they were not measured. Other times become 0.
    """
    elapsed = elapsed if elapsed > 0 else math.inf
    most, shortest = longest(elapsed), body.visits * SHORTEST_VISIT
    if shortest <= body.compute <= most and 0.0 <= body.respond <= most and 0.0 <= body.wait <= most < math.inf:
        return body
    compute, respond, wait = (credible(t, elapsed) for t in (body.compute, body.respond, body.wait))
    if compute < shortest or compute != body.compute:
        compute = min(body.visits / rate, elapsed * active().liveness.clock_drift) if rate > 0 else 0.0
        compute = compute if shortest <= compute < math.inf else 0.0
    if (compute, respond, wait) == (body.compute, body.respond, body.wait):
        return body
    return msgspec.structs.replace(body, compute=compute, respond=respond, wait=wait)
