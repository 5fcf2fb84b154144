"""Who takes part: a synchronization model with its switches, written in one word. Pure.

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
from flegel.options import options_of
from flegel.sync import make_policy

SWITCHES: dict[str, Callable[[str], Any]] = {
    name: option.about.parse or option.word_type
    for name, option in options_of(SyncSpec).items()
    if option.path != ("name",)
}


@dataclass(frozen=True)
class Contender:
    """`label` is how it was written."""

    label: str
    sync: str
    options: dict[str, Any] = field(default_factory=dict)


def parse_contenders(text: str) -> list[Contender]:
    """All contenders in a list with commas; each is checked before anything runs."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError("--sync names no synchronization model; give for instance bsp,fsp.")
    if twice := next((w for w in words if words.count(w) > 1), None):
        raise UsageError(f"{twice} is named twice; each contender runs --repeat times anyway.")
    return [parse_contender(word) for word in words]


def parse_contender(word: str) -> Contender:
    """One of them."""
    sync, *switches = word.split(":")
    options: dict[str, Any] = {}
    for switch in switches:
        name, equals, value = switch.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in SWITCHES:
            raise UsageError(
                f"{switch!r} in {word!r} is no switch, such as fsp:coordination=centralized"
                f"{nearest(name, list(SWITCHES))}"
            )
        try:
            options[name] = SWITCHES[name](value.strip())
        except ValueError:
            raise UsageError(f"{value!r} in {word!r} is not of the right type for {name}.") from None
    if lacking := [name for name in options if not supported(name)]:
        raise UsageError(f"This version of Flegel has no {lacking[0]}, which {word!r} asks for.")
    known = {k: v for k, v in options.items() if k in SyncSpec.__struct_fields__}
    make_policy(SyncSpec(sync, **known))
    return Contender(word, sync, options)


def supported(option: str) -> bool:
    """`flegel.run` takes such an option."""
    from flegel.api import run

    return option in inspect.signature(run).parameters
