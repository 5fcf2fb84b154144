"""Words that a shell completes: algorithms, models, data sets, hyper-parameters, and values that `--help` shows as
`auto|off`. Reads no file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from flegel.errors import FlegelError

Complete = Callable[[str], list[str]]
WORD = re.compile(r"[a-z][a-z0-9]*")


def choices(metavar: str) -> list[str]:
    """Values that an option takes as they stand, of those that stand for its value: `N|colocated` has one."""
    return [word for word in metavar.split("|") if "|" in metavar and WORD.fullmatch(word)]


def _beginning(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def one_of(words: Iterable[str]) -> Complete:
    kept = list(words)

    def complete(incomplete: str) -> list[str]:
        return _beginning(kept, incomplete)

    return complete


def algorithms(incomplete: str) -> list[str]:
    from flegel.algorithms import BUILTINS

    return _beginning(BUILTINS, incomplete)


def models(incomplete: str) -> list[str]:
    from flegel import sync

    return _beginning(sync.models(), incomplete)


def data_sets(incomplete: str) -> list[str]:
    from flegel.datasets.catalog.sets import ENTRIES

    return _beginning((entry.name for entry in ENTRIES), incomplete)


def hyper_parameters(ctx: Any, incomplete: str) -> list[str]:
    """Of the built-in algorithm that was typed before, with `=` behind it; a class of the user's is not imported. While
    an option lacks its value, the algorithm is among the words that are left over."""
    from flegel.algorithms import BUILTINS
    from flegel.runtime.job.find_algorithm import find_algorithm

    name = str(ctx.params.get("algorithm") or next(iter(ctx.args), ""))
    try:
        known = find_algorithm(name).hyper_parameters() if name in BUILTINS else {}
    except FlegelError:
        return []
    return _beginning((f"{each}=" for each in known), incomplete)


def values_of(option: str, metavar: str) -> Complete | None:
    """What completes the value of an option of a job; None where files may be meant, or anything."""
    if option == "sync":
        return models
    words = choices(metavar)
    return one_of(words) if words else None
