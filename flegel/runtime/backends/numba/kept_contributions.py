"""The loop over points of a class that returns contributions: what is kept of a point is replaced, the statistics get
the difference. Without a copy of either; `flegel.core.kept_state` says the same for one interpreted point.

Where a hidden value is the one that is kept already, the point's statistics are the same too and are not computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flegel.core import pytree
from flegel.core.code_cache import njit
from flegel.core.kept_state import TOO_LARGE, TUPLE, KeptForm
from flegel.core.pytree import Tree

OTHER_SIZE = "a point's contribution has another size than that of the first point"


@njit(nogil=True, error_model="numpy", inline="never")
def replace_kept(target: Any, value: Any, kept: Any, at: int, weight: float) -> None:
    """target += weight · (value − kept), and the value is kept; `at`: where in the row this field begins."""
    into, new = target.reshape(-1), value.ravel()
    if new.shape[0] != into.shape[0]:
        raise ValueError(OTHER_SIZE)
    for j in range(new.shape[0]):
        before = kept[at + j]
        kept[at + j] = new[j]
        into[j] += weight * (float(kept[at + j]) - float(before))


@njit(nogil=True, error_model="numpy")
def replace_rows(target: Any, value: Any, kept: Any) -> None:
    """The same contribution for each row of a state, to see how long that takes."""
    for i in range(kept.shape[0]):
        replace_kept(target, value, kept[i], 0, 1.0)


@njit(nogil=True, error_model="numpy", inline="never")
def replace_kept_number(target: Any, value: Any, kept: Any, at: int, weight: float) -> None:
    """The same of a field that is one number."""
    before = kept[at]
    kept[at] = value
    target[()] += weight * (float(kept[at]) - float(before))


@njit(nogil=True, error_model="numpy", inline="never")
def add_weighted(target: Any, value: Any, weight: float) -> None:
    """target += weight · value."""
    into, new = target.reshape(-1), value.ravel()
    if new.shape[0] != into.shape[0]:
        raise ValueError(OTHER_SIZE)
    for j in range(new.shape[0]):
        into[j] += weight * new[j]


@njit(nogil=True, error_model="numpy", inline="never")
def differs(kept: Any, fresh: Any) -> bool:
    """Another value than the one that is kept, or the first one: the mark of an unvisited point is 0."""
    for j in range(kept.shape[0]):  # noqa: SIM110 - compiled
        if kept[j] != fresh[j]:
            return True
    return False


@njit(nogil=True, error_model="numpy", inline="never")
def check_exact(kept: Any, value: Any) -> None:
    """Integers beside reals must fit into the precision of the rows."""
    if np.any(kept != value):
        raise ValueError(TOO_LARGE)


@dataclass(frozen=True)
class VisitCode:
    """Parts of the generated module of a class (`compiler.TEMPLATE`)."""

    definitions: str
    prepared: str
    """Before the loop over points."""
    visit: str
    """For point i: from its features to the statistics."""


HOME = __name__


def visit_code(hook: str, form: KeptForm, zero: Tree, spent: tuple[str, ...], point: str, call: str) -> VisitCode:
    """How a point is visited. `point`: an expression that makes it; `call`: of the hook on `point`, as text."""
    fields = list(zip(pytree.names(zero), pytree.flatten(zero), strict=True))
    bundle = pytree.is_bundle(zero)

    def part(name: str) -> str:
        return f"change.{name}" if bundle else "change"

    def added(names: list[str], weight: str) -> list[str]:
        lines = []
        for i, (name, array) in enumerate(fields):
            if name in names:
                plain = f"a{i}[()] += {weight} * {part(name)}"
                lines.append(f"_kept.add_weighted(a{i}, {part(name)}, {weight})" if array.ndim else plain)
        return lines

    first = [f"import {HOME} as _kept", f"point = {point}", f"change = {call}"]
    used, summed = [n for n, _ in fields if n in spent], [n for n, _ in fields if n not in spent]
    if hook == "contribution":
        lines, at = [], 0
        for i, (name, array) in enumerate(fields):
            if name in spent:
                continue
            function = "replace_kept" if array.ndim else "replace_kept_number"
            lines.append(f"_kept.{function}(a{i}, {part(name)}, state[i], {at}, weight)")
            at += array.size
        return VisitCode(first[0], "", _joined([*first[1:], *added(used, "weight"), *lines]))
    names = [f"found.{f.name}" if form.name not in ("", TUPLE) else f"found[{f.name}]" for f in form.fields]
    names = names if form.name else ["found"]
    packed, at = ["fresh[0] = 1"], 1
    for field, name in zip(form.fields, names, strict=True):
        end = at + field.numbers
        value = f"{name}.ravel()" if field.shape else name
        place = f"fresh[{at}:{end}]" if field.shape else f"fresh[{at}]"
        packed.append(f"{place} = {value}")
        if field.kind == "i" and form.dtype.kind == "f":
            packed.append(f"_kept.check_exact({place}, {value})")
        at = end
    value = "_value(state[i])"
    lines = [
        first[1],
        first[2].replace("change =", "found ="),
        *packed,
        "new = _kept.differs(state[i], fresh)",
        "if new and state[i, 0] != 0:",
        f"    change = _statistics_of(self, point, {value})",
        *(f"    {line}" for line in added(summed, "-weight")),
        "if new:",
        "    state[i, :] = fresh",
        f"    change = _statistics_of(self, point, {value})",
        *(f"    {line}" for line in added([*summed, *used], "weight")),
    ]
    if used:
        lines += [
            "else:",
            f"    change = _statistics_of(self, point, {value})",
            *(f"    {line}" for line in added(used, "weight")),
        ]
    definitions = [first[0], "import numpy as np", "_statistics_of = njit(**_how)(_algorithm.statistics_of)"]
    return VisitCode(
        "\n".join([*definitions, *_unpacking(form)]), "fresh = np.empty(state.shape[1], state.dtype)", _joined(lines)
    )


def _unpacking(form: KeptForm) -> list[str]:
    """A compiled function from a row of the state to the hidden value that it holds."""
    types = {"f": "np.float64", "i": "np.int64", "b": "np.bool_"}
    parts, at = [], 1
    for field in form.fields:
        if field.shape:
            parts.append(f"row[{at}:{at + field.numbers}].astype({types[field.kind]}).reshape({field.shape!r})")
        else:
            parts.append(f"{types[field.kind]}(row[{at}])")
        at += field.numbers
    listed = ", ".join(parts)
    made = parts[0] if not form.name else f"({listed},)" if form.name == TUPLE else f"_Hidden({listed})"
    lines = ["@njit(**_how)", "def _value(row):", f"    return {made}"]
    if form.name not in ("", TUPLE):
        lines.insert(0, f"_Hidden = namedtuple({form.name!r}, {tuple(f.name for f in form.fields)!r})")
    return lines


def _joined(lines: list[str]) -> str:
    return "\n        ".join(lines)
