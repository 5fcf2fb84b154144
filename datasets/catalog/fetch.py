"""Download with resume, progress, checksum and atomic placement.

Never leaves a wrong or partial file under its name.

A download is written to `NAME.part`; a later attempt continues there if the server supports ranges. The file is
renamed only when its length and its checksum are right.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from flegel.datasets.catalog.entry import CatalogEntry, RemoteFile
from flegel.datasets.rows.cache_folder import data_folder, locked
from flegel.errors import DataError, FlegelError, UsageError, in_words
from flegel.loading.array_files import check_zip_member

Progress = Callable[[str, int, int | None], None]
"""Called with (file name, bytes so far, bytes in all or None)."""
_CHUNK_BYTES = 1 << 18  # that are read at a time
_AGENT = "flegel-data"


class FetchError(FlegelError):
    """A download failed; the bytes received so far are kept for the next attempt."""


def fetch_entry(entry: type[CatalogEntry], progress: Progress | None = None) -> Path:
    """All files of a registered set, in its folder of the cache; archives are unpacked there."""
    if entry.generated or not entry.remotes:
        raise UsageError(f"{entry.name} is generated, so there is nothing to fetch; use it with --data {entry.name}.")
    folder = entry.folder()
    for remote in entry.remotes:
        path = fetch(remote, folder, progress)
        if path.suffix == ".zip":
            unpack(path, folder)
    return folder


def fetch(
    remote: RemoteFile,
    folder: Path,
    progress: Progress | None = None,
    *,
    tries: int = 5,
    timeout: float = 30.0,
    pause: Callable[[float], None] = time.sleep,
) -> Path:
    """Download one file, continuing an earlier attempt. `pause` waits between attempts."""
    check_name(remote.name)
    check_url(remote.url)
    target, part = folder / remote.name, folder / f"{remote.name}.part"
    try:
        with locked(folder / f".{remote.name}.lock"):
            if target.exists():
                return target
            for attempt in range(tries):
                try:
                    _download(remote, part, progress, timeout)
                    break
                except (OSError, HTTPException) as error:
                    if isinstance(error, urllib.error.HTTPError) and 400 <= error.code < 500 and error.code != 429:
                        raise FetchError(
                            f"{remote.url} answers {error.code} {error.reason}; "
                            f"download the file by hand into {folder}."
                        ) from None
                    if _is_local(error):
                        raise
                    if attempt == tries - 1:
                        size = part.stat().st_size if part.exists() else 0
                        raise FetchError(
                            f"{remote.url} could not be fetched in {tries} tries ({in_words(error)}); {size:,} bytes "
                            "are kept, and the next fetch continues there."
                        ) from None
                    pause(min(30.0, 2.0**attempt))
            verify(part, remote)
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.rename(target)
    except OSError as error:
        raise FetchError(
            f"{target} could not be written ({error.strerror or error}); "
            "point FLEGEL_DATA to a folder with space that you may write to."
        ) from None
    return target


def check_name(name: str) -> None:
    """Refuse a name that is a path: it could point out of the cache folder."""
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise UsageError(f"{name!r} is no file name; use a name without slashes.")


def check_url(url: str) -> None:
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"{url!r} is no http or https address; begin it with https://.")


def _is_local(error: Exception) -> bool:
    """Whether the error is local, such as a full disk or a missing permission, so that a retry is useless."""
    if isinstance(error, urllib.error.URLError | HTTPException | TimeoutError | ConnectionError):
        return False
    return (isinstance(error, OSError) and error.filename is not None) or getattr(error, "errno", None) in (
        28,
        30,
    )


def _download(remote: RemoteFile, part: Path, progress: Progress | None, timeout: float) -> None:
    """Append the missing bytes to `part`; raise OSError where fewer arrive than the server announced."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": _AGENT, "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(remote.url, headers=headers)
    try:
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:
            total = _total(error.headers.get("Content-Range"))
            if total == have:
                return
            part.unlink()
            raise ConnectionError("the partial file is longer than the file; starting again") from None
        raise
    with answer:
        start, total = _first_byte(answer, have)
        with part.open("r+b" if part.exists() else "wb") as file:
            file.seek(start)
            file.truncate()
            size = start
            while piece := answer.read1(_CHUNK_BYTES):
                file.write(piece)
                size += len(piece)
                if progress is not None:
                    progress(remote.name, size, total)
    if total is not None and size < total:
        raise ConnectionError(f"the connection ended after {size:,} of {total:,} bytes")


def _first_byte(answer: HTTPResponse, have: int) -> tuple[int, int | None]:
    """(first byte of the response, length of the whole file); a server that ignores the range begins at 0."""
    length = answer.headers.get("Content-Length")
    count = int(length) if length and length.isdigit() else None
    if answer.status == 206:
        given = answer.headers.get("Content-Range", "")
        first = given.removeprefix("bytes ").partition("-")[0]
        if first != str(have):
            raise ConnectionError(f"the server sent bytes from {first or '?'} instead of {have}")
        return have, _total(given)
    return 0, count


def _total(content_range: str | None) -> int | None:
    text = (content_range or "").rpartition("/")[2]
    return int(text) if text.isdigit() else None


def verify(path: Path, remote: RemoteFile) -> None:
    """Compare the checksum; a wrong file is removed, so that the next attempt starts from the beginning."""
    if remote.checksum is None:
        return
    algorithm, _, wanted = remote.checksum.partition(":")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    if found != wanted:
        path.unlink()
        raise FetchError(
            f"{remote.url} sent other bytes than expected ({algorithm} {found} instead of {wanted}); "
            "the file was removed; fetch it again."
        )


def _check_readable(archive: Path, member: zipfile.ZipInfo) -> None:
    """Refuse a member that is whole and cannot be unpacked here: to fetch it again would not help."""
    try:
        check_zip_member(member)
    except ValueError as error:
        raise DataError(
            f"{archive} cannot be unpacked here ({error}); unpack it with another program and give the file that comes "
            "out as data."
        ) from None


def unpack(archive: Path, folder: Path) -> None:
    """The files of a zip below `folder`; a member that points elsewhere is refused before anything is
    written.
    """
    try:
        with zipfile.ZipFile(archive) as packed:
            members = [m for m in packed.infolist() if not m.is_dir()]
            for member in members:
                _check_readable(archive, member)
                target = (folder / member.filename).resolve()
                if not target.is_relative_to(folder.resolve()):
                    raise DataError(
                        f"{archive} holds the file {member.filename!r}, which points out of its folder; "
                        "nothing was unpacked."
                    )
            for member in members:
                target = folder / member.filename
                if target.exists() and target.stat().st_size == member.file_size:
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                temporary = target.with_name(target.name + ".part")
                with packed.open(member) as source, temporary.open("wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
                temporary.rename(target)
    except (zipfile.BadZipFile, ValueError) as error:
        raise DataError(f"{archive} is no complete zip archive ({error}); remove it and fetch it again.") from None


def fetch_url(url: str, progress: Progress | None = None) -> Path:
    """Download the file at `url` into a folder of its own in the cache."""
    check_url(url)
    name = Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)).name or "download"
    folder = data_folder() / "urls" / hashlib.sha256(url.encode()).hexdigest()[:16]
    return fetch(RemoteFile(url, name), folder, progress)
