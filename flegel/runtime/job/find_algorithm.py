"""An algorithm from its name on the command line: a built-in name, or `file.py:Class`. Trains nothing."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import linecache
import sys
from pathlib import Path

from flegel.algorithm import Algorithm
from flegel.algorithms import BUILTINS
from flegel.errors import AlgorithmError, UsageError, nearest, own_traceback

FROM_FILE = "flegel_file_"


def find_algorithm(name: str) -> type[Algorithm]:
    """The class that `name` names; a sentence that says what to do where there is none."""
    path, colon, cls = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _from_file(Path(path), cls)
    if name.endswith(".py"):
        choices = _classes(Path(name))
        hint = f", for instance {name}:{choices[0]}" if choices else ""
        raise UsageError(f"Say which class of {name} is meant{hint}.")
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


def _classes(path: Path) -> list[str]:
    if not path.is_file():
        raise UsageError(f"There is no file {path}.")
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid Python: {error}.") from None
    return [node.name for node in body if isinstance(node, ast.ClassDef)]


def _from_file(path: Path, name: str) -> type[Algorithm]:
    choices = _classes(path)
    if name not in choices:
        raise UsageError(f"{path} has no class {name!r}{nearest(name, choices) if choices else ''}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # the file may import its neighbours, here and on the workers
    module_name = f"{FROM_FILE}{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    linecache.checkcache(str(path))  # the file may have changed since it was read last
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise AlgorithmError(f"{path} raised {type(error).__name__}: {error}", own_traceback(error)) from error
    found = getattr(module, name)
    if isinstance(found, type) and issubclass(found, Algorithm):
        return found
    if isinstance(found, type) and any(base.__module__.startswith("torch.nn.") for base in found.__mro__):
        made: type[Algorithm] = importlib.import_module("flegel.torch.adapter").network_class(found)
        return made
    raise UsageError(f"{name} in {path} is neither a subclass of flegel.Algorithm nor of torch.nn.Module.")
