"""Objects as plain data and back: numbers, text, bytes and lists, which MessagePack can write. Pure: no file, no clock.

Only objects of registered classes are stored and made, and reading never runs code. The parts of a coordinator register
their classes where they are defined; a synchronization model names in `stored` what it keeps inside itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, is_dataclass
from typing import Any, NamedTuple

import msgpack
import msgspec
import numpy as np

from flegel import sync
from flegel.core import pytree
from flegel.errors import StorageError

PLAIN = (type(None), bool, float, str, bytes)
WORD = 1 << 63  # a whole number from here on does not fit into 64 bits


@dataclass(frozen=True)
class GeneratorState:
    """A stored generator of random numbers; the runtime makes one of it again."""

    state: dict[str, Any]


# -- what may be stored ------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A class whose objects may be stored."""

    cls: type
    not_stored: frozenset[str]
    """Names of its attributes that are left out."""


_KINDS: dict[str, Kind] = {}
"""By name of the class."""


def register(kinds: Mapping[type, tuple[str, ...]]) -> None:
    """These classes may be stored, without the attributes named."""
    for cls, not_stored in kinds.items():
        _KINDS[cls.__name__] = Kind(cls, frozenset(not_stored))


def _known(name: str, cls: type | None = None) -> Kind | None:
    """The class of this name. A model may have been defined since the last look."""
    found = _KINDS.get(name)
    if found is None or (cls is not None and found.cls is not cls):
        for model in sync.models().values():
            register({**model.stored, model: model.transient})
    return _KINDS.get(name)


# -- objects to plain data and back ------------------------------------------------------------------------


def freeze(value: Any) -> Any:
    """Plain data that `thaw` understands. Raises `TypeError` for what is of no known kind."""
    match value:
        case _ if isinstance(value, PLAIN):
            return value
        case int():
            return value if -WORD <= value < WORD else ["int", hex(value)]
        case np.ndarray():
            return ["array", value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()]
        case np.generic():
            return ["number", value.dtype.str, value.tobytes()]
        case deque():
            return ["queue", value.maxlen, [freeze(v) for v in value]]
        case set() | frozenset():
            return ["set", [freeze(v) for v in sorted(value)]]
        case list():
            return ["list", [freeze(v) for v in value]]
        case tuple() if not pytree.is_bundle(value):  # a bundle is a named tuple: its class decides, below
            return ["tuple", [freeze(v) for v in value]]
        case dict():
            return ["dict", [[freeze(k), freeze(v)] for k, v in value.items()]]
    if hasattr(value, "bit_generator"):
        return ["generator", freeze(value.bit_generator.state)]
    cls = type(value)
    kind = _known(cls.__name__, cls)
    if kind is None or kind.cls is not cls:
        raise TypeError(f"{cls.__name__} cannot be stored in a checkpoint")
    inside = msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else vars(value)
    return ["object", cls.__name__, [[k, freeze(v)] for k, v in inside.items() if k not in kind.not_stored]]


def thaw(data: Any, like: Any = None) -> Any:
    """What was frozen. An object fills `like` where that is of the same kind; what a file lacks keeps its default."""
    if not isinstance(data, list):
        return data
    match data:
        case ["int", text]:
            return int(text, 16)
        case ["array", dtype, shape, content]:
            return np.frombuffer(content, dtype=np.dtype(dtype)).reshape(shape).copy()
        case ["number", dtype, content]:
            return np.frombuffer(content, dtype=np.dtype(dtype))[0]
        case ["generator", state]:
            return GeneratorState(thaw(state))
        case ["queue", maxlen, items]:
            return deque((thaw(v) for v in items), maxlen)
        case ["set", items]:
            return {thaw(v) for v in items}
        case ["list", items]:
            return [thaw(v) for v in items]
        case ["tuple", items]:
            return tuple(thaw(v) for v in items)
        case ["dict", items]:
            return {thaw(k): thaw(v) for k, v in items}
        case ["object", str(name), items] if (known := _known(name)) is not None:
            return _object(*known, items, like)
    raise StorageError(f"The checkpoint holds {str(data[:2])[:60]}, which this version does not know.")


def _object(kind: type, transient: frozenset[str], items: list[Any], like: Any) -> Any:
    """An object of class `kind` from its stored attributes. `like`: a freshly built object that they fill where it is
    of this class, so that every attribute is checked against the one it replaces; without, an object is made. The
    attributes named by `transient` are not stored and not read: whoever built `like` has set them."""
    inner = {name: value for name, value in items if name not in transient}
    if issubclass(kind, msgspec.Struct) or (is_dataclass(kind) and type(like) is not kind):
        try:
            return kind(**{name: thaw(value) for name, value in inner.items()})
        except TypeError as error:
            raise StorageError(f"The checkpoint does not fit this version: {error}.") from None
    fills_like = type(like) is kind
    made = copy(like) if fills_like and _frozen(kind) else like if fills_like else object.__new__(kind)
    inside = vars(made)
    for name, value in inner.items():
        if fills_like and name not in inside:
            raise StorageError(f"The checkpoint holds {kind.__name__}.{name}, which this version does not know.")
        found = thaw(value, inside.get(name))
        if fills_like and not fits(found, inside[name]):
            raise StorageError(f"The checkpoint holds a {kind.__name__}.{name} that cannot be.")
        inside[name] = found
    return made


def fits(found: Any, here: Any) -> bool:
    """What was stored may take the place of what a new object has: a number that of a number, a list that of a list.
    What is None in a new object may have become anything; what is an object of its own may have become None."""
    if here is None or (found is None and type(here).__name__ in _KINDS):
        return True
    if isinstance(here, int | float | np.number) and not isinstance(here, bool):
        return isinstance(found, int | float | np.number) and not isinstance(found, bool)
    if isinstance(here, deque):
        return isinstance(found, deque) and found.maxlen == here.maxlen
    return type(found) is type(here)


def _frozen(kind: type) -> bool:
    """Such an object may be somebody else's, too."""
    return is_dataclass(kind) and bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def pack(data: Any) -> bytes:
    return bytes(msgpack.packb(data, use_bin_type=True))


def unpack(content: bytes) -> Any:
    """Raises `StorageError` and nothing else where the bytes are no plain data."""
    try:
        return msgpack.unpackb(content, raw=False, strict_map_key=False)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise StorageError(f"not readable ({error})") from None
