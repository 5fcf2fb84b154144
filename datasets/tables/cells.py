"""What a cell of text is (number, date, boolean, gap, word), and its value. Knows single cells, never a column.

Numbers may be written with a decimal comma and with groups of thousands. Which of both a comma is cannot always be seen
in one cell; such cells have a shape of their own, and `survey` decides by the whole column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone

import msgspec
import numpy as np

from flegel.core.pytree import Array

MISSING = frozenset({"", "?", "na", "n/a", "#n/a", "<na>", "nan", "-nan", "nat", "null", "none", "-", "."})
"""Words, in lower case, that stand for no value."""
BOOLEANS = ({"false": 0.0, "true": 1.0}, {"no": 0.0, "yes": 1.0}, {"f": 0.0, "t": 1.0}, {"n": 0.0, "y": 1.0})
_BOOLEAN_WORDS = {word for pair in BOOLEANS for word in pair}

PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?inf(?:inity)?", re.IGNORECASE)
_PLAIN_SIGNS = frozenset("0123456789+-.eEna")
_INTEGER = re.compile(r"[+-]?\d+")
_DOT_GROUP = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")
_COMMA_GROUP = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
_COMMA_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(?:(?:,\d{3})+\.\d+|(?:,\d{3}){2,})")
_DOT_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(?:(?:\.\d{3})+,\d+|(?:\.\d{3}){2,})")
_SPACED = re.compile("[+-]?\\d{1,3}(?:[ \u00a0\u202f'’]\\d{3})+(?:[.,]\\d+)?")
_SPACES = str.maketrans("", "", " \u00a0\u202f'’")

_TIME = r"(?:[T ]+(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d+))?)?)? ?(Z|UTC|[+-]\d{2}:?\d{2})?"
_YEAR_FIRST = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})" + _TIME)
_YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})" + _TIME)
_MONTH_NAME = re.compile(r"(?:(\d{1,2})[ -])?([A-Za-z]{3,9})\.?[ -](?:(\d{1,2}),? )?(\d{4})")
_MONTHS = {"janfebmaraprmayjunjulaugsepoctnovdec"[k : k + 3]: k // 3 + 1 for k in range(0, 36, 3)}
_DURATION = re.compile(r"([+-]?\d+) days?(?:,? +([+-])?(\d{1,2}):(\d{2}):(\d{2}(?:\.\d+)?))?")
"""As pandas and Python write one: `1 days 02:00:00`, `-1 days +23:59:59`, `1 day, 2:00:00`."""
_ISO_DURATION = re.compile(r"(-)?P(?=[\dT])(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

NUMBERS = frozenset({"integer", "point", "dot-group", "comma", "comma-group", "comma-groups", "dot-groups"})
DATES = frozenset({"year-first", "day-first", "month-first", "day-or-month", "month-name"})


class CellFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the numbers or dates of a column are written."""

    decimal: str = "."
    thousands: str = ""
    """The character between groups; a blank stands for blanks and apostrophes."""
    dates: str = ""
    """`day-first` or `month-first` where a date begins with one of them."""


def is_missing(cell: str) -> bool:
    return cell.lower() in MISSING


def shape(cell: str) -> str:
    """What a cell looks like: a word of `NUMBERS` or `DATES`, `duration`, `boolean`, `missing` or `text`; blanks are
    stripped."""
    if PLAIN.fullmatch(cell):
        if _INTEGER.fullmatch(cell):
            return "integer"
        return "dot-group" if _DOT_GROUP.fullmatch(cell) else "point"
    lower = cell.lower()
    if lower in MISSING:
        return "missing"
    if lower in _BOOLEAN_WORDS:
        return "boolean"
    if not any(c.isdigit() for c in cell):
        return "text"
    if _SPACED.fullmatch(cell):
        return shape(cell.translate(_SPACES)) if "," in cell or "." in cell else "integer"
    for pattern, name in (
        (_COMMA_GROUP, "comma-group"),
        (_DECIMAL_COMMA, "comma"),
        (_COMMA_GROUPS, "comma-groups"),
        (_DOT_GROUPS, "dot-groups"),
    ):
        if pattern.fullmatch(cell):
            return name
    return date_shape(cell)


