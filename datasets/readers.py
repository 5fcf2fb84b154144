"""Which reader a file needs, by its name and its first bytes. Never parses anything itself."""

from __future__ import annotations

from pathlib import Path

from flegel.datasets.arrays import ArraySource, open_npy
from flegel.datasets.base import Source
from flegel.datasets.options import Options
from flegel.datasets.text import TextSource
from flegel.datasets.text_dialect import HEAD_BYTES, find_column, understand
from flegel.errors import DataError


def open_files(paths: list[Path], options: Options, spec: str) -> Source:
    """One source for a file or several."""
    return open_file(paths[0], options)


def open_file(path: Path, options: Options) -> Source:
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return open_npy_file(path, options)
    return open_text(path, options)


def open_npy_file(path: Path, options: Options) -> Source:
    array = open_npy(path)
    width = array.shape[1] if array.ndim > 1 else 1
    at = None if options.label is None else find_column(options.label, None, width, str(path), "label column")
    return ArraySource(
        array, origin=str(path), dtype=options.dtype, label_column=at, paths=(str(path.absolute()), None)
    )


def open_text(path: Path, options: Options) -> Source:
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None
    dialect = understand(
        head,
        len(head) < HEAD_BYTES,
        str(path),
        path.suffix.lower(),
        label=options.label,
        columns=options.columns,
        delimiter=options.delimiter,
        header=options.header,
    )
    return TextSource(path.absolute(), dialect, options.dtype or "float32")
