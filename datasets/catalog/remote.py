"""Data by address: http(s) through fetch.py, object stores through obstore, an optional dependency.

A remote file is copied into the cache folder once and read there. Never uploads.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flegel.datasets.catalog.fetch import Progress, check_name, fetch_url
from flegel.datasets.rows.cache_folder import data_folder, locked
from flegel.errors import DataError, UsageError, in_words

STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss")


def stage(url: str, progress: Progress | None = None) -> Path:
    """The local copy of a remote file; downloaded where it is missing or has changed in its store."""
    scheme = urlsplit(url).scheme.lower()
    if scheme == "file":
        return Path(urlsplit(url).path)
    if scheme in ("http", "https"):
        return fetch_url(url, progress)
    if scheme in STORES:
        return _stage_object(url, progress)
    raise UsageError(f"{url}: addresses begin with http, https, file, {', '.join(STORES[:-2])}.")


def _stage_object(url: str, progress: Progress | None) -> Path:
    """One object, or all below a prefix that ends with a slash."""
    try:
        import obstore
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise UsageError(f"{url} needs obstore: pip install 'flegel[s3]'.") from None
    parts = urlsplit(url)
    key = parts.path.lstrip("/")
    try:
        store = from_url(f"{parts.scheme}://{parts.netloc}")
        if key and not key.endswith("/"):
            metas = [obstore.head(store, key)]
        else:
            metas = [meta for page in obstore.list(store, key or None) for meta in page if meta["size"]]
        if not metas:
            raise DataError(f"There is no object below {url}; check the prefix.")
        versions = "".join(f"{m['path']} {m['e_tag']} {m['size']} {m['last_modified']}\n" for m in metas)
        folder = data_folder() / "urls" / hashlib.sha256(f"{url}\n{versions}".encode()).hexdigest()[:16]
        for meta in metas:
            name = str(meta["path"]).removeprefix(key if key.endswith("/") else "").replace("/", "-")
            name = name if key.endswith("/") or not key else Path(key).name
            check_name(name)
            _copy(obstore.get(store, meta["path"]), folder / name, int(meta["size"]), url, progress)
    except (BaseError, OSError, ValueError) as error:
        raise DataError(
            f"{url} could not be read ({in_words(error)}); check the address and the credentials."
        ) from None
    return folder if key.endswith("/") or not key else folder / name


def _copy(answer: Any, target: Path, wanted: int, url: str, progress: Progress | None) -> None:
    """Copy an object into the cache; it is renamed to its name only when it is complete."""
    part = target.with_name(f"{target.name}.part")
    with locked(target.parent / f".{target.name}.lock"):
        if target.exists():
            return
        size = 0
        with part.open("wb") as file:
            for piece in answer.stream(min_chunk_size=8 << 20):
                file.write(piece)
                size += len(piece)
                if progress is not None:
                    progress(target.name, size, wanted)
        if size != wanted:
            raise DataError(f"{url} sent {size:,} of {wanted:,} bytes of {target.name}; run the command again.")
        part.rename(target)
