"""numba's cache of compiled code, by the content of everything that went into it (`code_folder`).

`njit(cache=True)` is numba's, with another cache. numba's own looks at the file of the function only, so it goes on
with code that holds old constants and old helpers of other modules, and two processes that write to one index at the
same time may leave it pointing at the wrong code. Here the folder is named by the text of the module and of all modules
of the package that it imports, and the file by the types: an edit needs no deletion, and no process
writes to a file that another one may be reading.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.extending import overload

from flegel.core import code_folder, overloads
from flegel.core.native_code import Environment, NativeCode

Function = TypeVar("Function", bound=Callable[..., Any])
KEPT_CODE_FOLDERS = 16
"""Folders of other contents of a module that stay, the newest first: those of other versions and working copies."""
overloads.register_with(overload)


# -- names of compiled code --------------------------------------------------------------------------------


def _count_from_a_random_number() -> None:
    """Functions that this process compiles get names that no other process gives.

    numba names the machine code of a function by its qualified name, its types and a number, which counts from 1 in
    every process. Two functions of the same lines that hold other constants (a loop over 3 columns and one over 6) then
    have the same name where two processes compiled them, and a process that loads both from the cache runs one of them
    in place of the other.
    """
    FunctionIdentity._unique_ids = itertools.count(int.from_bytes(os.urandom(8)))  # type: ignore[attr-defined, unused-ignore]


_count_from_a_random_number()
os.register_at_fork(after_in_child=_count_from_a_random_number)


# -- numba's cache, by content -----------------------------------------------------------------------------


class _Place:
    """What numba calls a locator: the folder for the code of one function."""

    def __init__(self, function: Any, path: str) -> None:
        self._py_file, self._line = path, function.__code__.co_firstlineno
        home = Path(path).resolve()
        self.stem = code_folder.stem_of(home)
        self.folder = code_folder.folder_of(home)

    @classmethod
    def from_function(cls, function: Any, path: str) -> _Place:
        return cls(function, path)

    def get_cache_path(self) -> str:
        return str(self.folder)

    def get_source_stamp(self) -> str:
        return ""

    def get_disambiguator(self) -> str:
        return str(self._line)

    def ensure_cache_path(self) -> None:
        """When something is about to be written, old contents of the same module go."""
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            others = [other for other in self.folder.parent.glob(f"{self.stem}-*") if other != self.folder]
            for other in sorted(others, key=_age)[KEPT_CODE_FOLDERS:]:
                shutil.rmtree(other, ignore_errors=True)


def _age(folder: Path) -> float:
    with contextlib.suppress(OSError):
        return -folder.stat().st_mtime
    return 0.0


class _Implementation(CompileResultCacheImpl):  # type: ignore[misc, unused-ignore]
    _locator_classes: list[Any] = [_Place]  # noqa: RUF012 - declared so by numba


class _Files:
    """An index and a file of code for each list of types: their name is that of the types.

    The index holds the types too, because their names may be equal.
    """

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder, self._stem = folder, stem

    def name(self, key: Any) -> str:
        return f"{self._stem}.{hashlib.sha256(repr(key).encode()).hexdigest()[:20]}"

    def load(self, key: Any) -> Any:
        """None where there is none, or none that can be read: then it is compiled again."""
        try:
            return self._pair(key).load(key)  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 - a damaged file can raise anything while it is decoded
            return None

    def save(self, key: Any, data: Any) -> None:
        with contextlib.suppress(OSError):  # a full disk: compiled again next time
            self._pair(key).save(key, data)  # type: ignore[no-untyped-call]

    def _pair(self, key: Any) -> IndexDataCacheFile:
        return IndexDataCacheFile(str(self._folder), self.name(key), "")  # type: ignore[no-untyped-call]

    def flush(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Python looks for no unused cycles inside: a compiler makes millions of objects and keeps most of them until it is
    done. Looking takes a fifth of its time; 60 MB more are held at the end of the largest kernel."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class ContentCache(FunctionCache):  # type: ignore[misc, unused-ignore]
    """numba's cache of a function, in a folder named by content."""

    _impl_class = _Implementation

    def __init__(self, function: Any) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._cache_file: Any = _Files(Path(self._cache_path), self._impl.filename_base)
        self._compiling = contextlib.ExitStack()

    def compile_with(self, compiler: Callable[[Any], Any], types: Any) -> Any:
        """Load or compile; whoever else wants the same code waits meanwhile."""
        with global_compiler_lock, _without_collection(), contextlib.ExitStack() as stack:
            before, self._compiling = self._compiling, stack
            try:
                return compiler(types)
            finally:
                self._compiling = before

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load compiled code from the cache. Where it is missing, wait for another process that compiles the same, then
        look again."""
        found = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        if found is not None:
            return found
        key = self._index_key(sig, target_context.codegen())  # type: ignore[no-untyped-call]
        with contextlib.suppress(OSError):
            self._impl.locator.ensure_cache_path()
            lock = Path(self._cache_path) / f"{self._cache_file.name(key)}.lock"
            self._compiling.enter_context(code_folder.own_turn(lock))
        found = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        if found is None:
            code_folder.about_to_compile()
        return found


def njit(*, cache: bool = False, **options: Any) -> Callable[[Function], Function]:
    """`numba.njit`; with `cache`, compiled code is kept by content."""
    make: Callable[[Any], Any] = numba.njit(**options)

    def decorate(function: Function) -> Function:
        compiled = make(function)
        if cache and isinstance(compiled, Dispatcher):  # not with NUMBA_DISABLE_JIT
            kept = ContentCache(function)
            vars(compiled).update(_cache=kept, compile=partial(kept.compile_with, compiled.compile))
        return cast("Function", compiled)

    return decorate


def native_code(function: Any, arguments: tuple[Any, ...]) -> NativeCode | None:
    """The machine code of a function for arguments of these types, compiled where it is not in the cache.

    None where it needs more than what `NativeCode` keeps, or where the cache cannot be written.
    """
    if not isinstance(function, Dispatcher):
        return None
    function = cast("Any", function)
    kinds = tuple(function.typeof_pyval(value) for value in arguments)
    function.compile(kinds)
    kept = function._cache
    key = kept._index_key(kinds, function.overloads[kinds].target_context.codegen())
    found = kept._cache_file.load(key) if isinstance(kept, ContentCache) else None
    if found is None:
        return None
    (_, kind, code), description, own, _, objects, lifted, _, initializers, referenced = found
    if kind != "object" or objects or lifted or initializers:
        return None
    environments = {env.env_name: Environment(env.env_name, tuple(env.consts)) for env in (own, *referenced)}
    return NativeCode(description.llvm_cpython_wrapper_name, tuple(environments.values()), code[0])
