"""Where compiled code is kept between runs, by the content of everything that went into it. Compiles nothing itself.

`njit(cache=True)` is numba's, with another cache. numba's own looks at the file of the function only, so it goes on
with code that holds old constants and old helpers of other modules, and two processes that write to one index at the
same time may leave it pointing at the wrong code. Here the folder is named by the text of the module and of all modules
of the package that it imports, and the file by the types: an edit needs no deletion, and nobody writes to a file that
somebody else may have named.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite
import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

PACKAGE = Path(__file__).resolve().parents[1]
COMPILED = ("algorithms", "core", "datasets")
"""Parts of the package whose functions and constants are compiled in."""
Function = TypeVar("Function", bound=Callable[..., Any])
KEPT = 16
"""Folders of other contents of a module that stay, the newest first: those of other versions and working copies."""
IMPORTED = re.compile(rf"^\s*(?:from|import)\s+flegel\.((?:{'|'.join(COMPILED)})[\w.]*)", re.MULTILINE)


@lru_cache
def code_folder() -> Path:
    """FLEGEL_CACHE, else NUMBA_CACHE_DIR, else the user's cache folder, else one that lasts as long as the machine is
    up. (FLEGEL_CACHE=0 keeps parsed text out of the cache; compiled code is none.)"""
    told = os.environ.get("FLEGEL_CACHE", "")
    base = (told if told != "0" else "") or os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    for folder in (
        Path(base or "~/.cache").expanduser() / "flegel" / "code",
        Path(tempfile.gettempdir()) / f"flegel-{os.getuid()}",
    ):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            probe = folder / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
            if _is_private(folder):
                return folder
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix="flegel-"))


def _is_private(folder: Path) -> bool:
    """Whether nobody else can have put code there: it is run as it is found."""
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & stat.S_IWOTH


def write_once(path: Path, text: str) -> None:
    """Put a file in place in one step, so that several processes may do it at once."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, text.encode())


def _replace(path: Path, content: bytes) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(content)
    scratch.replace(path)


# -- content -----------------------------------------------------------------------------------------------


@lru_cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def sources(path: Path) -> list[Path]:
    """A file and all files of the package that it imports, directly or through others; not this one, of which nothing
    is compiled."""
    found, waiting = {Path(__file__).resolve()}, {path}
    while waiting:
        here = waiting.pop()
        found.add(here)
        for name in IMPORTED.findall(_text(here)):
            waiting |= _files(name) - found
    return sorted(found - {Path(__file__).resolve()})


@lru_cache
def _files(name: str) -> frozenset[Path]:
    """The file of the module `core.shard`; of a package all of its own, because names are imported from it."""
    first, *rest = name.split(".")
    beside = not (PACKAGE / first).is_dir()  # as in a working copy
    place = (PACKAGE.parent if beside else PACKAGE).joinpath(first, *rest)
    file = place.with_name(f"{place.name}.py")
    return frozenset([file] if file.is_file() else place.glob("*.py"))


@lru_cache
def content_key(path: Path) -> str:
    """Of everything that decides what the functions of a file compile to, except the types and the processor."""
    versions = (numba.__version__, llvmlite.__version__, sys.version)
    digest = hashlib.sha256(repr(versions).encode())
    for source in sources(path):
        text = _text(source).encode()
        digest.update(f"{source.name} {len(text)}\n".encode() + text)
    return digest.hexdigest()[:20]


# -- numba's cache, by content -----------------------------------------------------------------------------


class _Place:
    """What numba calls a locator: the folder for the code of one function."""

    def __init__(self, function: Any, path: str) -> None:
        self._py_file, self._line = path, function.__code__.co_firstlineno
        home = Path(path).resolve()
        self.stem = f"{home.parent.name}.{home.stem}"
        self.folder = code_folder() / f"{self.stem}-{content_key(home)}"

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
            for other in sorted(others, key=_age)[KEPT:]:
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


Turn = Callable[[Path], contextlib.AbstractContextManager[object]]
_turns: list[Turn] = []


def take_turns(turn: Turn) -> None:
    """From now on code is compiled inside `turn(file)`, which lets one process of the host in at a time; those who
    waited find the code of the one before."""
    _turns[:] = [turn]


class ContentCache(FunctionCache):  # type: ignore[misc, unused-ignore]
    """numba's cache of a function, in a folder named by content."""

    _impl_class = _Implementation

    def __init__(self, function: Any) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._cache_file: Any = _Files(Path(self._cache_path), self._impl.filename_base)
        self._compiling = contextlib.ExitStack()

    def compile_with(self, compile: Callable[[Any], Any], types: Any) -> Any:
        """Load or compile; whoever else wants the same code waits meanwhile."""
        with global_compiler_lock, contextlib.ExitStack() as stack:
            before, self._compiling = self._compiling, stack
            try:
                return compile(types)
            finally:
                self._compiling = before

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        if found is not None or not _turns:
            return found
        key = self._index_key(sig, target_context.codegen())  # type: ignore[no-untyped-call]
        with contextlib.suppress(OSError):
            self._impl.locator.ensure_cache_path()
            self._compiling.enter_context(_turns[0](Path(self._cache_path) / f"{self._cache_file.name(key)}.lock"))
        return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]


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
