"""One process of a host compiles a function, the others wait for its code. Compiles nothing itself.

The lock is the kernel's: it goes with the process that holds it. A process that is stopped, or a file system without
locks, delays the others at most `PATIENCE` seconds; then they compile themselves, which is right, only dearer.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from flegel.runtime import clock

PATIENCE = 60.0
LOOK_EVERY = 0.02


@contextlib.contextmanager
def turn(path: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Inside, no other process of this host is in the same turn, unless patience ran out."""
    with path.open("a") as file:
        deadline = clock.now() + patience
        while clock.now() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                clock.sleep(LOOK_EVERY)
            except OSError:  # no locks here
                break
        yield
