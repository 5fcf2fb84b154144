"""A user's class to source text and back, so that workers get code without pickle.

What travels is the class and whatever top-level names of its module it uses: helper functions and classes as source,
modules and imported names as import statements, plain constants as literals. A script needs no `__main__` guard,
because nothing else of it runs in a worker, and a class typed into a notebook works. Each piece keeps its file name
and line numbers, so that tracebacks point into the user's own file.
"""

from __future__ import annotations
import __future__

import ast
import hashlib
import importlib
import inspect
import json
import linecache
import math
import symtable
import sys
import threading
import types
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from flegel.algorithm import Algorithm, described_hyper
from flegel.errors import UsageError
from flegel.job import AlgorithmRef
from flegel.loading.code_gate import Consent, execute, require_consent
from flegel.loading.damage import damage_as
from flegel.loading.syntax_tree import parse_source

_BUILTIN = ("flegel.algorithms.", "flegel.torch.")
_CONSTANTS = (int, str, bytes, bool, type(None), tuple, list, dict, set)


def reference(algorithm: Algorithm, whole: bool = False) -> AlgorithmRef:
    """How a worker can make the same algorithm; arrays stay arrays. `whole`: also what only `initParameter` reads."""
    spent = () if whole else algorithm.hyper_names.starting
    hyper = {k: v for k, v in algorithm.hyper().items() if k not in spent or not isinstance(v, np.ndarray)}
    return AlgorithmRef(*_identity(type(algorithm), hyper), algorithm._kept)


def in_plain(ref: AlgorithmRef) -> AlgorithmRef:
    """The same reference for files and other readers: arrays as lists."""
    return msgspec.structs.replace(ref, hyper={k: in_json(v) for k, v in ref.hyper.items()})


def plain_hyper(algorithm: Algorithm) -> dict[str, Any]:
    """Hyper-parameters to compare and to show: arrays of more than a few numbers by shape and hash."""
    return {k: in_json(v) for k, v in described_hyper(algorithm).items()}


def same_code(cls: type[Algorithm], ref: AlgorithmRef) -> bool:
    """The class is the one that was referred to; where its text stands in a file does not matter."""
    name, _, source = _identity(cls, {})
    return name == ref.name and _texts(source) == _texts(ref.source)


def _texts(source: str) -> list[str]:
    return [text for _, _, text in _parsed(source)[1]] if source else []


def _parsed(source: str) -> tuple[bool, list[tuple[str, int, str]]]:
    """Whether annotations are postponed, and the pieces: file, line and text of each. Runs nothing."""
    with damage_as("The source of a class is damaged"):
        content = json.loads(source)
        pieces = msgspec.convert(content["pieces"], list[tuple[str, int, str]])
        return bool(content["postponed"]), pieces


def imported_modules(source: str) -> set[str]:
    """Names of the modules that the source of a class imports, at its top or inside. Runs nothing."""
    found: set[str] = set()
    for _, _, text in _parsed(source)[1]:
        with damage_as("The source of a class is damaged"):
            nodes = list(ast.walk(parse_source(text)))
        for node in nodes:
            match node:
                case ast.Import(names=names):
                    found |= {alias.name for alias in names}
                case ast.ImportFrom(module=str(module), level=0):
                    found.add(module)
    return found


def is_built_in(algorithm: Algorithm) -> bool:
    """Its class is one of ours: a worker imports it."""
    return type(algorithm).__module__.startswith(_BUILTIN)


