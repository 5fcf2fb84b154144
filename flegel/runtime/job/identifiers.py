"""Columns that number the rows instead of measuring something: what to type to leave them out. Drops nothing itself."""

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
