"""Features that are none, by their names: identifiers and labels; what to type. Leaves nothing out itself."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.wording import option

LEAST_ROWS = 20
"""Fewer different numbers may differ by chance."""
IDENTIFIER = re.compile(
    r"(?i:u?id|ids|uuid|guid|key|index|row_?(id|number)|rownames)|.*[_\-. ](?i:id|key)|.*[a-z](ID|Id)"
)
"""Names that people give to such columns: id, customer_id, PassengerId, movie.ID."""


LABELS = ("label", "labels", "target", "class")
"""Names of columns that hold the answer, not a measurement."""


def column_advice(features: Array | Sparse, labels: Array | None, names: Sequence[str] | None) -> list[str]:
    """Sentences about such columns; none where nothing is to be said."""
    found = [identifier_advice(features, names)]
    held = [name for name in names or () if name.lower() in LABELS]
    if labels is None and held:
        found.append(
            f"column {held[0]} is trained on like a measurement; {option('label', held[0])} takes it for the labels, "
            f"{option('drop', held[:1])} leaves it out"
        )
    return [text for text in found if text]


def identifier_advice(features: Array | Sparse, names: Sequence[str] | None) -> str:
    """A sentence about columns named like an identifier that have another value in every row; empty without any."""
    if names is None or isinstance(features, Sparse) or len(features) < LEAST_ROWS:
        return ""
    columns = [k for k, name in enumerate(names) if IDENTIFIER.fullmatch(name)]
    found = [names[k] for k in columns if len(np.unique(features[:, k])) == len(features)]
    if not found:
        return ""
    listed = f"column{'s' if len(found) > 1 else ''} {', '.join(found)}"
    return (
        f"{listed}: another number in every row, as an identifier has, and trained on like a measurement; "
        f"{option('drop', found)} prevents that"
    )
