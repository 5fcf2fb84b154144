"""Choose the reader of a file by its name and its first bytes, and open it. Never parses anything itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flegel.datasets.columnar_cache import columnar
from flegel.datasets.formats import ratings
from flegel.datasets.formats.arrays import ArraySource, open_npy
from flegel.datasets.formats.arrow_tables import open_table
from flegel.datasets.formats.compressed import read_head, suffixes
from flegel.datasets.formats.concatenated import FILE_LABEL, ConcatenatedSource
from flegel.datasets.formats.packed_arrays import IdxStream, NpzStream, idx_labels_beside
from flegel.datasets.formats.svmlight import stream as svmlight
from flegel.datasets.formats.text_dialect import HEAD_BYTES, detect_dialect, find_column
from flegel.datasets.formats.text_source import TextSource
from flegel.datasets.formats.text_stream import TextStream
from flegel.datasets.options import Options
from flegel.datasets.source import Source
from flegel.datasets.tables.columns import RawTable
from flegel.datasets.tables.file_tables import FilesTable, folder_keys
from flegel.datasets.tables.open_table import open_treated
from flegel.datasets.tables.plain_files import TABLES, is_plain, raw_table
from flegel.errors import DataError, UsageError, nearest
from flegel.loading.damage import damage_as

_FORMATS = {
    ".csv": "text", ".tsv": "text", ".tab": "text", ".txt": "text", ".data": "text", ".dat": "text",
    ".parquet": "table", ".pq": "table", ".arrow": "table", ".feather": "table", ".ipc": "table",
    ".npy": "npy", ".npz": "npz",
    ".xlsx": "excel", ".xlsm": "excel",
    ".libsvm": "svmlight", ".svm": "svmlight", ".svmlight": "svmlight",
}  # fmt: skip
FORMATS = ("text", "table", "npy", "npz", "svmlight", "idx", "ratings", "jester", "excel")
_PREFERRED_SUFFIXES = {
    ".csv",
    ".tsv",
    ".parquet",
    ".pq",
    ".arrow",
    ".feather",
    ".npy",
    ".npz",
    ".libsvm",
    ".svm",
    ".xlsx",
}


_TREATED = {"label", "columns", "drop", "categorical", "missing", "decimal"}
_ALLOWED_OPTIONS = {
    "text": {*_TREATED, "delimiter", "header"},
    "table": _TREATED,
    "excel": _TREATED,
    "npy": _TREATED,
    "npz": {"label"},
    "svmlight": {"width"},
}
_OTHER_FORMATS = {
    ".xls": "an old Excel file", ".ods": "a spreadsheet", ".json": "JSON", ".jsonl": "JSON", ".ndjson": "JSON",
    ".xml": "XML", ".html": "HTML", ".h5": "HDF5", ".hdf5": "HDF5", ".hdf": "HDF5", ".pkl": "pickled Python objects",
    ".pickle": "pickled Python objects", ".mat": "a MATLAB file", ".sav": "an SPSS file", ".dta": "a Stata file",
    ".sas7bdat": "a SAS file", ".rds": "an R file", ".rdata": "an R file", ".orc": "ORC", ".avro": "Avro",
    ".db": "a database", ".sqlite": "a database", ".arff": "ARFF", ".pdf": "a PDF",
}  # fmt: skip


def check_options(kind: str, options: Options, path: Path) -> None:
    """Refuse options that the format would ignore."""
    for name, value in options._asdict().items():
        silent = value == getattr(Options(), name) or name in ("dtype", "format", "sparse")
        if not silent and name not in _ALLOWED_OPTIONS.get(kind, ()):
            raise UsageError(f"{path} is read as {kind}, for which {name}={value!r} has no effect; omit it.")


def format_of(path: Path, options: Options) -> str:
    """The format: as given, by the file's name, or by its first bytes."""
    if options.format is not None:
        if options.format not in FORMATS:
            raise UsageError(f"format={options.format!r} is not known{nearest(options.format, list(FORMATS))}")
        return options.format
    suffix, _ = suffixes(path)
    if "-idx" in path.name or ".idx" in path.name:
        return "idx"
    found = _FORMATS.get(suffix)
    if found == "text":
        if suffix in (".dat", ".csv", ".tsv") and ratings.is_ratings_file(path, suffix):
            return "ratings"
        return "jester" if "jester" in path.name.lower() else found
    if found:
        return found
    if suffix in _OTHER_FORMATS:
        raise DataError(f"{path} is {_OTHER_FORMATS[suffix]}, which is not read; save it as CSV, Parquet or .npy.")
    head, _ = read_head(path, 8)
    if head[:4] == b"PAR1" or head[:6] == b"ARROW1":
        return "table"
    if head[:2] == b"\0\0" and len(head) > 3 and 1 <= head[3] <= 8:
        return "idx"
    return "svmlight" if svmlight.is_svmlight_file(path) else "text"


