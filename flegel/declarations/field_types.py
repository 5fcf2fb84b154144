"""Fields of a declaration have the types that it names: `spent="visits"` is refused where a tuple of names is meant."""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import cache
from types import UnionType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from flegel.errors import UsageError


class TypedFields:
    """Base of the declarations: checks their fields when one is made. A list is taken for a tuple, an integer for a
    real number."""

    def __post_init__(self) -> None:
        hints = _hints(cast("Any", type(self)))
        for each in fields(cast("Any", self)):  # its subclasses are dataclasses
            value = getattr(self, each.name)
            if each.default is MISSING or value is not each.default:
                object.__setattr__(self, each.name, self._converted(each.name, value, hints[each.name]))

    def _converted(self, name: str, value: Any, hint: Any) -> Any:
        """The value in the type that the field declares; an error in one sentence where it is another."""
        if get_origin(hint) is UnionType and isinstance(value, hint):
            return value  # an object of the package, such as Sharding
        try:
            return msgspec.convert(value.item() if isinstance(value, np.generic) else value, hint)
        except (msgspec.ValidationError, TypeError):
            raise UsageError(
                f"{type(self).__name__}({name}={value!r}): {name} is {_described(hint)}; correct the class."
            ) from None


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _described(hint: Any) -> str:
    """What fits, in words."""
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    if get_origin(hint) is tuple:
        return "a tuple of names, such as ('counts',)" if get_args(hint)[0] is str else "a tuple of dictionaries"
    words = {bool: "True or False", str: "text", float: "a number"}
    return words.get(hint, "of another type" if get_args(hint)[-1:] == (type(None),) else "a dictionary of names")
