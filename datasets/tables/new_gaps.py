"""What gaps become in new rows of a model, where the model or the caller says it: `--missing` of predict and evaluate.

Values of training are used where the training has them (`Treatment.for_new_rows`); otherwise those of the rows that
are given, and a line says so.
Never reads a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.errors import DataError
from flegel.wording import counted, option

REFUSED = ("error", "drop")
"""Policies under which no gap becomes a value, whatever the model does with gaps."""
BY_TRAINING = {"mean": ("mean", "indicator"), "median": ("median",)}
"""Policies of training that leave the values which a policy fills in."""


def fill_in(rows: Array | Sparse, missing: str, names: Sequence[str] | None, say: Callable[[str], None]) -> None:
    """Replace each NaN of features by the mean or median of the other values of its column, in place; of sparse rows an
    entry that is not stored is 0."""
    for place, values, put in _columns_with_gaps(rows):
        present = values[~np.isnan(values)]
        name = repr(names[place]) if names else str(place)
        count = len(values) - len(present)
        if not len(present):
            raise DataError(
                f"Column {name} has no value in these rows, and the model was trained without gaps there; give rows "
                "that have some."
            )
        put(float(np.median(present) if missing == "median" else present.mean(dtype=np.float64)))
        gaps = f"{counted(count, 'gap')} of column {name} {'gets' if count == 1 else 'get'}"
        say(f"{gaps} the {missing} of these rows: the model has none from its training.")


def _columns_with_gaps(rows: Array | Sparse) -> Iterator[tuple[int, Array, Callable[[float], None]]]:
    """Each column with a NaN: its place, its values, and what writes a value into its gaps."""
    if isinstance(rows, Sparse):
        for place in np.unique(rows.indices[np.isnan(rows.values)]).tolist():
            own = np.flatnonzero(rows.indices == place)
            stored = rows.values[own]
            values = np.append(stored, np.zeros(len(rows.indptr) - 1 - len(own)))
            yield place, values, _writer(rows.values, (own[np.isnan(stored)],))
        return
    for place in np.flatnonzero(np.isnan(rows).any(axis=0)).tolist():
        yield place, rows[:, place], _writer(rows, (np.isnan(rows[:, place]), place))


def _writer(target: Array, where: tuple[Array | int, ...]) -> Callable[[float], None]:
    def put(value: float) -> None:
        target[where] = value

    return put


def told_left_out(complete: Array, say: Callable[[str], None]) -> None:
    """Says how many rows are left out; all of them are an error."""
    left = int((~complete).sum())
    if left and left == len(complete):
        raise DataError(f"Each of the {left:,} rows has a gap, so {option('missing', 'drop')} leaves none.")
    if left:
        have = "row has a gap and is" if left == 1 else "rows have gaps and are"
        say(f"{left:,} of {len(complete):,} {have} left out ({option('missing', 'drop')}).")