def _identity(cls: type[Algorithm], hyper: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
    if cls.__module__.startswith(_BUILTIN):
        return f"{cls.__module__}:{cls.__name__}", hyper, ""
    origin = sys.modules.get(cls.__module__)
    carried = getattr(origin, "__flegel_source__", None)
    return cls.__name__, hyper, carried if carried is not None else _source_of(cls)


def in_json(value: Any) -> Any:
    """JSON has no arrays, no infinity and no NaN; as text numbers are converted back to the declared type."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def instantiate(ref: AlgorithmRef, consent: Consent | None) -> Algorithm:
    """The algorithm that a reference names; built-in ones need no consent."""
    return with_hyper(load_class(ref, consent), ref)


def with_hyper(cls: type[Algorithm], ref: AlgorithmRef) -> Algorithm:
    """The class with the hyper-parameters of a reference."""
    unset = {k for k, p in cls.hyper_parameters().items() if p.default is None}
    made = cls(**{k: v for k, v in ref.hyper.items() if v is not None or k not in unset})
    made._kept = ref.kept
    return made


def load_class(ref: AlgorithmRef, consent: Consent | None) -> type[Algorithm]:
    """The class that a reference names: built in by its module, else from its source text, which runs only with
    `consent`."""
    if ref.builtin:
        module, _, name = ref.name.partition(":")
        if not module.startswith(_BUILTIN):
            raise UsageError(f"{ref.name!r} is no built-in algorithm.")
        found = getattr(importlib.import_module(module), name)
    else:
        found = getattr(load_module(ref.source, consent), ref.name)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise UsageError(f"{ref.name} is not a subclass of flegel.Algorithm.")
    return found


_loading = threading.RLock()
"""Reentrant: a module may load another one."""


def load_module(source: str, consent: Consent | None) -> types.ModuleType:
    """The pieces as one module, named by their content; made once per process."""
    name = f"flegel_user_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    with _loading:  # workers may be threads of one process: none may see a module that another has half made
        return sys.modules[name] if name in sys.modules else _made_module(name, source, consent)


def _made_module(name: str, source: str, consent: Consent | None) -> types.ModuleType:
    require_consent(consent, "Source text of a class")
    postponed, pieces = _parsed(source)
    module = types.ModuleType(name)
    module.__dict__["__flegel_source__"] = source
    sys.modules[name] = module
    flags = __future__.annotations.compiler_flag if postponed else 0
    try:
        for filename, line, text in pieces:
            parsed = ast.increment_lineno(parse_source(text), line - 1)
            if filename not in linecache.cache and not linecache.getlines(filename):
                lines = ["\n"] * (line - 1) + text.splitlines(keepends=True)
                linecache.cache[filename] = (len(text), None, lines, filename)
            execute(parsed, filename, module.__dict__, consent, flags=flags)
    except BaseException:
        del sys.modules[name]
        raise
    return module


# -- from a class to pieces --------------------------------------------------------------------------------

Piece = tuple[str, int, str]


def _source_of(cls: type) -> str:
    postponed = vars(sys.modules[cls.__module__]).get("annotations") is __future__.annotations
    return json.dumps({"postponed": postponed, "pieces": _pieces(cls)})


def source_with(definitions: list[Any], text: str) -> str:
    """A module as `load_module` takes it: these classes and functions with what they need, then further text."""
    pieces: dict[tuple[str, str], Piece] = {}
    for value in definitions:
        for piece in _pieces(value):
            pieces.setdefault((piece[0], piece[2]), piece)
    postponed = any(vars(sys.modules[v.__module__]).get("annotations") is __future__.annotations for v in definitions)
    heads = [p for p in pieces.values() if p[0] == "<imports>"]
    bodies = [p for p in pieces.values() if p[0] != "<imports>"]
    return json.dumps(
        {
            "postponed": postponed,
            "pieces": [*heads, *bodies, (f"<{hashlib.sha256(text.encode()).hexdigest()[:12]}>", 1, text)],
        }
    )


def _pieces(cls: Any) -> list[Piece]:
    """A class or a function and what it needs: imports and constants first, then definitions, each after what it
    needs."""
    scope = vars(sys.modules[cls.__module__])
    done: set[str] = set()
    heads: list[Piece] = []
    bodies: list[Piece] = []

    def need(name: str, user: str) -> None:
        """Add what `user` refers to by this name: the source of a class or function of the same module, else an
        import."""
        if name in done or name not in scope:
            return
        done.add(name)
        value = scope[name]
        target = getattr(value, "py_func", value)  # a compiled helper stands for its Python function
        if isinstance(target, (type, types.FunctionType)) and target.__module__ == cls.__module__:
            define(name, target)
        else:
            heads.append(("<imports>", 1, _statement(name, value, user)))

    def define(name: str, value: Any) -> None:
        filename, line, text = _source(name, value)
        for used in _names(text):
            if used != name:
                need(used, name)
        bodies.append((filename, line, text))

    done.add(cls.__name__)
    define(cls.__name__, cls)
    return [*heads, *bodies]


def _names(text: str) -> list[str]:
    """Global names that a definition uses; locals of the same name are left alone."""
    found: dict[str, None] = {}
    scopes = [symtable.symtable(text, "<definition>", "exec")]
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        top = scope.get_type() == "module"
        found.update((s.get_name(), None) for s in scope.get_symbols() if s.is_global() or (top and s.is_referenced()))
    return sorted(found)


def _statement(name: str, value: Any, user: str) -> str:
    """An import or an assignment that gives the worker the same value."""
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__} as {name}"
    if isinstance(value, float):
        return f"{name} = float({float.__repr__(value)!r})"
    if isinstance(value, _CONSTANTS) and _literal(value):
        return f"{name} = {value!r}"
    if isinstance(value, (np.ndarray, np.generic)) and value.size <= 10_000 and value.dtype.kind in "fiub":
        content = f"bytes.fromhex({value.tobytes().hex()!r}), {value.dtype.str!r}"
        scalar = "" if isinstance(value, np.ndarray) else "[()]"
        return f"import numpy\n{name} = numpy.frombuffer({content}).reshape({value.shape!r}).copy(){scalar}"
    module, attribute = getattr(value, "__module__", None), getattr(value, "__qualname__", name)
    for holder, member in ((module, attribute), (module, name), ("typing", name)):
        home = sys.modules.get(holder or "")
        if home is not None and holder != "__main__" and getattr(home, member, None) is value:
            return f"from {holder} import {member} as {name}"
    raise UsageError(
        f"{user} uses the global {name!r} ({type(value).__name__}), which cannot be sent to workers; "
        "make it a hyper-parameter, a constant or part of the class."
    )


def _literal(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError):
        return False


def _source(name: str, value: Any) -> Piece:
    """File, first line and text of a definition."""
    wanted = getattr(value, "__name__", name)
    for filename in _candidates(value):
        lines = linecache.getlines(filename)
        if found := _definitions("".join(lines)).get(wanted):
            first, last = found
            return filename, first, "".join(lines[first - 1 : last])
    raise UsageError(
        f"The source of {wanted} cannot be found; put the class into a .py file, at its top level (not in a function "
        "or behind an if), and try again."
    )


@lru_cache(maxsize=64)
def _definitions(text: str) -> dict[str, tuple[int, int | None]]:
    """First and last line of each definition of a file; of several with one name those of the last. Kept by content:
    a job refers to its class a dozen times, and the definition of a NamedTuple is looked for in the standard library's
    files too, which take 0.1 s to parse."""
    try:
        body = parse_source(text).body
    except SyntaxError:
        return {}
    nodes = [node for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
    return {n.name: (min([n.lineno, *(d.lineno for d in n.decorator_list)]), n.end_lineno) for n in nodes}


def _candidates(value: Any) -> Iterator[str]:
    """Files that may hold the definition: its own code first, its module's file, then notebook cells."""
    members = [value] if isinstance(value, types.FunctionType) else list(vars(value).values())
    for member in members:
        function = inspect.unwrap(getattr(member, "__func__", member)) if callable(member) else member
        code = getattr(function, "__code__", None)
        if code is not None and not code.co_filename.startswith("<string"):
            yield code.co_filename
    module = sys.modules.get(value.__module__)
    if module is not None and getattr(module, "__file__", None):
        yield str(module.__file__)
    yield from [f for f in reversed(list(linecache.cache)) if "ipykernel" in f or f.startswith("<ipython")]
