"""Write one point, get the block: a user's `updateDataPoint` and `aggregate` become one compiled loop.

The loop is a small generated module (see `TEMPLATE`), named by the content of everything that goes into it and
kept in the cache folder, so that numba compiles it once and every worker loads it. What numba cannot compile
runs interpreted with the same meaning. Nothing here knows any particular algorithm.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import threading
import types
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core.types import NamedTuple as NumbaNamedTuple
from numba.core.types import NamedUniTuple as NumbaNamedUniTuple
from numba.extending import overload_method, register_jitable

from flegel.algorithm import Algorithm, visit_hook, visit_hooks
from flegel.core import pytree
from flegel.core.code_folder import code_folder, write_once
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Shard, Sparse
from flegel.declarations.kernels import Kernel
from flegel.loading.class_source import load_class, reference
from flegel.loading.code_gate import Consent, import_file
from flegel.runtime.backends.numba.calls_ahead import (
    AheadCall,
    calls_ahead,
    loop_parts,
    parsed_hook,
    with_calls_ahead,
)
from flegel.runtime.backends.numba.compiled_values import compiled_values
from flegel.runtime.backends.numba.interpreted_loop import as_hooks_see, data_point, fold_change
from flegel.runtime.backends.numba.kept_contributions import VisitCode, visit_code
from flegel.runtime.worker.current_hook import EnteredHook

BUILTIN_PACKAGE = "flegel.algorithms"
TEMPLATE = '''"""Generated: the loop over a block of points for {title}."""
from collections import namedtuple
from flegel.core.borrowed_arrays import borrowed
from flegel.core.code_cache import njit
from flegel.core.atomic_flag import raised
from flegel.core.shard import DataPoint, SparseRow
import flegel.runtime.backends.numba.compiler
{imports}
_algorithm = flegel.runtime.backends.numba.compiler.class_for_glue("@key@")
_Self = namedtuple("_Self", {self_fields!r})
{tuples}
_fast = {{"contract", "reassoc", "nsz", "arcp", "afn"}}
_how = {{"nogil": True, "forceinline": True, "error_model": "numpy", "fastmath": _fast}}
_update = njit(**_how)({method})
{fold_definition}
{fillers}

@njit(nogil=True, error_model="numpy", cache=True)
def block({arguments}):
    {borrowing}
    self = _Self({self_values})
    parameter = {parameter}
    target = {target}
    {prepared}
    for i in range(start, end):
        if raised(flag):
            return i
        place[0] = i
        if halted[i]:
            continue
        halting[0] = 0
        {filled}
        {local}
        {visit}
        if halting[0]:
            halted[i] = 1
    return end
'''


@overload_method(NumbaNamedUniTuple, "voteToHalt")  # type: ignore[untyped-decorator] # fields of one type: no hyper-parameters
@overload_method(NumbaNamedTuple, "voteToHalt")  # type: ignore[untyped-decorator]
def _vote_to_halt(self: Any) -> Any:
    if "halting" not in self.fields:
        return None

    def implementation(self: Any) -> None:
        self.halting[0] = 1

    return implementation


def wake_compiler() -> None:
    """The first thing that numba compiles, or loads from its cache, has it read its own tables; here there is time."""
    numba.njit(nogil=True)(lambda value: value)(0)


# -- compiled ----------------------------------------------------------------------------------------------

_classes: dict[str, type[Algorithm]] = {}
_admitted: set[types.FunctionType] = set()


def class_for_glue(key: str) -> type[Algorithm]:
    """The class that a generated module was made for."""
    return _classes[key]


def compile_loop(algorithm: Algorithm, shard: Shard, parameter: Tree, zero: Tree) -> Kernel:
    """A loop over the hooks of a class, to be compiled when it is called first."""
    cls = load_class(reference(algorithm), Consent.PRESENT)
    used = _hyper_used(cls, algorithm)
    sparse = isinstance(shard.features, Sparse)
    ahead: list[AheadCall] = []
    if not _own_local_parameter(cls):  # where θ changes from point to point, nothing can be computed ahead
        ahead = calls_ahead(getattr(cls, visit_hook(cls)), shard, as_hooks_see(algorithm, parameter, shard))
    text = _generate(cls, used, sparse, parameter, zero, algorithm, shard, ahead)
    changed = inspect.getsource(sys.modules[with_calls_ahead.__module__]) if ahead else ""
    changed += inspect.getsource(sys.modules[visit_code.__module__]) if algorithm._kept is not None else ""
    hooks = (*visit_hooks(cls), cls.aggregate, *_own_local_parameter(cls))
    whole = repr((text, _class_text(cls), changed, compiled_values(hooks), numba.__version__))
    key = hashlib.sha256(whole.encode()).hexdigest()[:20]
    _classes[key] = cls
    _admit_helpers(cls)
    block = _load_glue(key, text.replace("@key@", key))
    hyper = tuple(getattr(algorithm, name) for name in used)
    return _kernel_of(algorithm, block, hyper, ahead)


def _kernel_of(algorithm: Algorithm, block: Any, hyper: tuple[Any, ...], ahead: list[AheadCall]) -> Kernel:
    """The loop as workers call it. `kernel.another()` is one for another thread."""
    halting, place = np.zeros(1, np.uint8), np.zeros(1, np.int64)

    def kernel(
        shard: Shard, parameter: Tree, aggregator: Tree, start: int, end: int, iteration: int, flag: Array
    ) -> int:
        """Visit points start … end-1 with the compiled block; returns the first point that was not visited."""
        features = shard.features
        if isinstance(features, Sparse):
            data: tuple[Array, ...] = (features.indptr, features.indices, features.values)
        else:
            data = (np.ascontiguousarray(features) if ahead else features,)
        weights = () if shard.weights is None else (shard.weights,)
        seen = as_hooks_see(algorithm, parameter, shard)
        theta = [np.ascontiguousarray(a) if ahead and a.ndim else a for a in pytree.flatten(seen)]
        found = [array for call in ahead for array in call.room(shard, seen)]
        place[0] = -1
        try:
            return int(
                block(
                    *hyper,
                    halting,
                    place,
                    *data,
                    *weights,
                    shard.labels,
                    shard.state,
                    shard.halted,
                    *theta,
                    *pytree.flatten(aggregator),
                    *found,
                    start,
                    end,
                    iteration,
                    flag,
                )
            )
        except Exception:
            if place[0] >= 0:
                _again(algorithm, shard, int(place[0]), parameter, aggregator, iteration)
            raise

    kernel.another = partial(_kernel_of, algorithm, block, hyper, ahead)  # type: ignore[attr-defined]
    return kernel


def _again(algorithm: Algorithm, shard: Shard, i: int, parameter: Tree, aggregator: Tree, iteration: int) -> None:
    """Compiled code raised at point i: run that point interpreted, so that the traceback shows the user's lines."""
    presented = pytree.present(as_hooks_see(algorithm, parameter, shard))
    change = algorithm.updateDataPoint(data_point(shard, i), presented, iteration)
    fold_change(algorithm, pytree.copy(aggregator), change)


