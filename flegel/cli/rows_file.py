"""Files with a line for each row, such as predictions. Reads nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from flegel.errors import StorageError, UsageError

ROWS_FILE_SUFFIXES = (".npy", ".csv", ".parquet")


def check_rows_file(path: Path, option: str) -> None:
    """Raise `UsageError` where a table of predictions could not be written."""
    from flegel.runtime.job.result_store import check_file

    if path.suffix not in ROWS_FILE_SUFFIXES:
        raise UsageError(f"{option} {path} should end in .npy, .csv or .parquet.")
    check_file(path, option)


def write_rows(found: Any, names: list[str], out: Path) -> None:
    """A table with a column for each name; .npy holds the array alone, and so does a .csv file of one column. A file of
    that name holds all rows or is as it was: they are written beside it first."""
    out = out.resolve()
    whole = (out.is_file() or not out.exists()) and os.access(out.parent, os.W_OK)
    beside = out.with_name(f".{out.name}.{os.getpid()}{out.suffix}") if whole else out
    try:
        _write(found, names, beside)
        if beside != out:
            beside.replace(out)
    except OSError as error:
        if beside != out:
            beside.unlink(missing_ok=True)
        raise StorageError(f"Could not write {out}: {error.strerror or error}.") from None


def _write(found: Any, names: list[str], out: Path) -> None:
    import numpy as np

    if out.suffix == ".npy":
        np.save(out, found, allow_pickle=False)
        return
    import pandas

    frame = pandas.DataFrame(found.reshape(len(found), -1), columns=names)
    if out.suffix == ".parquet":
        frame.to_parquet(out, index=False)
    else:
        frame.to_csv(out, index=False, header=len(names) > 1, float_format="%.10g")
