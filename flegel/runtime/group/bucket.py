"""The bucket of a job's groups: a folder, or an object store through obstore. Conditional puts; decides nothing.

Every call returns within its deadline or raises `OSError`; one that raised may have happened all the same. A folder
makes conditions hold by a lock, because neither rename nor obstore's own folder store compares tags; a process that is
frozen does not keep it (`folder_lock.py`). Of a folder
only regular files are read, up to a size that the caller gives; pipes, devices and links are refused without being
opened for long, and no name leads out of the folder.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from flegel.errors import UsageError
from flegel.machine.group.records import digest_of
from flegel.runtime.group.folder_lock import FolderLock
from flegel.runtime.group.keys import RefusedObject
from flegel.wording import option

READABLE_AS_THE_UMASK_ALLOWS = 0o666  # sites may run under several accounts
KEY = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
MAX_PACKAGE_BYTES = 1 << 30  # bytes of the package, whose size is not known before it is read
MAX_LISTED_NAMES = 100_000  # of one listing; groups write some ten objects under a name
CALL_TIMEOUT = "20s"
OPEN_UNREAD = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK)  # Linux opens pipes and links without touching them
BY_STAT = "stat:"  # tags of what is too large to be read, or no regular file


class Conflict(Exception):
    """The condition of a put did not hold."""


class StoredObject(NamedTuple):
    """An object as it was read."""

    content: bytes
    tag: str
    """Another one for each content: `swap` compares it."""


class Bucket(Protocol):
    """Raises `OSError` where the store does not answer."""

    place: str

    def get(self, key: str, largest: int = 0) -> StoredObject | None:
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
        self._lock = FolderLock(path)

    def get(self, key: str, largest: int = 0) -> StoredObject | None:
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

    def _content(self, handle: int, largest: int) -> StoredObject:
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
        return StoredObject(content, digest_of(content))

    def put(self, key: str, content: bytes, mode: str = "replace", expected: str = "") -> str:
        """Write beside the object and rename. `create` and `swap` compare and raise Conflict, as conditional writes of
        object stores do."""
        target = self._file(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.parent / f".{secrets.token_hex(8)}.part"
        handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, READABLE_AS_THE_UMASK_ALLOWS)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            if mode == "replace":
                scratch.replace(target)
            else:
                self._put_where(key, expected if mode == "swap" else "", scratch)
        finally:
            with contextlib.suppress(FileNotFoundError):
                scratch.unlink()
        return digest_of(content)

    def _put_where(self, key: str, expected: str, scratch: Path) -> None:
        """Rename a file to the object where the tag of that is `expected`; empty: where there is none.

        The content is compared before the lock is taken, since that may take long; under it only whether the file is
        still the same one. It stays open meanwhile, so that no other file gets its number."""
        with self._opened(key) as before:
            if self._tag(key, expected) != expected:
                raise Conflict(key)
            self._lock.take(scratch)
            if self._stat_tag(key) != before:
                raise Conflict(key)
            try:
                scratch.replace(self._file(key))
            except FileNotFoundError:
                raise OSError(f"this process was stopped while it wrote {key}, and others went on") from None

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[str]:
        """Keep what is there under a name, whatever it is; its tag by number, size and time, empty where there is
        nothing."""
        handle = -1
        with contextlib.suppress(OSError):  # there is nothing; or, without O_PATH, a link
            handle = os.open(self._file(key), OPEN_UNREAD | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield _stat_tag(os.fstat(handle)) if handle >= 0 else self._stat_tag(key)
        finally:
            if handle >= 0:
                os.close(handle)

    def _tag(self, key: str, expected: str) -> str:
        """A tag of the object's present content, to be compared with one that `get` has returned; empty where there is
        no object."""
        if expected.startswith(BY_STAT):
            return self._stat_tag(key)
        try:
            held = self.get(key)
        except RefusedObject as refused:
            return refused.tag
        return held.tag if held is not None else ""

    def _stat_tag(self, key: str) -> str:
        try:
            return _stat_tag(os.lstat(self._file(key)))
        except (FileNotFoundError, NotADirectoryError):
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

    def get(self, key: str, largest: int = 0) -> StoredObject | None:
        """Content and tag of an object, None where it does not exist; refuses more than `largest` bytes before reading
        them."""
        with self._errors():
            try:
                answer = self._obstore.get(self._store, _checked(key))
                size, tag = answer.meta["size"], str(answer.meta["e_tag"] or "")
                if size > (largest or MAX_PACKAGE_BYTES):
                    raise RefusedObject(f"it has {size:,} bytes, more than {largest or MAX_PACKAGE_BYTES:,}", tag)
                return StoredObject(bytes(answer.bytes()), tag)
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
    """What a store's error says, without the dump of its client."""
    return " ".join(str(error).partition("Debug source:")[0].split())[:200].rstrip(".")


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
