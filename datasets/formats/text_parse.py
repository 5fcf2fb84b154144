"""Parses whole lines of text to columns of numbers, with PyArrow where it is installed, else with pandas.

Lines that a parser refuses are diagnosed one by one. Never opens a file.
"""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.formats.arrow_loans import Loan
from flegel.datasets.formats.text_dialect import Dialect, diagnose


@functools.cache
def import_pyarrow_csv() -> Any:
    """PyArrow with its CSV reader, or None; imported when the first text is parsed."""
    try:
        import pyarrow
        import pyarrow.csv
    except ImportError:
        return None
    return pyarrow


def parse(
    text: bytes | memoryview,
    dialect: Dialect,
    dtype: np.dtype[Any],
    lines: int | None,
    first_line: int,
    origin: str,
) -> tuple[list[Array], Array | None]:
    """Columns and labels of whole lines; `first_line` is the number of the first one in the file."""
    try:
        columns, labels = _parse(text, dialect, dtype)
    except (ValueError, OverflowError, UnicodeDecodeError, KeyError) as error:
        raise diagnose(bytes(text), first_line, dialect, origin, error) from None
    if lines is not None and len(columns[0]) != lines:
        raise diagnose(bytes(text), first_line, dialect, origin, f"{lines} lines gave {len(columns[0])} rows")
    return columns, labels


def _parse(text: bytes | memoryview, dialect: Dialect, dtype: np.dtype[Any]) -> tuple[list[Array], Array | None]:
    """The wanted columns as numbers, by pyarrow where it is installed: it is several times as fast as pandas."""
    wanted = dialect.features if dialect.label is None else [*dialect.features, dialect.label]
    pyarrow = import_pyarrow_csv()
    if pyarrow is None or dialect.delimiter == " ":
        return _parse_pandas(text, dialect, dtype, wanted)
    number = pyarrow.float32() if dtype == np.float32 else pyarrow.float64()
    kinds = {str(i): number for i in dialect.features}
    if dialect.label is not None:
        kinds[str(dialect.label)] = pyarrow.string() if dialect.text_label else pyarrow.float64()
    loan = Loan()
    try:
        table = pyarrow.csv.read_csv(
            pyarrow.BufferReader(loan.block(text)),
            pyarrow.csv.ReadOptions(
                use_threads=False, block_size=1 << 20, column_names=[str(i) for i in range(dialect.width)]
            ),
            pyarrow.csv.ParseOptions(delimiter=dialect.delimiter, ignore_empty_lines=dialect.width > 1),
            pyarrow.csv.ConvertOptions(
                column_types=kinds, include_columns=[str(i) for i in wanted], null_values=[], check_utf8=True
            ),
        )
    finally:
        loan.wait()
    columns = [table.column(k).to_numpy() for k in range(len(dialect.features))]
    labels = None if dialect.label is None else table.column(len(dialect.features)).to_numpy()
    return columns, labels


NOT_A_NUMBER = ["nan", "NaN", "NAN", "-nan", "+nan"]
"""Read as NaN by both parsers, so that the check for finite numbers names row and column."""


def _parse_pandas(
    text: bytes | memoryview, dialect: Dialect, dtype: np.dtype[Any], wanted: list[int]
) -> tuple[list[Array], Array | None]:
    """The same with pandas, also for blanks as separators. Its reader ignores surplus fields, so they are counted
    here."""
    import pandas

    kinds: dict[int, Any] = dict.fromkeys(dialect.features, dtype)
    if dialect.label is not None:
        kinds[dialect.label] = str if dialect.text_label else np.float64
    missing: Any = {i: NOT_A_NUMBER for i, kind in kinds.items() if kind is not str}  # the stubs allow only str keys
    frame = pandas.read_csv(
        io.BytesIO(bytes(text)),
        sep=r"\s+" if dialect.delimiter == " " else dialect.delimiter,
        header=None,
        names=list(range(dialect.width)),
        index_col=False,
        usecols=wanted,
        dtype=kinds,
        keep_default_na=False,
        na_values=missing,
        engine="c",
        skip_blank_lines=True,
        on_bad_lines="error",
    )
    cuts = bytes(text).count(dialect.delimiter.encode())
    if dialect.delimiter != " " and b'"' not in bytes(text) and cuts != len(frame) * (dialect.width - 1):
        raise ValueError(f"not every row has {dialect.width} fields")  # pandas drops surplus fields silently
    columns = [frame[i].to_numpy() for i in dialect.features]
    labels = None if dialect.label is None else frame[dialect.label].to_numpy()
    return columns, labels
