"""Memory of this process and of others, as the kernel tells it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

PAUSE = 0.02  # seconds between two looks
SETTLED = 0.5  # seconds after which nothing of an earlier job is left


def peak_of(pid: int) -> int:
    """Largest resident size of a process so far, bytes; 0 where it is gone."""
    try:
        with Path(f"/proc/{pid}/status").open(encoding="utf-8") as status:
            lines = dict(line.split(":", 1) for line in status if ":" in line)
    except OSError:
        return 0
    return 1024 * int(lines.get("VmHWM", "0 kB").split()[0])


def held_together() -> int:
    """Bytes of this process and its descendants; what several have mapped counts once."""
    own = psutil.Process()
    total = 0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(OSError):  # it has just ended
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
            total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


@contextlib.contextmanager
def most_held() -> Iterator[list[int]]:
    """The most that was held inside, beyond what was held before; one number, when it is over."""
    time.sleep(SETTLED)
    before, found, over = held_together(), [0], threading.Event()

    def look() -> None:
        while not over.wait(PAUSE):
            found[0] = max(found[0], held_together() - before)

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield found
    finally:
        over.set()
        watch.join()
