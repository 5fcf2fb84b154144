"""How a slave was started. Read by its parts, changed by none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SlaveSettings:
    """The options of `flegel slave`."""

    name: str
    slots: int
    address: str
    folder: Path
    memory: int
    """Bytes that a process may use if its job does not say."""
    drain: float
    """Seconds that running jobs have to leave when the slave is asked to stop."""
    data: tuple[Path, ...] = ()
    """Folders that files may be read from; empty for all."""
    abandon: float | None = None
    """Seconds without a message of the master after which the slave ends; None: never."""
    isolation: str = "none"
    """`namespace`: jobs see neither keys nor other jobs; `strict`: they also write to no other files and signal no
    other processes."""
    write: tuple[Path, ...] = ()
    """Folders that jobs may write to under `strict`."""
