"""Every file format that can be read: its names, how a file of it is recognized, its options, and what opens it.

A new format is one file beside this one and one entry in `FORMATS`. Never parses anything itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flegel.datasets.formats import arrow_tables, npy
from flegel.datasets.formats.compressed import read_head, suffixes
from flegel.datasets.formats.excel import ExcelTable
from flegel.datasets.formats.jester import JesterStream, is_jester
from flegel.datasets.formats.json_lines import JsonLinesTable
from flegel.datasets.formats.npz_table import NpzTable, npz_table
from flegel.datasets.formats.packed_arrays import IdxStream, NpzStream, idx_labels_beside
from flegel.datasets.formats.svmlight import SvmlightStream, is_svmlight
from flegel.datasets.formats.text_dialect import HEAD_BYTES, detect_dialect, number_dialect
from flegel.datasets.formats.text_source import TextSource
from flegel.datasets.formats.text_stream import TextStream
from flegel.datasets.formats.text_table import TextTable
from flegel.datasets.rows.columnar_cache import columnar
from flegel.datasets.rows.options import Options
from flegel.datasets.rows.source import Source
from flegel.datasets.tables.columns import RawTable
from flegel.datasets.tables.open_table import open_ratings, open_treated
from flegel.datasets.tables.ratings import recognized
from flegel.errors import DataError, UsageError, nearest
from flegel.wording import option

_TREATED = frozenset({"label", "columns", "drop", "categorical", "missing", "decimal", "categories"})


@dataclass(frozen=True)
class Format:
    """One way in which rows are written to a file."""

    name: str
    open: Callable[[Path, Options], Source]
    """The rows of one file, where they need no treatment."""
    options: frozenset[str] = frozenset()
    """Options of `open_data` that have an effect."""
    other_names: tuple[str, ...] = ()
    """Further names that --format takes."""
    suffixes: tuple[str, ...] = ()
    recognizes: Callable[[Path, bytes, bool], bool] | None = None
    """Tells by the beginning of a file (and whether that is all of it), where its suffix leaves the format open."""
    table: Callable[[Path, Options], RawTable] | None = None
    """The file as a table whose columns are surveyed, for formats that are tables."""
    gapped: Callable[[Path, Options], RawTable | None] | None = None
    """As `table`, of a format that is no table, where gaps are treated; None of a file that cannot have any."""
    is_plain: Callable[[Path, Options], bool] | None = None
    """Whether `open` takes this table: no text, gap, date, index or other encoding is in sight."""


def _open_text(path: Path, options: Options) -> Source:
    """Plain text of numbers is read in blocks; compressed text, or text with text labels, is converted first."""
    dialect, _ = number_dialect(path, options)
    dtype = options.dtype or "float32"
    if suffixes(path)[1] or dialect.text_label:
        return columnar(TextStream(path, dialect, dtype))
    return TextSource(path, dialect, dtype)


def _open_npz(path: Path, options: Options) -> Source:
    if options.missing == "error":
        return columnar(NpzStream(path, options.label, options.dtype))
    return open_treated(NpzTable(path, options.label), options)


def _plain_text(path: Path, options: Options) -> bool:
    return number_dialect(path, options)[1]


def _text_table(path: Path, options: Options) -> RawTable:
    return TextTable(path, detect_dialect(path, options))


def _tabs(options: Options) -> Options:
    return options._replace(delimiter="\t" if options.delimiter is None else options.delimiter)


def _is_arrow(path: Path, head: bytes, whole: bool) -> bool:
    return head[:4] == b"PAR1" or head[:6] == b"ARROW1"


def _is_idx(path: Path, head: bytes, whole: bool) -> bool:
    return "-idx" in path.name or ".idx" in path.name or (head[:2] == b"\0\0" and len(head) > 3 and 1 <= head[3] <= 8)


def _converted(name: str, table: Callable[[Path], RawTable], others: tuple[str, ...], ends: tuple[str, ...]) -> Format:
    """A table whose cells are always converted as the options say."""
    return Format(
        name,
        lambda path, options: open_treated(table(path), options),
        options=_TREATED,
        other_names=others,
        suffixes=ends,
        table=lambda path, options: table(path),
        is_plain=lambda path, options: False,
    )


FORMATS = (
    Format(
        "parquet",
        arrow_tables.open_rows,
        options=_TREATED,
        other_names=("arrow", "feather"),
        suffixes=(".parquet", ".pq", ".arrow", ".feather", ".ipc"),
        recognizes=_is_arrow,
        table=lambda path, options: arrow_tables.ArrowTable(path),
        is_plain=arrow_tables.is_plain,
    ),
    Format(
        "npy",
        npy.open_rows,
        options=_TREATED,
        suffixes=(".npy",),
        table=lambda path, options: npy.NpyTable(path),
        is_plain=npy.is_plain,
    ),
    Format(
        "npz",
        _open_npz,
        options=frozenset({"label", "missing"}),
        suffixes=(".npz",),
        gapped=lambda path, options: npz_table(path, options.label),
    ),
    _converted("excel", ExcelTable, ("xlsx",), (".xlsx", ".xlsm")),
    _converted("jsonl", JsonLinesTable, ("ndjson",), (".jsonl", ".ndjson")),
    Format(
        "idx",
        lambda path, options: columnar(IdxStream(path, idx_labels_beside(path), options.dtype)),
        recognizes=_is_idx,
    ),
    Format(
        "svmlight",
        lambda path, options: columnar(SvmlightStream(path, options.dtype or "float32", width=options.width or 0)),
        options=frozenset({"width"}),
        other_names=("libsvm",),
        suffixes=(".libsvm", ".svm", ".svmlight"),
        recognizes=is_svmlight,
    ),
    Format(
        "jester",
        lambda path, options: columnar(JesterStream(path, options.dtype or "float32")),
        recognizes=is_jester,
    ),
    Format(
        "ratings",
        lambda path, options: open_ratings(table_below(path, options), options),
        options=frozenset({"columns", "delimiter", "header"}),
    ),
    Format(
        "text",
        _open_text,
        options=_TREATED | {"delimiter", "header"},
        other_names=("csv",),
        suffixes=(".csv", ".tsv", ".tab", ".txt", ".data", ".dat"),
        table=_text_table,
        is_plain=_plain_text,
    ),
    Format(
        "tsv",
        lambda path, options: _open_text(path, _tabs(options)),
        options=_TREATED | {"delimiter", "header"},
        table=lambda path, options: _text_table(path, _tabs(options)),
        is_plain=lambda path, options: _plain_text(path, _tabs(options)),
    ),
)
"""The first that recognizes a file reads it; text is what remains."""

BY_NAME = {name: each for each in FORMATS for name in (each.name, *each.other_names)}
BY_SUFFIX = {suffix: each for each in FORMATS for suffix in each.suffixes}
TEXT, RATINGS = BY_NAME["text"], BY_NAME["ratings"]
TABLE = "table"
"""--format table: columns as they are, in whatever format the file has; never a list of ratings."""

NOT_READ = {
    ".xls": "an old Excel file",
    ".ods": "a spreadsheet",
    ".json": "JSON",
    ".xml": "XML",
    ".html": "HTML",
    ".h5": "HDF5",
    ".hdf5": "HDF5",
    ".hdf": "HDF5",
    ".pkl": "pickled Python objects",
    ".pickle": "pickled Python objects",
    ".mat": "a MATLAB file",
    ".sav": "an SPSS file",
    ".dta": "a Stata file",
    ".sas7bdat": "a SAS file",
    ".rds": "an R file",
    ".rdata": "an R file",
    ".orc": "ORC",
    ".avro": "Avro",
    ".db": "a database",
    ".sqlite": "a database",
    ".arff": "ARFF",
    ".pdf": "a PDF",
}


def check_format(name: str | None) -> None:
    """Refuse a name that no format has."""
    known = [TABLE, *BY_NAME]
    if name is not None and name not in known:
        raise UsageError(f"{option('format', name)} is not known{nearest(name, sorted(known))}")


def format_of(path: Path, options: Options) -> Format:
    """The format: as given, by the file's name, or by its beginning."""
    check_format(options.format)
    if options.format in BY_NAME:
        return BY_NAME[options.format]
    found = _by_content(path)
    if found.table is None:
        if options.format == TABLE:
            raise UsageError(f"{path} is a {found.name} file and no table; omit {option('format')}.")
        return found
    if (
        options.format is None
        and (options.ratings or found is TEXT)
        and recognized(found.table(path, options), options.ratings)
    ):
        return RATINGS
    return found


