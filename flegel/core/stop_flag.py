"""The stop flag: one byte that another thread raises and a compiled loop watches (`atomic_flag`)."""

from __future__ import annotations

import numpy as np

from flegel.core.pytree import Array


def new_flag() -> Array:
    return np.zeros(1, np.uint8)
