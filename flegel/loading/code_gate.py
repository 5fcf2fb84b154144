"""The gate: the only place where code that is no module of an installed package gets into a process.

Checkpoints, models, packages of groups, records and jobs of a cluster may bring code along, or name a file that holds
some. Whoever wants to run it gives a reason, one of `Consent`; there is no default, and without a reason nothing is
compiled, imported or run. What is hashed is what is run: the bytes of a file are read once, and a compiled copy that
lies beside it (`__pycache__`) is never used.

A file that a record names counts as the user's own only where all of this holds (`why_not_own`): it lies outside of
the folder that was given, whatever links and dots are on the way; the record carries a mark that this user made for
this path and this content, with a secret key that never leaves `$FLEGEL_HOME/keys`; and the whole file is as it was.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import hmac
import linecache
import os
import stat
import sys
import types
from enum import Enum
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from flegel.errors import UsageError
from flegel.loading.regular_files import read_regular

CHANGED = "has changed since"
KEY_BYTES = 32  # of a key for signatures
MAX_MODULE_BYTES = 16 << 20
"""Bytes of a Python file; the largest ones that people write have about 1 MiB."""


class Consent(Enum):
    """Why code may run in this process."""

    NAMED = "the user has named this file on the command line or in a call"
    TRUSTED = "the user has said --trust-code, or trust_code=True"
    SIGNED = "it is signed by a group whose code the key file of this one trusts"
    MARKED = "the user has trained with this very file before; the record carries the mark of this user's key"
    SUBMITTED = "it is the source of the job that this process was started for, received under the keys of that job"
    PRESENT = "it was made here from code that runs in this process already"


def execute(tree: ast.AST, filename: str, names: dict[str, Any], consent: Consent | None, **options: Any) -> None:
    """Run statements. `locals` and `flags` may be among the options."""
    require_consent(consent, filename)
    inside = options.pop("locals", names)
    exec(compile(tree, filename, "exec", dont_inherit=True, **options), names, inside)  # type: ignore[call-overload]


def read_source(path: Path, sha256: str = "") -> bytes:
    """The content of a Python file, to be imported. Where `sha256` is given, another content is refused."""
    try:
        content = read_regular(path, MAX_MODULE_BYTES, UsageError)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from None
    if sha256 and hashlib.sha256(content).hexdigest() != sha256:
        raise UsageError(f"{path} has changed since; name it again if it is still what you want.")
    return content


def import_file(name: str, path: Path, content: bytes, consent: Consent | None) -> types.ModuleType:
    """The content of a Python file as the module `name`, made anew."""
    require_consent(consent, str(path))
    spec = spec_from_file_location(name, path)
    assert spec is not None
    module = module_from_spec(spec)
    module.__dict__["__flegel_sha256__"] = hashlib.sha256(content).hexdigest()
    linecache.checkcache(str(path))  # the file may have changed since it was read last
    sys.modules[name] = module
    try:
        exec(compile(content, str(path), "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def installed_extension(name: str, path: Path) -> types.ModuleType:
    """A compiled module of an installed package, loaded without the package around it."""
    loader = ExtensionFileLoader(name, str(path))
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def require_consent(consent: Consent | None, what: str) -> None:
    """Raise `UsageError` where no consent is given for this code."""
    if not isinstance(consent, Consent):
        raise UsageError(
            f"{what} came with data and is not run; pass --trust-code (trust_code=True) if you know where it comes "
            "from."
        )


# -- files that a record names -----------------------------------------------------------------------------


def lies_inside(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Whether a path leads into a folder, as written or in the end: by links, dots, another spelling or a mount."""
    place = Path(folder).expanduser()
    spelled = Path(os.path.normpath(Path(path).expanduser().absolute()))
    ends = [spelled, Path(path).expanduser().resolve()]
    roots = {Path(os.path.normpath(place.absolute())), place.resolve()}
    if any(end.is_relative_to(root) for end in ends for root in roots):
        return True
    with contextlib.suppress(OSError):
        own = place.stat()
        for parent in {parent for end in ends for parent in end.parents}:
            with contextlib.suppress(OSError):
                if os.path.samestat(parent.stat(), own):
                    return True
    return False


def why_not_own(file: str, sha256: str, mark: str, folder: Path | None) -> str:
    """Why a file that a record names is not this user's own; empty where it is. `folder`: what was given, if it is on
    this host. Reads the file and runs nothing."""
    path = Path(file)
    if not path.is_absolute() or not path.is_file():
        return "is not there"
    if folder is not None and lies_inside(path, folder):
        return f"lies inside {folder}, so it came with the data"
    key = _own_key(create=False)
    if not mark or key is None or not hmac.compare_digest(_mark(key, file, sha256), mark):
        return "is named by a record that you have not made on this host"
    try:
        read_source(path, sha256)
    except UsageError:
        return CHANGED
    return ""


def mark_of(file: str, sha256: str) -> str:
    """This user's mark for a file with this content; empty where no key can be kept."""
    key = _own_key(create=True)
    return "" if key is None else _mark(key, file, sha256)


def source_hash(module: types.ModuleType | None) -> str:
    """SHA-256 of the whole file that a module was imported from here; empty for other modules."""
    return str(getattr(module, "__flegel_sha256__", ""))


def _mark(key: bytes, file: str, sha256: str) -> str:
    return hmac.new(key, b"\0".join([b"flegel class file 1", os.fsencode(file), sha256.encode()]), "sha256").hexdigest()


def _own_key(create: bool) -> bytes | None:
    """The secret by which this user marks files. None where there is none, or others may know it."""
    home = os.environ.get("FLEGEL_HOME")
    path = (Path(home) if home else Path.home() / ".config" / "flegel") / "keys" / "class-files.secret"
    if create and not path.exists():
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            scratch = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
            descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as stream:
                    stream.write(os.urandom(KEY_BYTES))
                os.link(scratch, path)  # another process may have been faster
            finally:
                scratch.unlink()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid != os.geteuid():
            return None
        key = stream.read(KEY_BYTES + 1)
    return key if len(key) == KEY_BYTES else None
