"""Which files are plain tables of numbers, which have readers of their own; and text files as tables.

Looks at the beginning of a text file and at the schema of a binary one; never reads a whole file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flegel.datasets.formats.arrow_tables import is_numeric, open_blocks
from flegel.datasets.formats.compressed import read_head, suffixes
from flegel.datasets.formats.text_dialect import HEAD_BYTES, find_column, split
from flegel.datasets.options import Options
from flegel.datasets.tables import cells
from flegel.datasets.tables.text_table import CellDialect, TextTable, detect

CHECKED_LINES = 200
"""So many lines at the beginning of a text file must be plain numbers; all of a file of up to 256 kB."""


def text_table(path: Path, options: Options) -> TextTable:
    """A text file as a table whose columns are still to be surveyed."""
    head, whole = read_head(path, HEAD_BYTES)
    return TextTable(path, detect(head, whole, str(path), suffixes(path)[0], options.delimiter, options.header))


def plain_npy(path: Path, options: Options) -> bool:
    return options.columns is None and options.drop is None


def plain_arrow(path: Path, options: Options) -> bool:
    blocks = open_blocks(path)
    names = list(blocks.schema.names)
    if len(set(names)) != len(names):
        return False
    marked = (blocks.schema.pandas_metadata or {}).get("index_columns", [])
    if any(name in names for name in marked if isinstance(name, str)) and options.columns is None:
        return False
    label = None if options.label is None else find_column(options.label, names, len(names), str(path), "label column")
    wanted = (
        names
        if options.columns is None
        else [names[find_column(c, names, len(names), str(path), "column")] for c in options.columns]
    )
    dropped = {names[find_column(c, names, len(names), str(path), "column")] for c in options.drop or ()}
    features = [n for n in wanted if n not in dropped and (label is None or n != names[label])]
    if not all(is_numeric(blocks.schema.field(name).type) for name in features):
        return False
    return not blocks.gaps([*features, *([] if label is None else [names[label]])])


def plain_text(path: Path, options: Options) -> bool:
    head, whole = read_head(path, HEAD_BYTES)
    if b"\r" in head.replace(b"\r\n", b""):
        return False
    found = detect(head, whole, str(path), suffixes(path)[0], options.delimiter, options.header)
    if found.encoding not in ("utf-8", "utf-8-sig") or found.indexed or len(found.delimiter) > 1:
        return False
    text = head.decode("utf-8-sig", "replace").rstrip()
    lines = text.split("\n") if whole else text.split("\n", CHECKED_LINES + 1)[:-1]
    lines = [line.rstrip("\r") for line in lines[found.header :]]
    names = found.names if found.header else None
    label = None if options.label is None else find_column(options.label, names, found.width, str(path), "label column")
    left_out = {find_column(c, names, found.width, str(path), "column") for c in options.drop or ()}
    chosen = list(range(found.width))
    if options.columns is not None:
        chosen = [find_column(c, names, found.width, str(path), "column") for c in options.columns]
    features = [k for k in chosen if k != label and k not in left_out]
    return all(_plain_line(line, found, features, label) for line in lines)


def _plain_line(line: str, found: CellDialect, features: Sequence[int], label: int | None) -> bool:
    row = split(line, found.delimiter)
    if len(row) != found.width or (label is not None and cells.is_missing(row[label])):
        return False
    return all(cells.PLAIN.fullmatch(row[k]) for k in features)
