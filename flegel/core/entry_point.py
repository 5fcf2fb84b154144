"""Compiled functions as the rest of the package calls them: by name, and without importing the compiler.

The first call for some types looks for machine code in the cache (`native_code`), which takes milliseconds. Only where
there is none, the function's module is imported, and numba with it; it compiles, and the code is kept for others.
Results are the same either way: it is the same code.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flegel.core import code_folder, native_code

Code = Callable[..., Any]


def kinds(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """What decides which code fits these arguments, quickly: this is done at every call."""
    return tuple(
        [
            (v.dtype, v.ndim, v.flags.num)
            if type(v) is np.ndarray
            else (type(v), kinds(v))
            if isinstance(v, tuple)
            else type(v)
            for v in values
        ]
    )


def described(values: tuple[Any, ...]) -> str | None:
    """The same as text, for the name of a file; None where numba alone knows what it would make of an argument."""
    words = [_word(value) for value in values]
    return None if None in words else " ".join(w for w in words if w is not None)


def _word(value: Any) -> str | None:
    """The type of one argument as text, such as dtype, dimensions and layout of an array; None for types that are not
    known."""
    if type(value) is np.ndarray:
        flags = value.flags
        layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        return f"{value.dtype.str}:{value.ndim}{layout}{flags.writeable:d}{flags.aligned:d}"
    if isinstance(value, tuple):
        inside, cls = described(value), type(value)
        return None if inside is None else f"{cls.__module__}.{cls.__qualname__}{getattr(cls, '_fields', ())}({inside})"
    if isinstance(value, np.generic):
        return f"numpy {value.dtype.str}"
    return type(value).__name__ if value is None or type(value) in (bool, int, float) else None


class EntryPoint:
    """A compiled function of another module."""

    def __init__(self, module: str, name: str, *shape: int) -> None:
        """The function of this name; with a shape, the one that it makes for the shape."""
        self.module, self.name, self.shape = module, name, shape
        self._code: dict[Any, Code] = {}

    def __call__(self, *arguments: Any) -> Any:
        key = kinds(arguments)
        code = self._code.get(key)
        if code is None:
            code = self._find(key, arguments)
        return code(*arguments)

    def code_for(self, *arguments: Any) -> Code | None:
        """The code for arguments of these types where it was compiled before; compiles nothing."""
        key = kinds(arguments)
        if key not in self._code:
            path = self.file(arguments)
            found = self._linked(path) if path is not None else None
            if found is None:
                return None
            self._code[key] = found
        return self._code[key]

    def function(self) -> Any:
        """The function as its module has it: numba's, or Python's where numba is told not to compile."""
        found = getattr(importlib.import_module(self.module), self.name)
        return found(*self.shape) if self.shape else found

    def _find(self, key: Any, arguments: tuple[Any, ...]) -> Code:
        path = self.file(arguments)
        code = self._code[key] = (path and self._linked(path)) or self._compiled(path, arguments)
        return code

    def file(self, arguments: tuple[Any, ...]) -> Path | None:
        """Where the code for these types is kept, whether it is there or not; None where it cannot be kept."""
        words = described(arguments)
        if words is None or not native_code.is_possible():
            return None
        (home,) = code_folder._files(self.module.removeprefix("flegel."))
        digest = hashlib.sha256(repr((self.shape, words, native_code.processor())).encode()).hexdigest()[:20]
        return code_folder.folder_of(home) / f"{self.name}.{digest}.native"

    def _linked(self, path: Path) -> Code | None:
        try:
            code = native_code.decode(path.read_bytes())
        except OSError:
            return None
        return native_code.link(code, self.name) if code is not None else None

    def _compiled(self, path: Path | None, arguments: tuple[Any, ...]) -> Code:
        """Compile, and keep the machine code under `path`. One process of the host compiles at a time; those that
        waited find what it kept."""
        if path is None:
            compiled: Code = self.function()
            return compiled
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with code_folder.own_turn(path.with_suffix(".lock")):
            found = self._linked(path)
            if found is not None:  # another process, or thread, has compiled it meanwhile
                return found
            code_folder.about_to_compile()
            from flegel.core.code_cache import native_code as native_code_of

            compiled = self.function()
            code = native_code_of(compiled, arguments)
            content = native_code.encode(code) if code is not None else None
            if content is not None:
                with contextlib.suppress(OSError):  # a full disk: compiled again next time
                    code_folder.replace_file(path, content)
            return native_code.link(code, self.name) if code is not None and content is not None else compiled
