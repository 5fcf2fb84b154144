"""An algorithm from its name on the command line: a built-in name, or `file.py:Class`. Trains nothing."""

from __future__ import annotations

import ast
import hashlib
import importlib
import sys
from pathlib import Path

from flegel.algorithm import Algorithm
from flegel.algorithms import BUILTINS
from flegel.errors import AlgorithmError, UsageError, nearest, own_traceback
from flegel.loading.code_gate import Consent, import_file, read_source, source_hash
from flegel.loading.syntax_tree import parse_source

FROM_FILE = "flegel_file_"
RECORDS = ("NamedTuple", "TypedDict", "Protocol", "Enum")
"""Bases of classes that are no algorithms."""


def find_algorithm(name: str) -> type[Algorithm]:
    """The class that the user has named; a sentence that says what to do where there is none.

    Names that stand in a record go to `find_builtin`, or past the gate to `from_file`: this one imports the file.
    """
    path, colon, cls = name.rpartition(":")
    if colon and path.endswith(".py"):
        return from_file(Path(path), cls, Consent.NAMED)
    if name.endswith(".py"):
        choices = _classes(Path(name), _existing(Path(name)))
        hint = f", for instance {name}:{choices[0]}" if choices else ""
        raise UsageError(f"Say which class of {name} is meant{hint}.")
    return find_builtin(name)


def find_builtin(name: str) -> type[Algorithm]:
    """The built-in algorithm of this name; no file is opened, whatever the name is."""
    if name.lower() not in BUILTINS:
        raise UsageError(f"No algorithm is called {name!r}{nearest(name, list(BUILTINS))}")
    module, cls = BUILTINS[name.lower()].split(":")
    found: type[Algorithm] = getattr(importlib.import_module(module), cls)
    return found


def resolve(algorithm: Algorithm | type[Algorithm] | str) -> Algorithm:
    """An instance from an instance, a class, a built-in name or `file.py:Class`."""
    if isinstance(algorithm, Algorithm):
        return algorithm
    if isinstance(algorithm, str):
        algorithm = find_algorithm(algorithm)
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        return algorithm()
    raise UsageError(f"{algorithm!r} is no algorithm; give a subclass of flegel.Algorithm, or a name.")


def home_of(cls: type[Algorithm]) -> str | None:
    """`file.py:Class` of a class that was found in a file; None for others."""
    module = sys.modules.get(cls.__module__)
    if not cls.__module__.startswith(FROM_FILE) or module is None or module.__file__ is None:
        return None
    return f"{Path(module.__file__).absolute()}:{cls.__name__}"


def file_hash(cls: type[Algorithm]) -> str:
    """SHA-256 of the whole file that a class was found in; empty for other classes."""
    return source_hash(sys.modules.get(cls.__module__))


def _existing(path: Path, sha256: str = "") -> bytes:
    if not path.is_file():
        raise UsageError(f"There is no file {path}.")
    return read_source(path, sha256)


def _classes(path: Path, content: bytes) -> list[str]:
    """Names of the classes of a file, those first that may be algorithms: they have a base that is no record."""
    try:
        body = parse_source(content).body
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes
        raise UsageError(f"{path} is not valid Python: {error}.") from None
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    likely = [node.name for node in classes if any(_last_name(base) not in RECORDS for base in node.bases)]
    return likely + [node.name for node in classes if node.name not in likely]


def _last_name(base: ast.expr) -> str:
    """`Algorithm` of `flegel.Algorithm`."""
    return base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""


def from_file(path: Path, name: str, consent: Consent, sha256: str = "") -> type[Algorithm]:
    """A class of a Python file, which is imported; where `sha256` is given, only with that content."""
    content = _existing(path, sha256)
    choices = _classes(path, content)
    if name not in choices:
        raise UsageError(f"{path} has no class {name!r}{nearest(name, choices) if choices else ''}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # the file may import its neighbours, here and on the workers
    module_name = f"{FROM_FILE}{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    try:
        module = import_file(module_name, path, content, consent)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    except Exception as error:
        raise AlgorithmError(f"{path} raised {type(error).__name__}: {error}", own_traceback(error)) from error
    found = getattr(module, name)
    if isinstance(found, type) and issubclass(found, Algorithm):
        return found
    if isinstance(found, type) and any(base.__module__.startswith("torch.nn.") for base in found.__mro__):
        made: type[Algorithm] = importlib.import_module("flegel.torch.adapter").network_class(found)
        return made
    raise UsageError(f"{name} in {path} is neither a subclass of flegel.Algorithm nor of torch.nn.Module.")
