"""What keeps a class slow: how fast its points are visited, and what in its hooks costs most. Changes nothing.

Reads the source of the hook that visits a point and times the kernel on a few thousand generated rows. Advice is given
only for what was seen in the class, and each piece says what to write instead.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from flegel.algorithm import Algorithm, visit_hook
from flegel.checks.conformance import Trial
from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag
from flegel.declarations.kernels import KernelHooks
from flegel.declarations.optional import hook
from flegel.loading.syntax_tree import parse_source
from flegel.runtime import clock
from flegel.runtime.backends.numba.calls_ahead import calls_one_by_one
from flegel.runtime.backends.numba.kernels import build_kernel
from flegel.runtime.job.compiler_thread import compiled

TIMED_ROWS, TIMED_COLUMNS = 4096, 28  # of the table on which hooks are timed
SMALLER_CHANGE_RATIO = 4  # of numbers in the statistics to columns, from which a smaller change is advised
ALLOCATING = {"zeros", "empty", "ones", "full", "zeros_like", "empty_like", "ones_like", "copy", "array", "arange"}
SLOW_NANOSECONDS = 40.0  # for a point of 28 columns; a faster class is limited by memory, and gets no advice


def speed_advice(algorithm: Algorithm) -> list[str]:
    """How fast it is, then what would make it faster; empty for networks, which have a backend of their own."""
    if algorithm.kernels.backend:
        return []
    rows = np.abs(np.random.default_rng(7).normal(size=(TIMED_ROWS, TIMED_COLUMNS))).astype(np.float32)
    trial = Trial(algorithm, rows, (np.arange(TIMED_ROWS) % 2).astype(np.float64), np.dtype(np.float32))
    kind, note, seconds = _timed(trial)
    said = [
        f"visits a point of {TIMED_COLUMNS} columns in {seconds / TIMED_ROWS * 1e9:.0f} ns, {kind} (float32, one core)"
    ]
    said += _kept(trial, kind)
    if kind == "interpreted":
        return [*said, f"slow: {visit_hook(type(algorithm))} is interpreted, because numba cannot compile it: {note}"]
    if kind == "compiled" and seconds / TIMED_ROWS * 1e9 > SLOW_NANOSECONDS:
        said += [f"slow: {advice}" for advice in _advice(trial)]
    return said


class KernelTiming(NamedTuple):
    """How a kernel was made, and how fast it is."""

    kind: str
    note: str
    seconds: float
    """Of a pass over all points of the trial."""


def _timed(trial: Trial) -> KernelTiming:
    """Compile and call the kernel: its kind, a note, and the seconds of the fastest of three passes over all points."""
    algorithm = trial.algorithm
    state = algorithm.initState(trial.points, trial.columns, np.random.default_rng(5))
    shard = make_shard(trial.features, trial.labels, state, hook(algorithm, KernelHooks.layout_for)(trial.columns))
    built = compiled(lambda: build_kernel(algorithm, shard, trial.parameter, trial.zero))
    sums, flag = pytree.copy(trial.zero), new_flag()
    count = trial.points if built.kind != "interpreted" else 64
    found = []
    for _ in range(3):
        if algorithm.statistics.constant:
            shard.state[:] = 0  # else a second pass would find every point counted
        began = clock.now()
        built.kernel(shard, pytree.read_only(trial.parameter), sums, 0, count, 0, flag)
        found.append((clock.now() - began) * trial.points / count)
    return KernelTiming(built.kind, built.note, min(found))


def _kept(trial: Trial, kind: str) -> list[str]:
    """What it costs to return contributions in place of changes: room for each point, and time."""
    form = trial.algorithm._kept
    if form is None:
        return []
    state = trial.shard("rows").state
    room = f"keeps {state.shape[1] * state.itemsize} bytes of state a point"
    if trial.algorithm.statistics.constant:
        return [f"{room} (a mark that it was counted)"]
    if form.marked:
        return [f"{room} (a hidden value); statistics_of is called twice where that changes, and not where it stays"]
    if kind == "interpreted":
        return [f"{room} (its last contribution)"]
    return [
        f"{room} (its last contribution), and takes {_difference_seconds(state) * 1e9:.0f} ns of each visit to "
        "replace it; a class that returns the change keeps what its initState makes"
    ]


def _difference_seconds(state: Array) -> float:
    """A point's part of the time to replace a kept contribution by another one."""
    from flegel.runtime.backends.numba.kept_contributions import replace_rows  # numba takes a second to import

    kept, new, target = np.zeros_like(state), np.ones(state.shape[1]), np.zeros(state.shape[1])
    replace_rows(target, new, kept[:1])  # compiles
    found = []
    for _ in range(3):
        began = clock.now()
        replace_rows(target, new, kept)
        found.append((clock.now() - began) / len(state))
    return min(found)


