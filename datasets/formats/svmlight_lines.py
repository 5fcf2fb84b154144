"""The compiled parser of LIBSVM/SVMlight lines. Loaded with the first such file, because it needs numba.

Numbers that one multiplication does not convert exactly are parsed by Python's `float`. Never guesses: an error names
the bad token and its line.
"""

from __future__ import annotations

import numpy as np

from flegel.core.code_cache import njit
from flegel.core.pytree import Array
from flegel.errors import DataError

_POWERS = 10.0 ** np.arange(23)  # of ten that float64 holds exactly
_OK, _BAD_NUMBER, _BAD_INDEX, _ORDER, _NO_COLON = range(5)
_PROBLEMS = {
    _BAD_NUMBER: "a value that is not a number",
    _BAD_INDEX: "an index that is not a whole number from 0 to 2147483646",
    _ORDER: "indices that do not ascend",
    _NO_COLON: "an entry without index:value",
}


@njit(cache=True, nogil=True)
def _number(text: Array, at: int, end: int, powers: Array) -> tuple[int, float]:
    """State and value of the decimal number in text[at:end]: 0 exact, 1 not a number, 2 left to `float`."""
    sign = 1.0
    if at < end and (text[at] == 45 or text[at] == 43):
        sign = -1.0 if text[at] == 45 else 1.0
        at += 1
    mantissa, digits, scale, seen = np.uint64(0), 0, 0, False
    point = False
    while at < end:
        c = text[at]
        if 48 <= c <= 57:
            seen = True
            if digits > 0 or c != 48:
                digits += 1
            if digits > 18:
                return 2, 0.0
            mantissa = mantissa * np.uint64(10) + np.uint64(c - 48)
            if point:
                scale -= 1
        elif c == 46 and not point:
            point = True
        else:
            break
        at += 1
    if not seen:
        return 2, 0.0  # nan, inf or no number: `float` decides
    if at < end:
        if text[at] != 101 and text[at] != 69:
            return 1, 0.0
        at += 1
        down = False
        if at < end and (text[at] == 45 or text[at] == 43):
            down = text[at] == 45
            at += 1
        if at >= end or end - at > 4:
            return 2, 0.0
        power = 0
        while at < end:
            if text[at] < 48 or text[at] > 57:
                return 1, 0.0
            power = power * 10 + int(text[at] - 48)
            at += 1
        scale += -power if down else power
    if mantissa > np.uint64(1 << 53) or scale > 22 or scale < -22:
        return 2, 0.0
    value = float(mantissa)
    value = value * powers[scale] if scale >= 0 else value / powers[-scale]
    return 0, sign * value


@njit(cache=True, nogil=True)
def _index(text: Array, start: int, end: int) -> int:
    """The digits of an index; -1 where it has another sign, or is too large for 32 bits."""
    if start == end or end - start > 10:
        return -1
    index = 0
    for k in range(start, end):
        if text[k] < 48 or text[k] > 57:
            return -1
        index = index * 10 + int(text[k] - 48)
    return index if index <= 2147483646 else -1


@njit(cache=True, nogil=True)
def _rows(
    text: Array, powers: Array, labels: Array, indptr: Array, indices: Array, values: Array, slow: Array
) -> tuple[int, int, int, int, int, int]:
    """(problem, line, at, rows, entries, left to `float`); `slow` gets (slot, start, end), labels as -1 - row."""
    at, size = 0, len(text)
    line, rows, entries, later = 0, 0, 0, 0
    while at < size:
        end = at
        while end < size and text[end] != 10:
            end += 1
        stop = at
        while stop < end and text[stop] != 35:
            stop += 1
        first, last = True, -1
        while at < stop:
            while at < stop and (text[at] == 32 or text[at] == 9 or text[at] == 13):
                at += 1
            token = at
            colon = -1
            while at < stop and not (text[at] == 32 or text[at] == 9 or text[at] == 13):
                if text[at] == 58 and colon < 0:
                    colon = at
                at += 1
            if token == at:
                break
            if first:
                state, value = _number(text, token, at, powers)
                if state == 1:
                    return _BAD_NUMBER, line, token, rows, entries, later
                if state == 2:
                    slow[later, 0], slow[later, 1], slow[later, 2] = -1 - rows, token, at
                    later += 1
                labels[rows] = value
                first = False
                continue
            if colon < 0:
                return _NO_COLON, line, token, rows, entries, later
            if colon - token == 3 and text[token] == 113 and text[token + 1] == 105 and text[token + 2] == 100:
                continue  # qid:
            index = _index(text, token, colon)
            if index < 0:
                return _BAD_INDEX, line, token, rows, entries, later
            if index <= last:
                return _ORDER, line, token, rows, entries, later
            last = index
            state, value = _number(text, colon + 1, at, powers)
            if state == 1:
                return _BAD_NUMBER, line, token, rows, entries, later
            if state == 2:
                slow[later, 0], slow[later, 1], slow[later, 2] = entries, colon + 1, at
                later += 1
            indices[entries] = index
            values[entries] = value
            entries += 1
        if not first:
            rows += 1
            indptr[rows] = entries
        at = end + 1
        line += 1
    return _OK, line, at, rows, entries, later


def parse(text: bytes, first_line: int, origin: str) -> tuple[Array, Array, Array, Array]:
    """(labels, indptr, indices as written, values) of whole lines."""
    data = np.frombuffer(text, np.uint8)
    lines = int(np.count_nonzero(data == 10)) + 1
    room = int(np.count_nonzero(data == 58))
    labels, indptr = np.zeros(lines), np.zeros(lines + 1, np.int64)
    indices, values = np.zeros(room, np.int64), np.zeros(room)
    slow = np.zeros((room + lines, 3), np.int64)
    problem, line, at, rows, entries, later = _rows(data, _POWERS, labels, indptr, indices, values, slow)
    if problem:
        raise DataError(
            f"{origin}, line {first_line + line} has {_PROBLEMS[problem]}: {_token(text, at)}; "
            "correct or remove the line."
        )
    for slot, start, end in slow[:later].tolist():
        try:
            value = float(text[start:end])
        except ValueError:
            line = first_line + text.count(b"\n", 0, start)
            raise DataError(
                f"{origin}, line {line} has {_PROBLEMS[_BAD_NUMBER]}: {_token(text, start)}; "
                "correct or remove the line."
            ) from None
        if slot < 0:
            labels[-1 - slot] = value
        else:
            values[slot] = value
    return labels[:rows], indptr[: rows + 1], indices[:entries], values[:entries]


def _token(text: bytes, at: int) -> str:
    token = text[at : at + 40].split(None, 1)
    return repr(token[0].decode("utf-8", "replace")) if token else "''"
