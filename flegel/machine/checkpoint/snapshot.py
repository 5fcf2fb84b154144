"""The coordinator's side of a checkpoint: the whole state of a job between two commits as plain data. Pure: no file.

Stored are θ, statistics by owner, round, iteration, the model's own memory (interval, search, δ), balance, termination,
the time account of each worker, and generators of random numbers that an algorithm holds. Each part of the coordinator
offers `state()`; continuing from it is `resume.py`, and the points are `shard_states.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from flegel.core.pytree import Array
from flegel.machine.plain_data import freeze, register, thaw
from flegel.plan.termination import Termination, Verdict
from flegel.sync.policy import Updated, View, WorkerView
from flegel.sync.rebuild_statistics import RebuildStatistics

OF_EVERY_JOB = frozenset({"now", "parts", "view", "policy", "termination", "event", "algorithm"})
"""What every snapshot holds; the rest are optional parts of the coordinator, by name."""

register({View: ("_awaited",), WorkerView: (), Updated: (), Verdict: (), Termination: ("_criteria", "_sign", "_slow")})


class StatefulPart(Protocol):
    """A part of the coordinator that tells its state, as values that `plain_data` can store."""

    def state(self) -> dict[str, Any]: ...


def take(
    parts: Mapping[str, StatefulPart], objects: Mapping[str, Any], algorithm: Any, event: Updated, now: float
) -> dict[str, Any]:
    """At a moment when every worker has committed, and `event` is what the model hears next. `objects` are stored
    whole."""
    whole = {name: value.model if isinstance(value, RebuildStatistics) else value for name, value in objects.items()}
    return {
        "now": now,
        "parts": {name: freeze(part.state()) for name, part in parts.items()},
        **{name: freeze(value) for name, value in whole.items()},
        "event": freeze(event),
        "algorithm": freeze(memory_of(algorithm)),
    }


def memory_of(algorithm: Any) -> dict[str, Any]:
    """What an algorithm remembers besides its hyper-parameters, such as a generator of random numbers."""
    kept: dict[str, Any] = {}
    for name, value in vars(algorithm).items():
        try:
            freeze(value)
        except TypeError:
            continue
        kept[name] = value
    return kept


def optional_parts(data: dict[str, Any]) -> list[str]:
    """Names of the optional parts that stored something."""
    return [name for name in data if name not in OF_EVERY_JOB]


def part_of(data: dict[str, Any], name: str) -> dict[str, Any]:
    """What one part of the coordinator stored."""
    found: dict[str, Any] = thaw(data["parts"][name])
    return found


def parameter_of(data: dict[str, Any]) -> list[Array]:
    """The arrays of θ."""
    found: list[Array] = part_of(data, "store")["parameter"]
    return found


def statistics_of(data: dict[str, Any]) -> list[Array]:
    found: list[Array] = part_of(data, "store")["statistics"]
    return found


def workers_of(data: dict[str, Any]) -> tuple[int, ...]:
    """Who held the points, in the order of the parts."""
    return tuple(thaw(data["view"]).workers)


def resting_of(data: dict[str, Any]) -> tuple[int, ...]:
    """Who was at hand without points."""
    return tuple(sorted(part_of(data, "job")["resting"]))


def algorithm_of(data: dict[str, Any]) -> dict[str, Any]:
    """What the algorithm remembered."""
    found: dict[str, Any] = thaw(data["algorithm"])
    return found
