"""Options that are described once, beside the field of a record: help, flag, parser, and where each of them applies.

A field of a record says `Annotated[float | None, Option("Stop when the objective is this good.")]`. The signature of
`flegel.run`, the flags of the command line and the tables of docs/cli.md are derived from that. Knows no record itself,
and reads no command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from flegel.errors import UsageError, nearest
from flegel.wording import duration_option
from flegel.wording import option as named

Record = TypeVar("Record", bound=msgspec.Struct)
_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}


@dataclass(frozen=True)
class Option:
    """What people read about an option, and what may be done with it."""

    help: str
    panel: str = "Training"
    """Heading under which `--help` and docs/cli.md list it."""
    name: str = ""
    """In Python and as a flag; that of the field where empty."""
    metavar: str = ""
    """What stands for the value in `--help`."""
    default: str = ""
    """The default in words, where the value itself says little."""
    parse: Callable[[Any], Any] | None = None
    """From text such as '200ms' to a value; raises `UsageError`."""
    accepts: str = "str"
    """Types besides the field's own that `parse` takes, as Python source."""
    check: Callable[[Any, str], None] | None = None
    """Given a value, and how a message shows it (`--missing drop`, `missing="drop"`); raises `UsageError` where the
    value cannot be used."""
    resume: str = ""
    """Help of `flegel resume`, for an option that may change there; it cannot where empty."""
    local: bool = True
    """It can be used on one host."""
    cluster: bool = True
    """It can be used on a cluster."""
    refusal: str = ""
    """The sentence that refuses it on a cluster, where it needs one of its own."""
    command_line: bool = True
    """It is a flag too, not only an option of Python."""
    see: str = ""
    """Page of docs/ that explains it."""
    instead: Callable[[Any], tuple[str, Any]] | None = None
    """Of a deprecated option, which still works: from its value to the name and value of the one to use instead."""


@dataclass(frozen=True)
class NamedOption:
    """An option with its place in a record."""

    name: str
    path: tuple[str, ...]
    """Fields that lead to it: `("seed",)`, `("sync", "interval")`."""
    type: Any
    default: Any
    about: Option

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def flags(self) -> str:
        """As Typer declares it: one that is on by default has a flag that switches it off."""
        return f"{self.flag}/--no-{self.flag[2:]}" if self.default is True else self.flag

    @property
    def word_type(self) -> Any:
        """The type of its value on the command line: text where it is parsed, or where text is one of several types."""
        kinds = [kind for kind in _members(self.type) if kind is not NoneType]
        if self.about.parse is not None or str in kinds:
            return str
        return kinds[0]

    @property
    def python_type(self) -> str:
        """What `flegel.run` takes, as Python source."""
        names = [
            kind.__name__ if isinstance(kind, type) else str(kind)
            for kind in _members(self.type)
            if kind is not NoneType
        ]
        names += [each for each in self.about.accepts.split(" | ") if self.about.parse and each not in names]
        return " | ".join([*names, *(["None"] if NoneType in _members(self.type) else [])])

    def convert(self, value: Any) -> Any:
        """A value as the record holds it, from one that a caller gave; raises `UsageError` for one of another type."""
        if isinstance(value, str | os.PathLike) and self.about.parse is not None:
            return self.about.parse(value)
        plain = value.tolist() if hasattr(value, "tolist") else value  # numbers and lists of NumPy and pandas
        kinds = _members(self.type)
        if isinstance(plain, float) and float not in kinds and plain.is_integer():
            plain = int(plain)
        try:
            return msgspec.convert(plain, self.type)
        except msgspec.ValidationError:
            wanted = " or ".join(dict.fromkeys(_WORDS.get(kind, "a list") for kind in kinds if kind is not NoneType))
            if hasattr(value, "shape"):
                raise UsageError(
                    f"{self.name} must be {wanted}, not an array; arrays come with the rows: (X, y, weights)."
                ) from None
            raise UsageError(f"{named(self.name, value)} must be {wanted}.") from None

    def value(self, record: msgspec.Struct) -> Any:
        found: Any = record
        for field in self.path:
            found = getattr(found, field)
        return found


@cache
def options_of(record: type[msgspec.Struct]) -> Mapping[str, NamedOption]:
    """All options of a record by name, in the order of its fields; those of records inside it as well."""
    found: dict[str, NamedOption] = {}
    for field in msgspec.structs.fields(record):
        if get_origin(field.type) is Annotated:
            kind, about = get_args(field.type)[:2]
            name = about.name or field.name
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            found[name] = NamedOption(name, (field.name,), kind, default, about)
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            for inner in options_of(field.type).values():
                found[inner.name] = NamedOption(
                    inner.name, (field.name, *inner.path), inner.type, inner.default, inner.about
                )
    return found


def with_options(record: Record, given: Mapping[str, Any]) -> Record:
    """The record with other values for some of its options, by their names."""
    known = options_of(type(record))
    changes: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"There is no option {name!r}{nearest(name, list(known))}")
        option = known[name]
        holder, *inner = option.path
        converted = option.convert(value)
        if inner:
            before = changes.get(holder, getattr(record, holder))
            converted = msgspec.structs.replace(before, **{inner[0]: converted})
        changes[holder] = converted
    return msgspec.structs.replace(record, **changes)


def check_options(record: msgspec.Struct) -> None:
    """Each value that can be judged by itself; raises `UsageError` for the first that cannot be used."""
    for option in options_of(type(record)).values():
        if option.about.check is not None:
            value = option.value(record)
            if _is_refused(option.about.check, value):
                shown = duration_option if option.about.parse is parse_seconds else named
                option.about.check(value, shown(option.name, value))


def _is_refused(check: Callable[[Any, str], None], value: Any) -> bool:
    """Whether a check raises. Asked without the option's name: to put that into words takes longer than all checks."""
    try:
        check(value, "")
    except UsageError:
        return True
    return False


def deprecations(record: msgspec.Struct, given: Iterable[str]) -> list[str]:
    """A sentence for each of the given options that is deprecated and has another value than its default."""
    known, found = options_of(type(record)), []
    for option in (known[name] for name in given if name in known):
        value = option.value(record)
        if option.about.instead is not None and value != option.default:
            found.append(f"{named(option.name, value)} is deprecated; use {named(*option.about.instead(value))}.")
    return found


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


# -- values that are written as text -----------------------------------------------------------------------


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


def parse_bytes(text: str) -> int:
    """'2G', '512M', '1.5GiB' or a bare number of bytes."""
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    word = text.strip().upper().removesuffix("IB").removesuffix("B")
    shift = units.get(word[-1:], 0)
    try:
        value = int(float(word[:-1] if shift else word) * (1 << shift))
    except (ValueError, OverflowError):
        value = 0
    if not 64 << 20 <= value < 1 << 60:
        raise UsageError(f"{text!r} is no limit of memory; write for instance 512M or 2G (at least 64M).")
    return value


def parse_address(text: str, option: str = "--metrics") -> tuple[str, int]:
    """Host and port; 127.0.0.1 unless another host is named."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) < 65536:
        raise UsageError(f"{option} {text}: give PORT or HOST:PORT.")
    return host.strip("[]") or "127.0.0.1", int(port)
