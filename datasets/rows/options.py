"""Options of `open_data` that tell how a file is read. Plain values; never reads anything."""

from __future__ import annotations

from typing import NamedTuple

from flegel.errors import UsageError, nearest
from flegel.wording import option


class Options(NamedTuple):
    """None means that the value is detected from the file."""

    label: str | int | None = None
    dtype: str | None = None
    columns: list[str | int] | None = None
    delimiter: str | None = None
    header: bool | None = None
    format: str | None = None
    width: int | None = None
    """Least number of columns of sparse rows, for files that do not use the last columns."""
    drop: list[str | int] | None = None
    categorical: str = "auto"
    missing: str = "error"
    sparse: bool = True
    """Rows with many one-hot columns may be sparse."""
    decimal: str | None = None
    ratings: bool = False
    """Three or four columns may be (user, item, rating[, time]): the algorithm factorizes ratings."""
    key: str | int | None = None
    """Column whose values say which rows stay together; its texts become numbers whatever `categorical` says.
    By name, or by number among the columns of features."""

    categories: list[str | int] | None = None
    """Columns that hold categories, whatever they look like."""
    codes: bool = False
    """Text becomes codes where `categorical` is auto: the algorithm knows categories."""

    @property
    def treats(self) -> bool:
        """Whether something besides plain reading is asked for, so that the columns must be surveyed."""
        text, gaps = self.categorical != "auto" or bool(self.categories), self.missing != "error"
        return text or gaps or self.decimal is not None


CATEGORICAL = ("auto", "onehot", "ordinal", "drop")
MISSING = ("error", "drop", "mean", "median", "indicator", "keep")


def check_choice(value: str, known: tuple[str, ...], name: str) -> str:
    if value not in known:
        raise UsageError(f"{option(name, value)} is not known{nearest(value, list(known))}")
    return value
