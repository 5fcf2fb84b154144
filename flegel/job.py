"""What a job is, in plain typed records that can be written to disk and sent over the wire.

Nothing here acts. `Criteria` says when to stop, `SyncSpec` how workers synchronize.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from flegel.errors import UsageError


class AlgorithmRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An algorithm by name (built-in) or by source (a user's class)."""

    name: str
    hyper: dict[str, Any]
    source: str = ""
    """Module text that defines class `name`; empty for built-ins."""

    @property
    def builtin(self) -> bool:
        return not self.source


class Criteria(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When to stop; the first one that holds ends the job. None or 0 switches a criterion off."""

    max_iterations: int | None = None
    target: float | None = None
    tolerance: float = 1e-4
    max_seconds: float | None = None

    def check(self, *, has_objective: bool, halts: bool) -> None:
        """A job that could never end is refused before it starts."""
        if self.max_iterations is not None and self.max_iterations < 1:
            raise UsageError(f"--max-iterations {self.max_iterations} must be at least 1.")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise UsageError(f"--max-seconds {self.max_seconds:g} must be more than 0.")
        if not self.tolerance >= 0:
            raise UsageError(f"--tolerance {self.tolerance:g} must be 0 (off) or more.")
        if self.target is not None and not math.isfinite(self.target):
            raise UsageError(f"--target {self.target:g} must be a finite number.")
        if self.target is not None and not has_objective:
            raise UsageError("This algorithm defines no objective, so --target cannot be used with it.")
        by_objective = has_objective and (self.tolerance > 0 or self.target is not None)
        if not (self.max_iterations or self.max_seconds or by_objective or halts):
            raise UsageError("Nothing would ever end this job: give --max-iterations, --max-seconds or --tolerance.")


class SyncSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The synchronization model by name, and its switches."""

    name: str = "fsp"
    interval: float | None = None
    """Seconds between barriers; None lets the model find it."""
    first_interval: float | None = None
    """Seconds of the first interval of a model that finds its own; None measures first."""
    coordination: str | None = None
    """`semi` or `centralized`; None is the model's default."""
    staleness: int | None = None
    """How many batches a worker may be ahead of the slowest (`ssp`)."""
    batches: int | None = None
    """Batches that a worker makes of a pass over its share."""
    factor: float | None = None
    """λ of the recursive search (`fsp-binary`, `bsp-mini`)."""
    balance: str | None = None
    """`async`, `sync` or `off`: do points move to faster workers? None is the model's default."""


def check_seed(seed: int) -> None:
    """Seeds are what every generator of dice takes."""
    if not 0 <= seed < 2**63:
        raise UsageError(f"The seed must be a whole number from 0 to 2**63 - 1, not {seed}.")


def parse_seconds(text: str) -> float:
    """'200ms', '1.5s', '80us', '2min' or a bare number of seconds."""
    units = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "min": 60.0, "s": 1.0, "": 1.0}
    stripped = text.strip()
    for unit in ("us", "µs", "ms", "min", "s", ""):
        if stripped.endswith(unit):
            number = stripped[: len(stripped) - len(unit)]
            try:
                value = float(number) * units[unit]
            except ValueError:
                continue
            if 0 < value < float("inf"):
                return value
            break
    raise UsageError(f"{text!r} is no duration; write for instance 200ms, 1.5s or 2min.")
