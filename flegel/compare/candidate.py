"""Candidates of a comparison: a synchronization model with its options, written in one word. Pure; runs nothing.

fsp
fsp:coordination=centralized
ssp:staleness=3:batches=16
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flegel.errors import UsageError, nearest
from flegel.job import SyncSpec
from flegel.options import parse_seconds
from flegel.sync import make_policy
from flegel.sync import options as sync_options
from flegel.sync.policy import Seconds

PARSERS: dict[Any, Callable[[str], Any]] = {Seconds: parse_seconds, int: int, float: float, str: str}
"""By the type of an option, as the synchronization models declare it."""


@dataclass(frozen=True)
class Candidate:
    """`label` is how it was written."""

    label: str
    sync: str
    options: dict[str, Any] = field(default_factory=dict)


def parse_candidates(text: str) -> list[Candidate]:
    """All candidates of a comma-separated list; each is checked before anything runs."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError("--sync names no synchronization model; give for instance bsp,fsp.")
    if twice := next((w for w in words if words.count(w) > 1), None):
        raise UsageError(f"{twice} is named twice; each candidate runs --repeat times anyway.")
    return [parse_candidate(word) for word in words]


def parse_candidate(word: str) -> Candidate:
    """Read one candidate: a model, with options after a colon."""
    sync, *switches = word.split(":")
    known, options = sync_options(), dict[str, Any]()
    for switch in switches:
        name, equals, value = switch.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in known:
            raise UsageError(
                f"{switch!r} in {word!r} is no switch, such as fsp:coordination=centralized{nearest(name, list(known))}"
            )
        try:
            options[name] = PARSERS[known[name]](value.strip())
        except ValueError:
            raise UsageError(f"{value!r} in {word!r} is not of the right type for {name}.") from None
    if lacking := [name for name in options if not supported(name)]:
        raise UsageError(f"This version of Flegel has no {lacking[0]}, which {word!r} asks for.")
    make_policy(SyncSpec(sync, **options))
    return Candidate(word, sync, options)


def supported(option: str) -> bool:
    """`flegel.run` takes such an option."""
    from flegel.api.jobs import run

    return option in inspect.signature(run).parameters
