"""Choose the reader of a file by its name and its first bytes, and open it. Never parses anything itself."""

from __future__ import annotations

from pathlib import Path

from flegel.datasets.columnar_cache import columnar
from flegel.datasets.formats import ratings, svmlight
from flegel.datasets.formats.arrays import ArraySource, open_npy
from flegel.datasets.formats.arrow_tables import open_table
from flegel.datasets.formats.compressed import read_head, suffixes
from flegel.datasets.formats.concatenated import FILE_LABEL, ConcatenatedSource
from flegel.datasets.formats.packed_arrays import IdxStream, NpzStream, idx_labels_beside
from flegel.datasets.formats.text_dialect import HEAD_BYTES, detect_dialect, find_column
from flegel.datasets.formats.text_source import TextSource
from flegel.datasets.formats.text_stream import TextStream
from flegel.datasets.options import Options
from flegel.datasets.source import Source
from flegel.errors import DataError, UsageError, nearest

_FORMATS = {
    ".csv": "text", ".tsv": "text", ".tab": "text", ".txt": "text", ".data": "text", ".dat": "text",
    ".parquet": "table", ".pq": "table", ".arrow": "table", ".feather": "table", ".ipc": "table",
    ".npy": "npy", ".npz": "npz",
    ".libsvm": "svmlight", ".svm": "svmlight", ".svmlight": "svmlight",
}  # fmt: skip
FORMATS = ("text", "table", "npy", "npz", "svmlight", "idx", "ratings", "jester")
_PREFERRED_SUFFIXES = {".csv", ".tsv", ".parquet", ".pq", ".arrow", ".feather", ".npy", ".npz", ".libsvm", ".svm"}


_ALLOWED_OPTIONS = {
    "text": {"label", "columns", "delimiter", "header"},
    "table": {"label", "columns"},
    "npy": {"label"},
    "npz": {"label"},
    "svmlight": {"width"},
}


def check_options(kind: str, options: Options, path: Path) -> None:
    """Refuse options that the format would ignore."""
    for name, value in options._asdict().items():
        if value is not None and name not in ("dtype", "format") and name not in _ALLOWED_OPTIONS.get(kind, ()):
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
    head, _ = read_head(path, 8)
    if head[:4] == b"PAR1" or head[:6] == b"ARROW1":
        return "table"
    if head[:2] == b"\0\0" and len(head) > 3 and 1 <= head[3] <= 8:
        return "idx"
    return "svmlight" if svmlight.is_svmlight_file(path) else "text"


def open_files(paths: list[Path], options: Options, spec: str) -> Source:
    """One source for a file, a folder or several files."""
    files = readable_files(paths[0], options) if len(paths) == 1 and paths[0].is_dir() else paths
    by_file = options.label == FILE_LABEL
    if by_file:
        options = options._replace(label=None)
    parts = [open_file(path.absolute(), options) for path in files]
    if len(parts) == 1 and not by_file:
        return parts[0]
    return ConcatenatedSource(parts, spec, [path.name.split(".")[0] for path in files] if by_file else None)


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


def open_file(path: Path, options: Options) -> Source:
    """The source of one file; what can only be read in order is converted in the columnar cache."""
    if not path.exists():
        raise DataError(f"{path} does not exist; check the path.")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty; give a file with rows.")
    kind = format_of(path, options)
    check_options(kind, options, path)
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
        delimiter=options.delimiter,
        header=options.header,
    )
    dtype = options.dtype or "float32"
    if packing or dialect.text_label:
        return columnar(TextStream(path, dialect, dtype))
    return TextSource(path, dialect, dtype)
