"""Where checkpoints are stored: a folder or an object store. Files appear whole or not at all; decides nothing.

A folder: temporary file, flush to the disk, rename, flush of the folder. An object store (any address that fsspec
knows): one put, which stores promise to be atomic. Names are flat and checked, so that nothing can leave its place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from flegel.errors import FlegelError, UsageError
from flegel.loading.regular_files import MAX_FILE_BYTES, read_regular

Buffer = bytes | memoryview
OBJECT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
UNFINISHED_SUFFIX = ".part"
BYTES_PER_WRITE = 8 << 20  # bytes of one write
MAX_REASON_CHARACTERS = 300  # characters of what a client of an object store says


class CheckpointStore(Protocol):
    """Raises `OSError` where a file cannot be written or read."""

    place: str

    def put(self, name: str, content: Iterable[Buffer], durable: bool = True) -> None:
        """`durable` also survives a loss of power, and takes as long as that takes."""
        ...

    def get(self, name: str) -> bytes: ...

    def names(self) -> list[str]: ...

    def drop(self, name: str) -> None: ...

    def lock(self) -> str | None:
        """Take the place for this process; else says who has it."""
        ...

    def release(self) -> None: ...


class DiskCalls:
    """The system calls that matter, one method each, so that tests can let each of them fail."""

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags, 0o644)

    def write(self, file: int, content: Buffer) -> int:
        return os.write(file, content)

    def sync(self, file: int) -> None:
        os.fsync(file)

    def close(self, file: int) -> None:
        os.close(file)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)


class FolderStore:
    """A folder of this host."""

    def __init__(self, path: Path, disk: DiskCalls | None = None) -> None:
        self.path = path
        self.place = str(path)
        self._disk = disk or DiskCalls()
        self._lock: Any = None

    def put(self, name: str, content: Iterable[Buffer], durable: bool = True) -> None:
        """Write under another name and rename, so that a reader finds either the old file or the complete new one."""
        disk, target = self._disk, self.path / checked(name)
        scratch = self.path / f".{name}.{os.getpid()}{UNFINISHED_SUFFIX}"
        disk.make_folder(self.path)
        try:
            self._fill(scratch, content, durable)
            disk.rename(scratch, target)
        except OSError:
            with contextlib.suppress(OSError):
                disk.unlink(scratch)
            raise
        if durable:
            folder = disk.open(self.path, os.O_RDONLY)
            try:
                disk.sync(folder)
            finally:
                disk.close(folder)

    def _fill(self, scratch: Path, content: Iterable[Buffer], durable: bool) -> None:
        """Write `content` into a new file; `durable`: and wait until it is on the disk."""
        disk = self._disk
        file = disk.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            for piece in content:
                left = memoryview(piece).cast("B")
                while len(left):
                    left = left[disk.write(file, left[:BYTES_PER_WRITE]) :]
            if durable:
                disk.sync(file)
        finally:
            disk.close(file)

    def get(self, name: str) -> bytes:
        return read_regular(self.path / checked(name), MAX_FILE_BYTES)

    def names(self) -> list[str]:
        if not self.path.is_dir():
            return []
        return sorted(p.name for p in self.path.iterdir() if OBJECT_NAME.fullmatch(p.name) and p.is_file())

    def drop(self, name: str) -> None:
        self._disk.unlink(self.path / checked(name))

    def sweep(self) -> None:
        """Remove what writers that died have left half-written."""
        for path in self.path.glob(f".*{UNFINISHED_SUFFIX}"):
            with contextlib.suppress(OSError):
                path.unlink()

    def lock(self) -> str | None:
        """Reserve the folder for this process; returns who holds it otherwise."""
        self.path.mkdir(parents=True, exist_ok=True)
        file = (self.path / "lock").open("a+", encoding="ascii")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip()
            file.close()
            return f"process {holder}" if holder else "another process"
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._lock = file
        self.sweep()
        return None

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class ObjectStore:
    """An object store, through fsspec."""

    def __init__(self, url: str) -> None:
        self.place = url
        self._files, self._root = _filesystem(url)

    def put(self, name: str, content: Iterable[Buffer], durable: bool = True) -> None:
        with _client_errors():
            self._files.pipe_file(f"{self._root}/{checked(name)}", b"".join(content))

    def get(self, name: str) -> bytes:
        with _client_errors():
            return bytes(self._files.cat_file(f"{self._root}/{checked(name)}"))

    def names(self) -> list[str]:
        """Names of the objects of this checkpoint, in order; none where the folder does not exist yet."""
        with _client_errors():
            self._files.invalidate_cache()
            try:
                found: Sequence[str] = self._files.ls(self._root, detail=False)
            except FileNotFoundError:
                return []
        return sorted(n for path in found if OBJECT_NAME.fullmatch(n := path.rpartition("/")[2]))

    def drop(self, name: str) -> None:
        with _client_errors(), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{checked(name)}")

    def lock(self) -> str | None:
        return None  # stores have no locks; the epoch in the job's file tells a coordinator that it was replaced

    def release(self) -> None:
        pass


@contextlib.contextmanager
def _client_errors() -> Iterator[None]:
    """Clients of stores raise errors of many types, with pages of text: here each is an `OSError` with one line."""
    try:
        yield
    except (OSError, FlegelError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever the client raises, the store could not be used
        line = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise OSError(errno.EIO, line[:MAX_REASON_CHARACTERS]) from None


def _filesystem(url: str) -> tuple[Any, str]:
    """Open an address such as s3://bucket/folder with fsspec, by obstore where it is installed."""
    scheme = url.partition("://")[0]
    try:
        import fsspec

        with contextlib.suppress(ImportError):
            if scheme in ("s3", "gs", "az", "abfs", "abfss"):
                from obstore.fsspec import register  # the client that reads data sets, with the same credentials

                register(scheme)
        files, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise UsageError(f"{url} needs {error.name or 'fsspec'}: pip install 'flegel[s3]'.") from None
    except ValueError as error:
        raise UsageError(f"{url} is no address that fsspec knows: {error}.") from None
    return files, str(root).rstrip("/")


def checked(name: str) -> str:
    if not OBJECT_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a file in a checkpoint")
    return name


def open_store(place: str | os.PathLike[str]) -> CheckpointStore:
    """A folder or, with `://`, an object store."""
    text = os.fspath(place)
    if not text.strip():
        raise UsageError("The place for checkpoints is empty; name a folder or an address such as s3://bucket/job.")
    if "://" in text and not text.startswith("file://"):
        return ObjectStore(text.rstrip("/"))
    path = Path(text.removeprefix("file://")).expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; checkpoints need a folder.")
    return FolderStore(path)