def table_below(path: Path, options: Options) -> RawTable:
    """The table that a file of ratings is."""
    found = _by_content(path)
    if found.table is None:
        raise UsageError(
            f"{path} is a {found.name} file and no table of user, item and rating; omit {option('format')}."
        )
    return found.table(path, options)


def _by_content(path: Path) -> Format:
    """What a file is by its suffix; by its beginning where that says text, or nothing."""
    suffix, _ = suffixes(path)
    found = BY_SUFFIX.get(suffix)
    if found is not None and found is not TEXT:
        return found
    if found is None and suffix in NOT_READ:
        other = "JSON lines (.jsonl)" if suffix == ".json" else "CSV, Parquet or .npy"
        raise DataError(f"{path} is {NOT_READ[suffix]}, which is not read; save it as {other}.")
    head, whole = read_head(path, HEAD_BYTES)
    return next((each for each in FORMATS if each.recognizes and each.recognizes(path, head, whole)), TEXT)


def check_options(found: Format, options: Options, path: Path) -> None:
    """Refuse options that the format would ignore."""
    for name, value in options._asdict().items():
        silent = value == getattr(Options(), name) or name in ("dtype", "format", "sparse", "ratings", "key", "codes")
        if not silent and name not in found.options:
            raise UsageError(f"{path} is read as {found.name}, for which {name}={value!r} has no effect; omit it.")