def _advice(trial: Trial) -> Iterator[str]:
    """What to write instead, one sentence for each cause of slowness that was found in the class."""
    algorithm = trial.algorithm
    cls, hook = type(algorithm), getattr(type(algorithm), visit_hook(type(algorithm)))
    numbers = sum(array.size for array in pytree.flatten(trial.zero))
    if algorithm._kept is not None:
        if numbers > SMALLER_CHANGE_RATIO * trial.columns and not algorithm._kept.marked:
            yield (
                f"each point replaces {numbers} numbers of the statistics; `hidden` and `statistics_of` keep less, and "
                "updateDataPoint with `aggregate` adds only what a point changes"
            )
    elif cls.aggregate is Algorithm.aggregate and numbers > SMALLER_CHANGE_RATIO * trial.columns:
        yield (
            f"each point adds {numbers} numbers to the statistics; return only what it changes, a smaller NamedTuple, "
            "and fold that in with `aggregate`"
        )
    if _constant_contribution(algorithm):
        yield (
            "contribution does not depend on θ; declare `statistics = Statistics(constant=True)`, and each point is "
            "counted once, by `contributions` whole arrays at a time"
        )
    if not algorithm.kernels.narrow_parameter:
        fix = "`kernels = Kernels(narrow_parameter=True)` on the class doubles the numbers in a register"
        yield f"float32 rows meet a float64 θ; {fix}"
    for line, name in _allocations(hook):
        yield f"line {line} allocates for each point ({name}); use the state, or return plain numbers"
    for line, name in calls_one_by_one(hook):
        yield (
            f"line {line} computes {name} for one point at a time; where it is called on dataPoint.features and θ "
            "themselves (a field of θ; a row of it in a loop over range), not under a condition, it is computed for "
            "many points at once"
        )
    if (inner := _nested_loop(hook)) is not None:
        yield (
            f"line {inner} loops over columns one number at a time; nearest, squared_distance, dot and add_to of "
            "flegel.algorithms.points compute the same in vectors"
        )


def _constant_contribution(algorithm: Algorithm) -> bool:
    """Whether what a point adds is the same under every θ, and the class does not say so: its third argument is not
    read."""
    cls = type(algorithm)
    tree = None if algorithm.statistics.constant or visit_hook(cls) != "contribution" else _parsed(cls.contribution)
    if tree is None or not isinstance(tree, ast.Module) or not isinstance(tree.body[0], ast.FunctionDef):
        return False
    theta = tree.body[0].args.args[-1].arg
    return not any(isinstance(node, ast.Name) and node.id == theta for node in ast.walk(tree))


def _parsed(hook: object) -> ast.AST | None:
    """The syntax tree of a hook, with the line numbers of its file; None without source."""
    try:
        lines, first = inspect.getsourcelines(hook)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return None
    tree = parse_source(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    return tree


def _allocations(hook: object) -> Iterator[tuple[int, str]]:
    """Lines of a hook that make a new array, and what makes it."""
    tree = _parsed(hook)
    for node in ast.walk(tree) if tree is not None else ():
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="np" | "numpy"), attr=name)) if name in ALLOCATING:
                yield node.lineno, f"np.{name}"
            case ast.Call(func=ast.Attribute(attr="copy" | "astype" as name)):
                yield node.lineno, name


def _nested_loop(hook: object) -> int | None:
    """The line of the first loop inside another one."""
    tree = _parsed(hook)
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)] if tree is not None else []
    return next(
        (inner.lineno for loop in loops for inner in ast.walk(loop) if inner in loops and inner is not loop), None
    )
