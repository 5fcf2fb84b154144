"""The bucket of a job's groups: a folder, or an object store through obstore. Conditional puts; decides nothing.

Every call returns within its deadline or raises `OSError`; one that raised may have happened all the same. A folder
makes conditions hold by a lock file, because neither rename nor obstore's own folder store compares tags. Of a folder
only regular files are read, up to a size that the caller gives; pipes, devices and links are refused without being
opened for long, and no name leads out of the folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from flegel.errors import UsageError
from flegel.machine.group.records import digest_of
from flegel.runtime import clock
from flegel.runtime.group.keys import RefusedObject
from flegel.wording import option

KEY = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
MAX_PACKAGE_BYTES = 1 << 30  # bytes of the package, whose size is not known before it is read
MAX_LISTED_NAMES = 100_000  # of one listing; groups write some ten objects under a name
CALL_TIMEOUT = "20s"
LOCK_SECONDS = 20.0  # the deadline of a call to a folder, as that of an object store
BY_STAT = "stat:"  # tags of what is too large to be read, or no regular file


class Conflict(Exception):
    """The condition of a put did not hold."""


class Bucket(Protocol):
    """Raises `OSError` where the store does not answer."""

    place: str

    def get(self, key: str, largest: int = 0) -> tuple[bytes, str] | None:
        """Content and tag; None where there is no such object. One of more than `largest` bytes is refused unread
        (0: `MAX_PACKAGE_BYTES`), as is one that is no plain object: `RefusedObject`."""
        ...

    def put(self, key: str, content: bytes, mode: str = "replace", expected: str = "") -> str:
        """Its tag. `create`: only where there is none; `swap`: only where the tag is `expected`; else `Conflict`."""
        ...

    def names(self, prefix: str) -> list[str]: ...

    def delete(self, key: str) -> None: ...


class FolderBucket:
    """A folder of this host or a shared file system."""

    def __init__(self, path: Path) -> None:
        self.path, self.place = path, str(path)

    def get(self, key: str, largest: int = 0) -> tuple[bytes, str] | None:
        """Read one object. Links and sockets are refused: the folder may be writable by others."""
        largest = largest or MAX_PACKAGE_BYTES
        try:
            handle = os.open(self._file(key), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
                raise RefusedObject("it is no regular file", self._stat_tag(key)) from None
            raise
        try:
            return self._content(handle, largest)
        finally:
            os.close(handle)

    def _content(self, handle: int, largest: int) -> tuple[bytes, str]:
        """Content and tag of an open file; refuses what is not a regular file or has more than `largest` bytes."""
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise RefusedObject("it is no regular file", _stat_tag(found))
        if found.st_size > largest:
            raise RefusedObject(f"it has {found.st_size:,} bytes, more than {largest:,}", _stat_tag(found))
        with os.fdopen(handle, "rb", closefd=False) as file:
            content = file.read(largest + 1)
        if len(content) > largest:
            raise RefusedObject(f"it has more than {largest:,} bytes", _stat_tag(found))
        return content, digest_of(content)

    def put(self, key: str, content: bytes, mode: str = "replace", expected: str = "") -> str:
        """Write beside the object and rename. `create` and `swap` compare under a lock and raise Conflict, as
        conditional writes of object stores do."""
        target = self._file(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(prefix=".", suffix=".part", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            if mode == "replace":
                Path(scratch).replace(target)
            else:
                with self._locked():
                    held = self._tag(key, expected)
                    if (mode == "create" and held) or (mode == "swap" and held != expected):
                        raise Conflict(key)
                    Path(scratch).replace(target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                Path(scratch).unlink()
        return digest_of(content)

    def _tag(self, key: str, expected: str) -> str:
        """Of what is there, to be compared with one that `get` has told; empty where nothing is."""
        if expected.startswith(BY_STAT):
            return self._stat_tag(key)
        try:
            held = self.get(key)
        except RefusedObject as refused:
            return refused.tag
        return held[1] if held is not None else ""

    def _stat_tag(self, key: str) -> str:
        try:
            return _stat_tag(os.lstat(self._file(key)))
        except FileNotFoundError:
            return ""

    def names(self, prefix: str) -> list[str]:
        try:
            with os.scandir(self._inside(self.path / prefix)) as found:
                some = list(itertools.islice((prefix + entry.name for entry in found), MAX_LISTED_NAMES))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name for name in some if KEY.fullmatch(name) and "/." not in name)

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._file(key).unlink()

    def _file(self, key: str) -> Path:
        target = self.path / _checked(key)
        self._inside(target.parent)
        return target

    def _inside(self, folder: Path) -> Path:
        """The folder, unless a link leads out of the bucket."""
        if not folder.resolve().is_relative_to(self.path.resolve()):
            raise OSError(f"{folder} leads out of the bucket")
        return folder

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """A process that is stopped while it holds the lock delays the others until their deadline, not for ever."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(self.path / ".lock", flags, 0o666)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(f"{self.path / '.lock'} is no regular file; remove it")
            until = clock.now() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if clock.now() > until:
                        raise OSError(f"another process holds {self.path / '.lock'}") from None
                    clock.sleep(0.005)
            yield


