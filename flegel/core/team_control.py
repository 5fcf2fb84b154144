"""The numbers by which the threads of a team find each other (`team_loop`). Imports no compiler."""

from __future__ import annotations

import numpy as np

from flegel.core.pytree import Array

INDEX_BITS, GENERATION_BITS = 20, 22
"""Of the cursor: for the number of blocks and for the next one; for the generation."""
MAX_BLOCKS = 1 << (INDEX_BITS - 1)  # threads add to the cursor beyond the last block, once each
GENERATION, CURSOR, DONE, SLEEPERS, LEADER_SLEEPS, FAILED, OVER, TIMEOUT = (8 * place for place in range(8))
"""Places of these numbers, a cache line each. TIMEOUT: seconds and nanoseconds after which a sleeper looks again."""
TAKES_PART = 64
"""From here on by thread, a cache line each: the last generation of which it took a block."""
LOOK_AGAIN_NANOSECONDS = 200_000_000  # a sleeper is woken by others; this bounds what a lost wake-up would cost


def new_control(threads: int) -> Array:
    control = np.zeros(TAKES_PART + 8 * threads, np.int64)
    control[TAKES_PART:] = -1
    control[TIMEOUT + 1] = LOOK_AGAIN_NANOSECONDS
    return control
