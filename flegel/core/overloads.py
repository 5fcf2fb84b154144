"""Compiled versions of plain functions, declared without importing the compiler.

`overload` is numba's, except that a declaration waits until something is compiled in this process. Where all code is in
the cache, that is never, and numba is not imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Implementation = TypeVar("Implementation", bound=Callable[..., Any])
Register = Callable[[Callable[..., Any]], Callable[[Any], Any]]

_waiting: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
_register: list[Register] = []


def overload(function: Callable[..., Any]) -> Callable[[Implementation], Implementation]:
    """Compiled code that calls `function` calls what the decorated function returns for the types of its arguments."""

    def declare(implementation: Implementation) -> Implementation:
        if _register:
            _register[0](function)(implementation)
        else:
            _waiting.append((function, implementation))
        return implementation

    return declare


def register_with(register: Register) -> None:
    """The compiler is there: all declarations so far, and from now on each at once."""
    _register[:] = [register]
    while _waiting:
        function, implementation = _waiting.pop(0)
        register(function)(implementation)


def is_array(kind: Any) -> bool:
    """Inside an implementation: the type of an argument is an array, not a named tuple or a number."""
    from numba.core import types

    return isinstance(kind, types.Array)
