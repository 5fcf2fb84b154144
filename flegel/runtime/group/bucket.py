"""The bucket of a job's groups: a folder, or an object store through obstore. Conditional puts; decides nothing.

Every call returns within its deadline or raises `OSError`; one that raised may have happened all the same. A folder
makes conditions hold by a lock file, because neither rename nor obstore's own folder store compares tags.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from flegel.errors import UsageError
from flegel.machine.group.records import digest_of
from flegel.wording import option

KEY = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
LARGEST = 4 << 30
TIMEOUT = "20s"


class Conflict(Exception):
    """The condition of a put did not hold."""


class Bucket(Protocol):
    """Raises `OSError` where the store does not answer."""

    place: str

    def get(self, key: str) -> tuple[bytes, str] | None:
        """Content and tag; None where there is no such object."""
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

    def get(self, key: str) -> tuple[bytes, str] | None:
        try:
            content = self._file(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return content, digest_of(content)

    def put(self, key: str, content: bytes, mode: str = "replace", expected: str = "") -> str:
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
                    held = self.get(key)
                    if (mode == "create" and held is not None) or (
                        mode == "swap" and (held is None or held[1] != expected)
                    ):
                        raise Conflict(key)
                    Path(scratch).replace(target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                Path(scratch).unlink()
        return digest_of(content)

    def names(self, prefix: str) -> list[str]:
        folder = self.path / prefix
        if not folder.is_dir():
            return []
        return sorted(prefix + p.name for p in folder.iterdir() if not p.name.startswith("."))

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._file(key).unlink()

    def _file(self, key: str) -> Path:
        return self.path / _checked(key)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.path / ".lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class ObjectBucket:
    """S3, Google Cloud Storage or Azure, with the credentials that obstore finds in the environment."""

    def __init__(self, url: str) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError:
            raise UsageError(f"{url} needs obstore: pip install 'flegel[s3]'.") from None
        self.place, self._obstore = url, obstore
        options = {"timeout": TIMEOUT, "connect_timeout": "5s"}
        if os.environ.get("AWS_ENDPOINT_URL", os.environ.get("AWS_ENDPOINT", "")).startswith("http://"):
            options["allow_http"] = "true"
        retry: Any = {"max_retries": 0}  # the group itself looks again
        try:
            self._store = from_url(url, client_options=options, retry_config=retry)  # type: ignore[call-overload]
        except Exception as error:  # noqa: BLE001 - each kind of store has errors of its own
            raise UsageError(f"{url} cannot be used as a bucket: {_sentence(error)}.") from None

    def get(self, key: str) -> tuple[bytes, str] | None:
        with self._errors():
            try:
                answer = self._obstore.get(self._store, _checked(key))
                if answer.meta["size"] > LARGEST:
                    raise OSError(f"{key} has {answer.meta['size']} bytes")
                return bytes(answer.bytes()), str(answer.meta["e_tag"] or "")
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
