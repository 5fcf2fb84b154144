"""What hooks return, checked: a bundle of numbers, a number, a yes or no. One sentence says what was expected. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np

from flegel.core import pytree
from flegel.core.pytree import Tree
from flegel.errors import AlgorithmError

BUNDLE = "an array, or a NamedTuple of arrays"


def tree(value: Any, hook: str, convert: Callable[[Any], Tree], place: str = "") -> Tree:
    """The bundle that `convert` makes of what the hook returned."""
    where = f" in {place}" if place else ""
    if isinstance(value, dict):
        fields = ", ".join(map(str, list(value)[:5]))
        raise AlgorithmError(
            f"{hook} returned a dict{where}; use {BUNDLE}: class Theta(NamedTuple) with the fields {fields}."
        )
    if value is None or isinstance(value, str | bytes | set) or (callable(value) and not hasattr(value, "shape")):
        raise AlgorithmError(f"{hook} returned {_shown(value)}{where}; expected {BUNDLE}.")
    try:
        made = convert(value)
    except (TypeError, ValueError) as error:
        raise AlgorithmError(f"{hook} returned {_shown(value)}{where}; expected {BUNDLE} ({error}).") from None
    if any(array.dtype.kind not in "fiub" for array in pytree.flatten(made)):
        raise AlgorithmError(f"{hook} returned {_shown(value)}{where}; expected {BUNDLE}, of numbers.")
    return made


def number(value: Any, hook: str, place: str) -> float | None:
    """A real number, perhaps not finite, or None."""
    if value is None:
        return None
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "fiub":
        return float(value.reshape(-1)[0])
    if isinstance(value, Real) and not isinstance(value, bool | np.bool_):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    raise AlgorithmError(f"{hook} returned {_shown(value)} in {place}; expected a number, or None.")


def truth(value: Any, hook: str, place: str) -> bool:
    """Yes or no; None is no."""
    if value is None or isinstance(value, bool | np.bool_ | int):
        return bool(value)
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "biu":
        return bool(value.reshape(-1)[0])
    raise AlgorithmError(f"{hook} returned {_shown(value)} in {place}; expected True or False.")


def texts(value: Any, hook: str) -> list[str]:
    """Sentences for people."""
    if isinstance(value, str):
        return [value]
    if value is None or (isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)):
        return list(value or ())
    raise AlgorithmError(f"{hook} returned {_shown(value)}; expected a list of sentences.")


def figures(value: Any, hook: str, place: str) -> dict[str, float]:
    """Numbers by name, in their order; without those that are None."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise AlgorithmError(f"{hook} returned {_shown(value)} in {place}; expected a dict of numbers by name.")
    found = {name: number(one, f"{hook}, {name!r}:", place) for name, one in value.items()}
    return {name: one for name, one in found.items() if one is not None}


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:59] + '…'} ({type(value).__name__})"
