"""What is compiled into a function, as it is in memory: bytecode, functions that it calls, and the values of globals.

numba takes globals, and what functions closed over, for constants. Two programs whose texts are the same may have other
ones: a module that was imported by name, a number read from the environment, a file edited since it was imported. The
text is the same in every process in which these values are. Imports nothing of the job.
"""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numba.core.dispatcher import Dispatcher

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), np.generic, np.dtype, slice, range)


def compiled_values(functions: Iterable[Any]) -> str:
    """A hash of all that these functions compile in, but for functions of installed packages."""
    found = _Values()
    for function in functions:
        found.add(function, ())
    return hashlib.sha256("\n".join(found.texts).encode()).hexdigest()


def _is_installed(name: str | None) -> bool:
    """Whether a module belongs to Python or to an installed package: those change with their version."""
    root = (name or "builtins").partition(".")[0]
    if root in sys.stdlib_module_names and root != "__main__":
        return True
    file = getattr(sys.modules.get(root), "__file__", None)
    return file is not None and not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


class _Values:
    """Walks from function to function; each of them once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._seen: dict[int, Any] = {}
        """By identity, and kept, so that no other object gets the same."""

    def add(self, value: Any, names: tuple[str, ...]) -> None:
        """A value under a global name; `names` are those that the code uses, of which some are attributes of it."""
        if isinstance(value, Dispatcher):
            value = value.py_func
        if isinstance(value, PLAIN):
            self.texts.append(f"{type(value).__name__} {value!r}")
        elif isinstance(value, np.ndarray):
            content = "" if value.dtype.hasobject else hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            self.texts.append(f"array {value.dtype} {value.shape} {content}")
        elif isinstance(value, type):
            self.texts.append(f"class {value.__qualname__} {getattr(value, '_fields', '')!r}")
        elif isinstance(value, types.FunctionType | types.ModuleType | tuple | list | set | frozenset):
            self._add_once(value, names)
        else:
            self.texts.append(type(value).__qualname__)

    def _add_once(self, value: Any, names: tuple[str, ...]) -> None:
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, types.ModuleType):
            self._add_module(value, names)
        else:
            unordered = isinstance(value, set | frozenset)
            self.texts.append(f"{type(value).__name__} of {len(value)}")
            for item in sorted(value, key=repr) if unordered else value:
                self.add(item, names)

    def _add_function(self, function: types.FunctionType) -> None:
        self.texts.append(f"function {function.__qualname__}")
        if _is_installed(function.__module__):
            self.texts.append(f"of {function.__module__}")
            return
        names = self._add_code(function.__code__)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.add(value, names)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self.texts.append(name)
            try:
                self.add(cell.cell_contents, names)
            except ValueError:  # not assigned yet
                self.texts.append("empty")
        for name in sorted(set(names) & function.__globals__.keys()):
            self.texts.append(name)
            self.add(function.__globals__[name], names)

    def _add_code(self, code: types.CodeType) -> tuple[str, ...]:
        """The names that it uses, with those of functions inside it."""
        self.texts.append(f"{code.co_code.hex()} {code.co_names!r} {code.co_varnames!r}")
        names = code.co_names
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                names += self._add_code(constant)
            else:
                self.add(constant, ())
        return names

    def _add_module(self, module: types.ModuleType, names: tuple[str, ...]) -> None:
        self.texts.append(f"module {module.__name__}")
        if _is_installed(module.__name__):
            return
        for name in sorted(set(names) & vars(module).keys()):
            self.texts.append(name)
            self.add(vars(module)[name], names)
