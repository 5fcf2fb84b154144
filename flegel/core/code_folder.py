"""Where compiled code is kept between runs, and under which name: that of everything that went into it.

Compiles nothing, and imports no compiler: the start of a job whose code is in the cache needs none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from flegel.configuration.compiled import kernel_settings

PACKAGE = Path(__file__).resolve().parents[1]
COMPILED = ("algorithms", "core", "datasets")
"""Parts of the package whose functions and constants are compiled in."""
IMPORTED = re.compile(rf"^\s*(?:from|import)\s+flegel\.((?:{'|'.join(COMPILED)})[\w.]*)", re.MULTILINE)
NOT_COMPILED = frozenset(
    Path(__file__).resolve().with_name(f"{name}.py") for name in ("code_cache", "entry_point", "native_code")
)
"""Files that kernels import and of which nothing is compiled."""
CODE_FORMAT = 2
"""Changes where code that earlier versions kept must not be used: 2 since names of compiled functions are unique."""
READS_SETTINGS = "from flegel.configuration.compiled import"
"""In the text of a module whose constants are settings of kernels."""


@lru_cache
def code_folder() -> Path:
    """FLEGEL_CACHE, else NUMBA_CACHE_DIR, else the user's cache folder, else one that lasts as long as the machine is
    up. (FLEGEL_CACHE=0 keeps parsed text out of the cache; compiled code is none.)"""
    for folder in _lasting_folders():
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


def _lasting_folders() -> tuple[Path, Path]:
    told = os.environ.get("FLEGEL_CACHE", "")
    base = (told if told != "0" else "") or os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    return (
        Path(base or "~/.cache").expanduser() / "flegel" / "code",
        Path(tempfile.gettempdir()) / f"flegel-{os.getuid()}",
    )


def is_lasting() -> bool:
    """Whether the next process finds what is kept now."""
    return code_folder() in _lasting_folders()


def _is_private(folder: Path) -> bool:
    """Whether no other user can have put code there: it is run as it is found."""
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & stat.S_IWOTH


def write_once(path: Path, text: str) -> None:
    """Put a file in place in one step, so that several processes may do it at once; a damaged one is replaced."""
    with contextlib.suppress(OSError):
        if path.read_bytes() == text.encode():
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode())


def replace_file(path: Path, content: bytes) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(content)
    scratch.replace(path)


# -- content -----------------------------------------------------------------------------------------------


@lru_cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def sources(path: Path) -> list[Path]:
    """A file and all files of the package that it imports, directly or through others."""
    found, waiting = set(NOT_COMPILED), {path}
    while waiting:
        here = waiting.pop()
        found.add(here)
        for name in IMPORTED.findall(_text(here)):
            waiting |= _files(name) - found
    return sorted(found - NOT_COMPILED)


@lru_cache
def _files(name: str) -> frozenset[Path]:
    """The file of the module `core.shard`; of a package all of its own, because names are imported from it."""
    first, *rest = name.split(".")
    beside = not (PACKAGE / first).is_dir()  # as in a working copy
    place = (PACKAGE.parent if beside else PACKAGE).joinpath(first, *rest)
    file = place.with_name(f"{place.name}.py")
    return frozenset([file] if file.is_file() else place.glob("*.py"))


@cache
def compiler_version() -> str:
    """What numba and llvmlite say about their versions, read without importing them."""
    texts = []
    for name in ("numba", "llvmlite"):
        spec = find_spec(name)
        places = (spec.submodule_search_locations if spec is not None else None) or ()
        texts += [_text(file) for place in places if (file := Path(place) / "_version.py").is_file()]
    return "".join(texts)


@lru_cache
def content_key(path: Path) -> str:
    """A hash of everything that decides what the functions of a file compile to, except the types and the processor."""
    digest = hashlib.sha256(repr((CODE_FORMAT, compiler_version(), sys.version)).encode())
    read = sources(path)
    if any(READS_SETTINGS in _text(source) for source in read):
        digest.update(repr(kernel_settings()).encode())
    for source in read:
        text = _text(source).encode()
        digest.update(f"{source.name} {len(text)}\n".encode() + text)
    return digest.hexdigest()[:20]


def stem_of(path: Path) -> str:
    """How folders of a module's code begin."""
    return f"{path.parent.name}.{path.stem}"


def folder_of(path: Path) -> Path:
    """The folder for the code of a module."""
    return code_folder() / f"{stem_of(path)}-{content_key(path)}"


_found: set[tuple[Path, Path]] = set()
"""Folders of code, and packages of which some was found there: it stays, so nobody looks for it again."""


def has_code_of(package: Path) -> bool:
    """Code of some module in this folder is kept."""
    key = (code_folder(), package)
    if key not in _found and _has_code_of(package):
        _found.add(key)
    return key in _found


def _has_code_of(package: Path) -> bool:
    kept = {place.name.rpartition("-")[0] for place in code_folder().glob(f"{package.name}.*-*")}
    modules = (package / f"{stem.partition('.')[2]}.py" for stem in kept)
    return any(path.is_file() and folder_of(path).is_dir() for path in modules)


# -- turns --------------------------------------------------------------------------------------------------

Turn = Callable[[Path], contextlib.AbstractContextManager[object]]
_turns: list[Turn] = []
_checks: list[Callable[[], None]] = []


def take_turns(turn: Turn, check: Callable[[], None]) -> None:
    """From now on code is compiled inside `turn(file)`, which lets one process of the host in at a time; those who
    waited find the code of the one before. `check` is called before something is compiled, and may refuse that."""
    _turns[:], _checks[:] = [turn], [check]


def about_to_compile() -> None:
    """The code is in no cache, and what is called next compiles it."""
    for check in _checks:
        check()


@contextlib.contextmanager
def own_turn(path: Path) -> Iterator[None]:
    """Inside, no other process of this host compiles what belongs to this file, as far as locks are possible."""
    with contextlib.ExitStack() as stack:
        if _turns:
            with contextlib.suppress(OSError):
                stack.enter_context(_turns[0](path))
        yield