_glue_lock = threading.Lock()


def _load_glue(key: str, text: str) -> Any:
    name = f"flegel_block_{key}"
    with _glue_lock:  # workers in threads: a module is in `sys.modules` before it has run
        if name not in sys.modules:
            path = code_folder() / f"{name}.py"
            write_once(path, text)
            import_file(name, path, text.encode(), Consent.PRESENT)
        return sys.modules[name].block  # type: ignore[attr-defined]


def _class_text(cls: type) -> str:
    """The class with its helpers and the classes it inherits from, and files they come from, as text. What functions
    take from memory is told by `compiled_values`."""
    module = sys.modules[cls.__module__]
    carried = getattr(module, "__flegel_source__", None)
    homes = {sys.modules.get(function.__module__) for function in _helpers(cls).values()}
    homes |= {sys.modules.get(base.__module__) for base in cls.__mro__ if base not in Algorithm.__mro__}
    homes -= {module, None}
    files = sorted(f for home in _with_neighbours(homes) if (f := getattr(home, "__file__", None)))
    texts = [str(carried) if carried is not None else inspect.getsource(module)]
    return repr([*texts, *(Path(f).read_text(encoding="utf-8", errors="replace") for f in files)])


def _with_neighbours(homes: set[Any]) -> set[Any]:
    """Modules, and those of the same package that they take names from: a helper compiles its own helpers in."""
    found, waiting = set(), set(homes)
    while waiting:
        home = waiting.pop()
        found.add(home)
        used = {v if isinstance(v, types.ModuleType) else _home_of(v) for v in list(vars(home).values())}
        waiting |= {m for m in used if m is not None and _package(m) and _package(m) == _package(home)} - found
    return found


