"""Weights of the network that trains now, kept now and then.

A module of its own, because a class that uses a filled list could not travel to workers.
"""

from __future__ import annotations

import time
from typing import Any

EVERY = 0.2  # seconds between two weights that are kept
KEPT: list[Any] = []


def keep(parameter: Any) -> None:
    """Keep these weights, unless others were kept just now."""
    now = time.monotonic()
    if not KEPT or now - KEPT[-1][0] >= EVERY:
        KEPT.append((now, int(parameter.course[1]), parameter.weights.copy(), parameter.buffers.copy()))
