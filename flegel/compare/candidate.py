"""Candidates of a comparison: a synchronization model with its options, written in one word. Pure; runs nothing.

fsp
fsp:coordination=centralized
ssp:staleness=3:batches=16
fsp:published
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flegel.errors import UsageError, nearest
from flegel.job import PUBLISHED, SyncSpec
from flegel.options import parse_seconds
from flegel.sync import make_policy, models
from flegel.sync import options as sync_options
from flegel.sync.policy import Seconds
from flegel.wording import option

PARSERS: dict[Any, Callable[[str], Any]] = {Seconds: parse_seconds, int: int, float: float, str: str}
"""By the type of an option, as the synchronization models declare it."""


@dataclass(frozen=True)
class Candidate:
    """`label` is how it was written."""

    label: str
    sync: str
    options: dict[str, Any] = field(default_factory=dict)


def parse_candidates(text: str, published: bool = False) -> list[Candidate]:
    """All candidates of a comma-separated list; each is checked before anything runs. `published`: and the form of the
    paper beside each that has one."""
    text = with_published(text) if published else text
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError("--sync names no synchronization model; give for instance bsp,fsp.")
    if twice := next((w for w in words if words.count(w) > 1), None):
        raise UsageError(f"{twice} is named twice; each candidate runs --repeat times anyway.")
    return [parse_candidate(word) for word in words]


def with_published(text: str) -> str:
    """The same list, and behind each model the form that its paper prints, where that is another one."""
    words: list[str] = []
    for word in filter(None, (each.strip() for each in text.split(","))):
        model = word.partition(":")[0].strip()
        beside = f"{model}{PUBLISHED}"
        words += [word, beside] if beside in models() and beside not in (word, *words) else [word]
    if not any(PUBLISHED in word for word in words):
        known = [name.removesuffix(PUBLISHED) for name in models() if name.endswith(PUBLISHED)]
        raise UsageError(
            f"{option('published')}: no model of {text} has another form in a paper; {', '.join(known)} have."
        )
    return ",".join(dict.fromkeys(words))


def parse_candidate(word: str) -> Candidate:
    """Read one candidate: a model, with options after a colon."""
    sync, *switches = word.split(":")
    if switches and f":{switches[0].strip()}" == PUBLISHED:
        sync, switches = f"{sync.strip()}{PUBLISHED}", switches[1:]
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