def _home_of(value: Any) -> Any:
    name = getattr(value, "__module__", None)
    return sys.modules.get(name) if isinstance(name, str) else None


def _package(module: Any) -> str:
    """The package whose modules compile each other's helpers in; all built-in algorithms are one."""
    name = str(module.__name__)
    return BUILTIN_PACKAGE if name.startswith(f"{BUILTIN_PACKAGE}.") else name.rpartition(".")[0]


def _helpers(cls: type) -> dict[str, types.FunctionType]:
    """Functions that the class's module has under a global name, compiled ones as their Python originals."""
    values = {n: getattr(v, "py_func", v) for n, v in vars(sys.modules[cls.__module__]).items()}
    return {n: v for n, v in values.items() if isinstance(v, types.FunctionType)}


def _admit_helpers(cls: type) -> None:
    """Let compiled hooks call the user's plain helper functions."""
    for name, function in _helpers(cls).items():
        plain = vars(sys.modules[cls.__module__])[name] is function
        if plain and function not in _admitted:
            _admitted.add(function)
            register_jitable(function)


def _hyper_used(cls: type[Algorithm], algorithm: Algorithm) -> list[str]:
    """Hyper-parameters that the compiled hooks mention as self.name."""
    known = algorithm.hyper_parameters()
    mentioned: set[str] = set()
    for function in (*visit_hooks(cls), cls.aggregate, *_own_local_parameter(cls)):
        mentioned |= set(_attributes_of_self(function))
    return [name for name in known if name in mentioned]


def _own_local_parameter(cls: type[Algorithm]) -> list[Any]:
    """The hook by which a worker's own θ follows from what it has gathered, where the class defines it."""
    return [found] if (found := getattr(cls, "localParameter", None)) is not None else []


def _attributes_of_self(function: types.FunctionType | Any) -> list[str]:
    """Names that a hook takes from its first parameter; without its source all names that its code mentions."""
    code, parsed = function.__code__, parsed_hook(function)
    if parsed is None:
        return list(code.co_names)
    first = code.co_varnames[0] if code.co_varnames else "self"
    return [
        n.attr
        for n in ast.walk(parsed)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == first
    ]