def open_files(paths: list[Path], options: Options, spec: str) -> Source:
    """One source for a file, a folder or several files."""
    files, keys, kinds = _listed(paths, options)
    by_file = options.label == FILE_LABEL
    plain = options._replace(label=None) if by_file else options
    if set(kinds) <= TABLES and not all(
        not any(keys) and is_plain(path, kind, plain) for path, kind in zip(files, kinds, strict=True)
    ):
        if by_file:
            keys = [{**key, FILE_LABEL: path.name.split(".")[0]} for key, path in zip(keys, files, strict=True)]
        return open_treated(_as_table(files, keys, kinds, options, spec), options)
    parts = [_opened(path, plain) for path in files]
    if len(parts) == 1 and not by_file:
        return parts[0]
    return ConcatenatedSource(parts, spec, [path.name.split(".")[0] for path in files] if by_file else None)


def open_raw(paths: list[Path], spec: str) -> RawTable | None:
    """A file, a folder or several files as a table that is still to be treated; None where they are no tables."""
    files, keys, kinds = _listed(paths, Options())
    return _as_table(files, keys, kinds, Options(), spec) if set(kinds) <= TABLES else None


def files_are_plain(paths: list[Path], chosen: dict[str, Any]) -> bool:
    """Whether these files hold plain numbers in the chosen columns."""
    files, keys, kinds = _listed(paths, Options())
    options = Options(**chosen)
    return not any(keys) and all(is_plain(path, kind, options) for path, kind in zip(files, kinds, strict=True))


def _listed(paths: list[Path], options: Options) -> tuple[list[Path], list[dict[str, str]], list[str]]:
    """Files with the keys in the names of their folders, and their formats."""
    root = paths[0] if len(paths) == 1 and paths[0].is_dir() else None
    files = [path.absolute() for path in (readable_files(root, options) if root else paths)]
    keys = [folder_keys(path, root.absolute()) if root else {} for path in files]
    return files, keys, [checked_kind(path, options) for path in files]


def _as_table(files: list[Path], keys: list[dict[str, str]], kinds: list[str], options: Options, spec: str) -> RawTable:
    tables = [raw_table(path, kind, options) for path, kind in zip(files, kinds, strict=True)]
    return tables[0] if len(tables) == 1 and not any(keys) else FilesTable(tables, keys, spec)


def checked_kind(path: Path, options: Options) -> str:
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
    tables = [p for p in files if format_suffix(p) in _PREFERRED_SUFFIXES]
    chosen = tables or [p for p in files if format_suffix(p) in _FORMATS]
    if not chosen:
        raise DataError(
            f"The folder {folder} holds no file that can be read; put CSV, Parquet, NumPy or LIBSVM files there."
        )
    kinds = {format_of(p, options) for p in chosen}
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


def _opened(path: Path, options: Options) -> Source:
    """`open_file`; whatever else goes wrong with the bytes of the file is one sentence too."""
    with damage_as(f"{path} is damaged", DataError):
        return open_file(path, options)


def open_file(path: Path, options: Options) -> Source:
    """The source of one file; what can only be read in order is converted in the columnar cache."""
    kind = checked_kind(path, options)
    suffix, _ = suffixes(path)
    dtype = options.dtype or "float32"
    match kind:
        case "npy":
            return open_npy_file(path, options)
        case "npz":
            return columnar(NpzStream(path, options.label, options.dtype))
        case "table":
            return open_table(path, options)
        case "idx":
            return columnar(IdxStream(path, idx_labels_beside(path), options.dtype))
        case "svmlight":
            return columnar(svmlight.SvmlightStream(path, dtype, width=options.width or 0))
        case "ratings":
            return columnar(ratings.RatingsStream(path, suffix, dtype))
        case "jester":
            return columnar(ratings.JesterStream(path, suffix, dtype))
    return open_text(path, options)


def open_npy_file(path: Path, options: Options) -> Source:
    array = open_npy(path)
    width = array.shape[1] if array.ndim > 1 else 1
    at = None if options.label is None else find_column(options.label, None, width, str(path), "label column")
    return ArraySource(array, origin=str(path), dtype=options.dtype, label_column=at, paths=(str(path), None))


def open_text(path: Path, options: Options) -> Source:
    """Plain text of numbers is read in blocks; compressed text, or text with text labels, is converted first."""
    head, whole = read_head(path, HEAD_BYTES)
    suffix, packing = suffixes(path)
    dialect = detect_dialect(
        head,
        whole,
        str(path),
        suffix,
        label=options.label,
        columns=options.columns,
        drop=options.drop,
        delimiter=options.delimiter,
        header=options.header,
    )
    dtype = options.dtype or "float32"
    if packing or dialect.text_label:
        return columnar(TextStream(path, dialect, dtype))
    return TextSource(path, dialect, dtype)