def plain_numbers(texts: Sequence[str]) -> Array | None:
    """The values of texts that are all plain numbers or gaps (NaN); None where one is something else."""
    # No word of MISSING has more than four characters: most numbers are longer, and are not looked up.
    present = ["nan" if len(text) < 5 and text.lower() in MISSING else text for text in texts]
    if not _PLAIN_SIGNS.issuperset("".join(present)):
        return None
    try:
        return np.array(present, np.float64)
    except ValueError:
        return None


def plain_shape(number: str) -> str:
    """The shape of a plain number."""
    if "." not in number and "e" not in number and "E" not in number:
        return "integer"
    return "dot-group" if _DOT_GROUP.fullmatch(number) else "point"


def is_spaced(cell: str) -> bool:
    """Whether groups of thousands are separated by blanks or apostrophes."""
    return _SPACED.fullmatch(cell) is not None


def date_shape(cell: str) -> str:
    found = _YEAR_LAST.fullmatch(cell)
    if found:
        first, second = int(found[1]), int(found[3])
        european = found[2] == "." or first > 12
        name = "day-first" if european else "month-first" if second > 12 else "day-or-month"
        return name if date_value(cell, CellFormat(dates=name)) is not None else "text"
    name = "year-first" if _YEAR_FIRST.fullmatch(cell) else "month-name" if _MONTH_NAME.fullmatch(cell) else ""
    if name and date_value(cell, CellFormat()) is not None:
        return name
    return "text" if duration_value(cell) is None else "duration"


def number_value(cell: str, written: CellFormat) -> float | None:
    """The number in a cell, or None."""
    if written.thousands == " ":
        cell = cell.translate(_SPACES)
    elif written.thousands:
        cell = cell.replace(written.thousands, "")
    if written.decimal != ".":
        cell = cell.replace(written.decimal, ".")
    return float(cell) if PLAIN.fullmatch(cell) else None


def duration_value(cell: str) -> float | None:
    """The days of a duration, or None."""
    if found := _DURATION.fullmatch(cell):
        days, sign, *clock = found.groups()
        seconds = _seconds(*clock)
        return int(days) + (-seconds if sign == "-" else seconds) / 86400.0
    if found := _ISO_DURATION.fullmatch(cell):
        sign, days, *clock = found.groups()
        value = int(days or 0) + _seconds(*clock) / 86400.0
        return -value if sign else value
    return None


def _seconds(hours: str | None, minutes: str | None, seconds: str | None) -> float:
    return 3600.0 * int(hours or 0) + 60.0 * int(minutes or 0) + float(seconds or 0.0)


def boolean_value(cell: str) -> float | None:
    """0 or 1 for a word, or for the number itself, or None."""
    lower = cell.lower()
    return next((pair[lower] for pair in (*BOOLEANS, {"0": 0.0, "1": 1.0}) if lower in pair), None)


def date_value(cell: str, written: CellFormat) -> float | None:
    """Days since 1970-01-01 in universal time, or None; a date without a zone counts as universal time."""
    parts: tuple[int, int, int]
    times: tuple[str | None, ...] = ()
    if found := _YEAR_FIRST.fullmatch(cell):
        parts, times = (int(found[1]), int(found[3]), int(found[4])), found.groups()[4:]
    elif found := _YEAR_LAST.fullmatch(cell):
        first, second = int(found[1]), int(found[3])
        day, month = (second, first) if written.dates == "month-first" else (first, second)
        parts, times = (int(found[4]), month, day), found.groups()[4:]
    elif found := _MONTH_NAME.fullmatch(cell):
        number = _MONTHS.get(found[2][:3].lower())
        if number is None or (found[1] is None) == (found[3] is None):
            return None
        parts = (int(found[4]), number, int(found[1] or found[3]))
    else:
        return None
    try:
        return _days(parts, times)
    except ValueError:
        return None


def _days(parts: tuple[int, int, int], times: tuple[str | None, ...]) -> float:
    if not times or (times[0] is None and times[4] is None):
        return float((date(*parts) - _EPOCH.date()).days)
    hour, minute, second, fraction, zone = times
    shift = timedelta(0)
    if zone and zone not in ("Z", "UTC"):
        digits = zone[1:].replace(":", "")
        shift = timedelta(hours=int(digits[:2]), minutes=int(digits[2:])) * (-1 if zone[0] == "-" else 1)
    moment = datetime(*parts, int(hour or 0), int(minute or 0), int(second or 0), tzinfo=timezone(shift))
    seconds = (moment - _EPOCH).total_seconds() + float(f"0.{fraction or 0}")
    return seconds / 86400.0