def _stat_tag(found: os.stat_result) -> str:
    return f"{BY_STAT}{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"


class ObjectBucket:
    """S3, Google Cloud Storage or Azure, with the credentials that obstore finds in the environment."""

    def __init__(self, url: str) -> None:
        """Connect with short timeouts and without retries: the group looks again by itself."""
        try:
            import obstore
            from obstore.store import from_url
        except ImportError:
            raise UsageError(f"{url} needs obstore: pip install 'flegel[s3]'.") from None
        self.place, self._obstore = url, obstore
        options = {"timeout": CALL_TIMEOUT, "connect_timeout": "5s"}
        if os.environ.get("AWS_ENDPOINT_URL", os.environ.get("AWS_ENDPOINT", "")).startswith("http://"):
            options["allow_http"] = "true"
        retry: Any = {"max_retries": 0}  # the group itself looks again
        try:
            self._store = from_url(url, client_options=options, retry_config=retry)  # type: ignore[call-overload]
        except Exception as error:  # noqa: BLE001 - each kind of store has errors of its own
            raise UsageError(f"{url} cannot be used as a bucket: {_sentence(error)}.") from None

    def get(self, key: str, largest: int = 0) -> tuple[bytes, str] | None:
        """Content and tag of an object, None where it does not exist; refuses more than `largest` bytes before reading
        them."""
        with self._errors():
            try:
                answer = self._obstore.get(self._store, _checked(key))
                size, tag = answer.meta["size"], str(answer.meta["e_tag"] or "")
                if size > (largest or MAX_PACKAGE_BYTES):
                    raise RefusedObject(f"it has {size:,} bytes, more than {largest or MAX_PACKAGE_BYTES:,}", tag)
                return bytes(answer.bytes()), tag
            except FileNotFoundError:
                return None

    def put(self, key: str, content: bytes, mode: str = "replace", expected: str = "") -> str:
        wanted: Any = {"replace": "overwrite", "create": "create", "swap": {"e_tag": expected}}[mode]
        with self._errors():
            answer = self._obstore.put(self._store, _checked(key), content, mode=wanted, use_multipart=False)
            return str(answer["e_tag"] or "")

    def names(self, prefix: str) -> list[str]:
        with self._errors():
            found = self._obstore.list_with_delimiter(self._store, prefix=prefix)
            return sorted(str(meta["path"]) for meta in found["objects"])

    def delete(self, key: str) -> None:
        with self._errors(), contextlib.suppress(FileNotFoundError):
            self._obstore.delete(self._store, _checked(key))

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn the client's errors into those that a bucket raises: `Conflict`, `FileNotFoundError`, `OSError` with a
        sentence."""
        from obstore import exceptions

        try:
            yield
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
            raise Conflict(str(error)) from None
        except (exceptions.BaseError, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise OSError(_sentence(error)) from None


def _sentence(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _checked(key: str) -> str:
    if not KEY.fullmatch(key) or ".." in key:
        raise ValueError(f"{key!r} is no name of an object of a group")
    return key


def open_bucket(place: str) -> Bucket:
    """A folder (a path or file://) or an address such as s3://bucket/job."""
    if not place.strip():
        raise UsageError(f"{option('bucket')} is empty; name a folder or an address such as s3://bucket/job.")
    if "://" in place and not place.startswith("file://"):
        return ObjectBucket(place.rstrip("/"))
    path = Path(place.removeprefix("file://")).expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; a bucket is a folder or an address such as s3://bucket/job.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be used as a bucket ({error.strerror or error}).") from None
    return FolderBucket(path)
