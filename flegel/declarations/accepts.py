"""Which rows a class takes: sparse, weighted, with labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flegel.core.pytree import Array
from flegel.declarations.field_types import TypedFields


@dataclass(frozen=True, kw_only=True)
class Accepts(TypedFields):
    """`accepts = Accepts(sparse=True, labels="required")`. Without it: dense rows without weights, with or without
    labels."""

    sparse: bool = False
    """Hooks and kernel take sparse rows."""
    weighted: bool = False
    """Hooks and kernel count a point `dataPoint.weight` times. Not needed with `contribution` or `hidden`: there the
    engine multiplies."""
    labels: Literal["optional", "required", "classes", "ignored"] = "optional"
    """`required`: every point needs one. `classes`: the same, and labels name classes: `Sample.classes` then has those
    of all rows, also of rows that are not in the sample. `ignored`: no hook looks at them, and workers do not keep
    them. Labels that the data have are passed in all other cases."""
    gaps: bool = False
    """Hooks know the mark of a gap (`flegel.core.gaps.GAP`): rows may have gaps that are kept (`--missing keep`)."""
    categories: str = ""
    """Name of the hyper-parameter that lists the columns of categories, for hooks that know codes 0, 1, 2, …: text then
    becomes codes by default, and `Sample.categories` says which columns hold such."""
    targets: int = 0
    """The last so many columns are what the model predicts: `predict` and its siblings see rows without them, whether
    the table has them or not; `evaluate` and `score` see all columns."""
    small_sample: bool = False
    """`starts.fewest_sample_rows` rows are enough for the sample that `validate` and `initParameter` see."""
    ratings: bool = False
    """Three or four columns that look like (user, item, rating[, time]) are a list of ratings, of which sparse rows
    are made."""

    @property
    def supervised(self) -> bool:
        """Every point needs a label."""
        return self.labels in ("required", "classes")

    def kept_labels(self, labels: Array | None) -> Array | None:
        """The labels that workers keep beside the rows; without any, `dataPoint.label` is 0."""
        return None if self.labels == "ignored" else labels


class RowHooks:
    """Methods that a class may define; otherwise these answer."""

    def unit_rows(self) -> bool:
        """Only the directions of rows count: the engine divides each by its Euclidean length before any hook of the
        training or a kernel sees it, in the memory that the workers have for their rows. Rows of zeros stay. Hooks that
        answer for rows of a user (`predict`, `evaluate`, …) get these as they are."""
        return False
