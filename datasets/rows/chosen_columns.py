"""Columns by their names or numbers: one of them, and those that options choose as label and features."""

from __future__ import annotations

from collections.abc import Sequence

from flegel.datasets.rows.options import Options
from flegel.errors import DataError, UsageError, nearest
from flegel.wording import option


def find_column(wanted: str | int, names: Sequence[str] | None, width: int, origin: str, what: str) -> int:
    """A column by name, or by number from 0 (from the end where negative)."""
    if isinstance(wanted, str):
        if names and wanted in names:
            return names.index(wanted)
        name = wanted
        try:
            wanted = int(name)
        except ValueError:
            if not names:
                raise DataError(
                    f"{origin} has no column names, so give the {what} as a number from 0 to {width - 1}."
                ) from None
            raise DataError(f"{origin} has no column {name!r}{nearest(name, list(names))}") from None
    if not -width <= wanted < width:
        raise DataError(f"{origin} has {width} columns, so there is no {what} {wanted} (they count from 0).")
    return wanted % width


def chosen_columns(
    names: Sequence[str] | None, width: int, options: Options, origin: str, indexes: frozenset[int] = frozenset()
) -> tuple[int | None, list[int]]:
    """The label and the features of a table, by position. `indexes` are features only where they are chosen."""

    def place(wanted: str | int, what: str = "column") -> int:
        return find_column(wanted, names, width, origin, what)

    label = None if options.label is None else place(options.label, "label column")
    features = [k for k in range(width) if k not in indexes] if options.columns is None else []
    features += [place(wanted) for wanted in options.columns or ()]
    left_out = {place(wanted) for wanted in options.drop or ()}
    if label in left_out:
        raise UsageError(f"{option('drop')} leaves out the label column {options.label!r}; omit one of both.")
    features = [k for k in features if k != label and k not in left_out]
    beside = _key_beside(options, names, label)
    if beside is not None and beside not in features:
        features.append(beside)  # `keys_from_column` takes it away again
    if not set(features) - {beside}:
        besides = "" if label is None else " besides the label"
        raise DataError(f"{origin} has no column of features{besides}; choose some with {option('columns')}.")
    return label, features


def _key_beside(options: Options, names: Sequence[str] | None, label: int | None) -> int | None:
    """The column of keys, where it is given by name: it is no feature, so it need not be chosen, and may be dropped."""
    if options.key is None or not names or options.key not in names:
        return None
    place = list(names).index(str(options.key))
    if place == label:
        raise UsageError(f"{option('keep_together', options.key)} names the label column; choose another column.")
    return place