def _generate(
    cls: type[Algorithm],
    used: list[str],
    sparse: bool,
    parameter: Tree,
    zero: Tree,
    algorithm: Algorithm,
    shard: Shard,
    ahead: list[AheadCall],
) -> str:
    """Fill the template. Arrays are passed one by one and put into their tuples inside the loop's function."""
    data = ["indptr", "indices", "values"] if sparse else ["features"]
    theta = [f"p{i}" for i in range(len(pytree.flatten(parameter)))]
    sums = [f"a{i}" for i in range(len(pytree.flatten(zero)))]
    hyper = [f"h_{name}" for name in used]
    scalars = [a if np.ndim(v) else f"{a}[()]" for a, v in zip(theta, pytree.flatten(parameter), strict=True)]
    tuples = [
        f"{name} = namedtuple({name!r}, {pytree.names(value)!r})"
        for name, value in (("_Parameter", parameter), ("_Statistics", zero))
        if pytree.is_bundle(value)
    ]
    lo_hi = "indptr[i] : indptr[i + 1]"
    weights = [] if shard.weights is None else ["weights"]
    found = [name for n in range(len(ahead)) for name in (f"found{n}", f"offset{n}")]
    arrays = ["halting", "place", *data, *weights, "labels", "state", "halted", *theta, *sums, *found]
    parts = loop_parts(ahead, visit_hook(cls))
    features = f"SparseRow(indices[{lo_hi}], values[{lo_hi}])" if sparse else "features[i]"
    code = _visit_code(cls, algorithm, shard, parameter, zero, features, parts.pop("results"))
    own = _own_local_parameter(cls)
    if own:
        code = replace(code, definitions=f"{code.definitions}\n_local = njit(**_how)(_algorithm.localParameter)")
    parts["prepared"] = "\n    ".join(line for line in (code.prepared, parts["prepared"]) if line)
    return TEMPLATE.format(
        title=cls.__name__,
        self_fields=(*used, "halting"),
        tuples="\n".join(tuples),
        fold_definition=code.definitions,
        arguments=", ".join([*hyper, *arrays, "start", "end", "iteration", "flag"]),
        borrowing="; ".join(f"{name} = borrowed({name})" for name in arrays),
        self_values=", ".join([*hyper, "halting"]),
        parameter=f"_Parameter({', '.join(scalars)})" if pytree.is_bundle(parameter) else scalars[0],
        target=f"_Statistics({', '.join(sums)})" if pytree.is_bundle(zero) else sums[0],
        local="local = _local(self, parameter, target)" if own else "local = parameter",
        visit=code.visit,
        **parts,
    )


def _visit_code(
    cls: type[Algorithm], algorithm: Algorithm, shard: Shard, parameter: Tree, zero: Tree, features: str, results: str
) -> VisitCode:
    """Source text that leads from the features of point i to the statistics: by its change, or by what the engine keeps
    of it."""
    hook, form = visit_hook(cls), algorithm._kept
    weight = "1.0" if shard.weights is None else "weights[i]"
    if form is not None:
        point = f"DataPoint({features}, labels[i], state[i, :0], {weight})"
        call = f"_update(self, point, local{results})"
        code = visit_code(hook, form, zero, algorithm.statistics.spent, point, call)
        return replace(code, visit=f"weight = {weight}\n        {code.visit}")
    definition, fold = _fold_code(cls, algorithm, shard, parameter, zero)
    point = f"DataPoint({features}, labels[i], state[i], {weight})"
    return VisitCode(definition, "", f"change = _update(self, {point}, local, iteration{results})\n        {fold}")


def _fold_code(
    cls: type[Algorithm], algorithm: Algorithm, shard: Shard, parameter: Tree, zero: Tree
) -> tuple[str, str]:
    """How a point's change gets into the target: the user's `aggregate`, or plain addition field by field."""
    bundle = pytree.is_bundle(zero)
    fields = list(zip(pytree.names(zero), pytree.flatten(zero), strict=True))
    if cls.aggregate is Algorithm.aggregate:
        parts = [
            f"a{i}{'' if a.ndim else '[()]'} += change{f'.{name}' if bundle else ''}"
            for i, (name, a) in enumerate(fields)
        ]
        return "", "; ".join(parts)
    definition = "_fold = njit(**_how)(_algorithm.aggregate)"
    if _works_in_place(algorithm, shard, parameter, zero):
        return definition, "_fold(self, target, change)"
    parts = [
        f"a{i}[{'...' if a.ndim else '()'}] = result{f'.{name}' if bundle else ''}"
        for i, (name, a) in enumerate(fields)
    ]
    return definition, "result = _fold(self, target, change); " + "; ".join(parts)


def _works_in_place(algorithm: Algorithm, shard: Shard, parameter: Tree, zero: Tree) -> bool:
    """Try `aggregate` on one point's change: does it return nothing or its own target, or something new?"""
    probe = data_point(shard, 0)
    probe = probe._replace(state=probe.state.copy())
    target = pytree.copy(zero)
    presented = pytree.presented(as_hooks_see(algorithm, parameter, shard))
    with EnteredHook("updateDataPoint"):
        change = algorithm.updateDataPoint(probe, presented, 0)
    with EnteredHook("aggregate"):
        result = algorithm.aggregate(target, change)
    algorithm._halting = False
    return result is None or result is target
