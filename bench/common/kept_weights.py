"""Weights of the network that this thread trains, kept now and then.

A module of its own, because a class that uses a filled list could not travel to workers.
"""

from __future__ import annotations

import threading
import time
from typing import Any

EVERY = 0.2  # seconds between two weights that are kept
HELD = threading.local()


def kept() -> list[Any]:
    """When, after how many steps, weights, buffers."""
    if not hasattr(HELD, "weights"):
        HELD.weights = []
    found: list[Any] = HELD.weights
    return found


def keep(parameter: Any) -> None:
    """Keep these weights, unless others were kept just now."""
    now, before = time.monotonic(), kept()
    if not before or now - before[-1][0] >= EVERY:
        before.append((now, int(parameter.course[1]), parameter.weights.copy(), parameter.buffers.copy()))
