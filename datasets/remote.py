"""Addresses as data: http(s) by our own downloader, object stores through obstore, an extra.

A remote file is brought into the cache folder once and read from there. Never uploads.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import urlsplit

from flegel.datasets.cache import data_folder, locked
from flegel.datasets.fetch import Progress, check_name, fetch_url
from flegel.errors import DataError, UsageError

STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss")


def stage(url: str, progress: Progress | None = None) -> Path:
    """The local copy of a remote file, fetched if it is not here yet or has changed in its store."""
    scheme = urlsplit(url).scheme.lower()
    if scheme == "file":
        return Path(urlsplit(url).path)
    if scheme in ("http", "https"):
        return fetch_url(url, progress)
    if scheme in STORES:
        return _stage_object(url, progress)
    raise UsageError(f"{url}: addresses begin with http, https, file, {', '.join(STORES[:-2])}.")


def _stage_object(url: str, progress: Progress | None) -> Path:
    try:
        import obstore
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise UsageError(f"{url} needs obstore: pip install 'flegel[s3]'.") from None
    parts = urlsplit(url)
    key = parts.path.lstrip("/")
    name = Path(key).name
    check_name(name)
    try:
        store = from_url(f"{parts.scheme}://{parts.netloc}")
        meta = obstore.head(store, key)
        version = f"{meta['e_tag']} {meta['size']} {meta['last_modified']}"
        folder = data_folder() / "urls" / hashlib.sha256(f"{url} {version}".encode()).hexdigest()[:16]
        target, part = folder / name, folder / f"{name}.part"
        with locked(folder / f".{name}.lock"):
            if target.exists():
                return target
            size = 0
            with part.open("wb") as file:
                for piece in obstore.get(store, key).stream(min_chunk_size=8 << 20):
                    file.write(piece)
                    size += len(piece)
                    if progress is not None:
                        progress(name, size, meta["size"])
            if size != meta["size"]:
                raise DataError(f"{url} gave {size:,} of {meta['size']:,} bytes; try again.")
            part.rename(target)
    except (BaseError, OSError, ValueError) as error:
        raise DataError(f"{url} could not be read ({str(error).splitlines()[0]}).") from None
    return target
