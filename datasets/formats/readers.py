"""From files, folders and patterns to one source of rows: the format of each file is found, and its reader opens it.

Never parses anything itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flegel.datasets.formats.compressed import suffixes
from flegel.datasets.formats.concatenated import FILE_LABEL, ConcatenatedSource
from flegel.datasets.formats.registry import (
    BY_SUFFIX,
    RATINGS,
    Format,
    check_options,
    format_of,
    table_below,
)
from flegel.datasets.rows.options import Options
from flegel.datasets.rows.source import Source
from flegel.datasets.tables.columns import RawTable
from flegel.datasets.tables.files_table import FilesTable, folder_keys
from flegel.datasets.tables.open_table import open_ratings, open_treated
from flegel.datasets.tables.ratings import may_be_ratings
from flegel.errors import DataError
from flegel.loading.damage import damage_as
from flegel.wording import option

_OFTEN_NOTES = {".txt", ".data", ".dat", ".tab"}
"""Suffixes that also belong to descriptions of a table; in a folder, other files have precedence."""


def open_files(paths: list[Path], options: Options, spec: str) -> Source:
    """One source for a file, a folder or several files."""
    files, keys, kinds = _listed(paths, options)
    by_file = options.label == FILE_LABEL
    plain = options._replace(label=None) if by_file else options
    if all(kind is RATINGS for kind in kinds):
        tables = [table_below(path, options) for path in files]
        table = tables[0] if len(tables) == 1 else FilesTable(tables, [{}] * len(tables), spec)
        with damage_as(f"{spec} is damaged", DataError):
            return open_ratings(table, options)
    if all(kind.table for kind in kinds) and (any(keys) or not _all_plain(files, kinds, plain)):
        if by_file:
            keys = [{**key, FILE_LABEL: path.name.split(".")[0]} for key, path in zip(keys, files, strict=True)]
        return open_treated(_as_table(files, keys, kinds, options, spec), options)
    parts = [_opened(path, kind, plain) for path, kind in zip(files, kinds, strict=True)]
    if len(parts) == 1 and not by_file:
        open_table = kinds[0].table
        if options.ratings and options.format is None and open_table and may_be_ratings(open_table(files[0], options)):
            parts[0].report = [
                f"{files[0].name}: {parts[0].columns} columns are read as a matrix of {parts[0].columns} columns; if "
                f"they are user, item and rating, give {option('format', 'ratings')}."
            ]
        return parts[0]
    return ConcatenatedSource(parts, spec, [path.name.split(".")[0] for path in files] if by_file else None)


def open_raw(paths: list[Path], spec: str, options: Options) -> RawTable | None:
    """A file, a folder or several files as a table that is still to be treated; None where they are no tables."""
    files, keys, kinds = _listed(paths, options)
    return _as_table(files, keys, kinds, options, spec) if all(kind.table for kind in kinds) else None


def are_tables(paths: list[Path]) -> bool:
    """Whether `open_raw` takes these files, as tables of columns or of ratings."""
    return all(kind.table or kind is RATINGS for kind in _listed(paths, Options())[2])


def open_gapped(paths: list[Path], spec: str, label: str | int | None = None) -> RawTable | None:
    """As `open_raw`, of files that are tables only where gaps are treated; the label is their last column."""
    files, keys, kinds = _listed(paths, Options())
    options = Options(label=label)
    opened = [kind.gapped(path, options) if kind.gapped else None for path, kind in zip(files, kinds, strict=True)]
    made = [table for table in opened if table is not None]
    if any(keys) or not made or len(made) < len(files):
        return None
    return made[0] if len(made) == 1 else FilesTable(made, keys, spec)


def files_are_plain(paths: list[Path], chosen: dict[str, Any]) -> bool:
    """Whether these files hold plain numbers in the chosen columns."""
    files, keys, kinds = _listed(paths, Options())
    options = Options(**chosen)
    return not any(keys) and all(kind.table for kind in kinds) and _all_plain(files, kinds, options)


def _all_plain(files: list[Path], kinds: list[Format], options: Options) -> bool:
    """Whether readers of plain numbers take all of these tables."""
    return not options.treats and all(
        kind.is_plain is not None and kind.is_plain(path, options) for path, kind in zip(files, kinds, strict=True)
    )


def _listed(paths: list[Path], options: Options) -> tuple[list[Path], list[dict[str, str]], list[Format]]:
    """Files with the keys in the names of their folders, and their formats."""
    root = paths[0] if len(paths) == 1 and paths[0].is_dir() else None
    files = [path.absolute() for path in (readable_files(root, options) if root else paths)]
    keys = [folder_keys(path, root.absolute()) if root else {} for path in files]
    return files, keys, [checked_kind(path, options) for path in files]


def _as_table(
    files: list[Path], keys: list[dict[str, str]], kinds: list[Format], options: Options, spec: str
) -> RawTable:
    tables = [kind.table(path, options) for path, kind in zip(files, kinds, strict=True) if kind.table]
    return tables[0] if len(tables) == 1 and not any(keys) else FilesTable(tables, keys, spec)


def checked_kind(path: Path, options: Options) -> Format:
    """The format of a file that exists and whose options all have an effect."""
    if not path.exists():
        raise DataError(f"{path} does not exist; check the path.")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty; give a file with rows.")
    kind = format_of(path, options)
    named = options._replace(label=None) if options.label == FILE_LABEL else options
    check_options(kind, named, path)
    return kind


def readable_files(folder: Path, options: Options) -> list[Path]:
    """The files of a folder that make up one set, in the order of their names."""
    try:
        files = sorted(p for p in folder.rglob("*") if not _hidden(p.relative_to(folder)) and p.is_file())
    except OSError as error:
        raise DataError(
            f"The folder {folder} cannot be searched ({error.strerror} at {error.filename}); give the files instead, "
            f"such as '{folder / '*.csv'}'."
        ) from None
    images = [p for p in files if "images-idx3" in p.name or "images.idx3" in p.name]
    if images:
        return [next((p for p in images if p.name.startswith("train")), images[0])]
    rated = [p for p in files if p.name.split(".")[0].lower() == "ratings"]
    if rated:
        return rated[:1]
    tables = [p for p in files if format_suffix(p) in set(BY_SUFFIX) - _OFTEN_NOTES]
    chosen = tables or [p for p in files if format_suffix(p) in BY_SUFFIX]
    if not chosen:
        raise DataError(
            f"The folder {folder} holds no file that can be read; put CSV, Parquet, NumPy or LIBSVM files there."
        )
    kinds = {format_of(p, options).name for p in chosen}
    if len(kinds) > 1:
        raise DataError(
            f"The folder {folder} mixes {' and '.join(sorted(kinds))} files; "
            f"give a pattern, such as '{folder / '*.csv'}'."
        )
    return chosen


def format_suffix(path: Path) -> str:
    try:
        return suffixes(path)[0]
    except DataError:
        return ""


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _opened(path: Path, kind: Format, options: Options) -> Source:
    """The rows of one file; whatever else goes wrong with its bytes is one sentence too."""
    with damage_as(f"{path} is damaged", DataError):
        return kind.open(path, options)
