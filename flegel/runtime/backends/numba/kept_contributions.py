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
from flegel.core.kept_state import COUNTED, NOT_KEPT_EXACTLY, TUPLE, KeptForm
from flegel.core.pytree import Array, Tree

OTHER_SHAPE = "a point's contribution or hidden value has another shape than that of the first point"


@njit(nogil=True, error_model="numpy", inline="never")
def check_shape(found: Any, expected: Any) -> None:
    """Every point needs the same shapes: the row of the state has one place for each number."""
    if len(found) != len(expected):
        raise ValueError(OTHER_SHAPE)
    for j in range(len(found)):
        if found[j] != expected[j]:
            raise ValueError(OTHER_SHAPE)


@njit(nogil=True, error_model="numpy", inline="never")
def replace_kept(target: Any, value: Any, kept: Any, at: int, weight: float) -> None:
    """target += weight · (value − kept), and the value is kept; `at`: where in the row this field begins."""
    check_shape(value.shape, target.shape)
    into, new = target.reshape(-1), value.ravel()
    for j in range(new.shape[0]):
        before = kept[at + j]
        kept[at + j] = new[j]
        # Read back, as the state's precision has rounded it: the statistics are then the sum of what is kept.
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
    check_shape(value.shape, target.shape)
    into, new = target.reshape(-1), value.ravel()
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
    """Integers must fit into the type of the state, and stay integers."""
    if np.any(kept != value):
        raise ValueError(NOT_KEPT_EXACTLY)


@njit(nogil=True, error_model="numpy", inline="never")
def check_truth(value: Any) -> None:
    """Truth values are 0 or 1 at every point."""
    if np.any((value != 0) != value):
        raise ValueError(NOT_KEPT_EXACTLY)


@dataclass(frozen=True)
class VisitCode:
    """Parts of the generated module of a class (`compiler.TEMPLATE`)."""

    definitions: str
    prepared: str
    """Before the loop over points."""
    visit: str
    """For point i: from its features to the statistics."""


IMPORT = f"import {__name__} as _kept"


def visit_code(hook: str, form: KeptForm, zero: Tree, spent: tuple[str, ...], point: str, call: str) -> VisitCode:
    """How a point is visited. `point`: an expression that makes it; `call`: of the hook on `point`, as text."""
    fields = _Fields(zero, spent)
    if form == COUNTED:
        lines = [f"point = {point}", f"change = {call}", *_added(fields.summed, "weight"), "state[i, 0] = 1"]
        return VisitCode(IMPORT, "", _joined(["if state[i, 0] == 0:", *(f"    {line}" for line in lines)]))
    return (
        _contribution_code(fields, point, call) if hook == "contribution" else _hidden_code(form, fields, point, call)
    )


class _Fields:
    """The fields of the statistics, as the generated loop names them: `a0`, `a1`, … and `change`."""

    def __init__(self, zero: Tree, spent: tuple[str, ...]) -> None:
        arrays = zip(pytree.names(zero), pytree.flatten(zero), strict=True)
        bundle = pytree.is_bundle(zero)
        named = [(n, f"a{i}", f"change.{n}" if bundle else "change", a) for i, (n, a) in enumerate(arrays)]
        self.spent = [(target, part, array) for name, target, part, array in named if name in spent]
        self.summed = [(target, part, array) for name, target, part, array in named if name not in spent]


def _added(fields: list[tuple[str, str, Array]], weight: str) -> list[str]:
    """Lines that add these fields of `change` to the statistics."""
    return [
        f"_kept.add_weighted({target}, {part}, {weight})" if array.ndim else f"{target}[()] += {weight} * {part}"
        for target, part, array in fields
    ]


def _contribution_code(fields: _Fields, point: str, call: str) -> VisitCode:
    lines, at = [f"point = {point}", f"change = {call}", *_added(fields.spent, "weight")], 0
    for target, part, array in fields.summed:
        function = "replace_kept" if array.ndim else "replace_kept_number"
        lines.append(f"_kept.{function}({target}, {part}, state[i], {at}, weight)")
        at += array.size
    return VisitCode(IMPORT, "", _joined(lines))


def _hidden_code(form: KeptForm, fields: _Fields, point: str, call: str) -> VisitCode:
    """Code that keeps the hidden value of each point: where it changes, the old contribution is subtracted and the new
    one added."""
    changed = "    change = _statistics_of(self, point, _value(state[i]))"
    lines = [
        f"point = {point}",
        f"found = {call}",
        *_packing(form),
        "new = _kept.differs(state[i], fresh)",
        "if new and state[i, 0] != 0:",
        changed,
        *(f"    {line}" for line in _added(fields.summed, "-weight")),
        "if new:",
        "    state[i, :] = fresh",
        changed,
        *(f"    {line}" for line in _added([*fields.summed, *fields.spent], "weight")),
    ]
    if fields.spent:
        lines += ["else:", changed, *(f"    {line}" for line in _added(fields.spent, "weight"))]
    definitions = [IMPORT, "import numpy as np", "_statistics_of = njit(**_how)(_algorithm.statistics_of)"]
    return VisitCode(
        "\n".join([*definitions, *_unpacking(form)]), "fresh = np.empty(state.shape[1], state.dtype)", _joined(lines)
    )


def _packing(form: KeptForm) -> list[str]:
    """Lines that write the hidden value `found` into the row `fresh`."""
    lines, at = ["fresh[0] = 1"], 1
    for field in form.fields:
        name = f"found[{field.name}]" if form.name == TUPLE else f"found.{field.name}" if form.name else "found"
        place, value = f"fresh[{at}]", name
        if field.shape:
            place, value = f"fresh[{at}:{at + field.numbers}]", f"{name}.ravel()"
            lines.append(f"_kept.check_shape({name}.shape, {field.shape!r})")
        lines.append(f"{place} = {value}")
        if field.kind == "i":
            lines.append(f"_kept.check_exact({place}, {value})")
        if field.kind == "b":
            lines.append(f"_kept.check_truth({value})")
        at += field.numbers
    return lines


def _unpacking(form: KeptForm) -> list[str]:
    """Source lines of `_value(row)`: from a row of the state to the hidden value that it holds. `_how`, the options of
    the compiler, is defined by the template in compiler.py."""
    types = {"f": "np.float64", "i": "np.int64", "b": "np.bool_"}
    parts, at = [], 1  # row[0] marks a visited point
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
