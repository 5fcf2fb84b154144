"Settings of tables: which columns are categories, when rows are sparse, what is a list of ratings (datasets/tables)."

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class TableSettings:
    """They hold where a table is opened; workers get its treatment."""

    sparse_above_features: Annotated[
        int, Setting("features", "Up to so many, rows stay dense: they take less than 1 kB.", 0)
    ] = 256
    sparse_below_density: Annotated[
        float, Setting("of the entries", "That are not zero: rows with more stay dense.", 0, 1)
    ] = 0.25
    names_above_rows: Annotated[
        int, Setting("rows", "In tables with fewer no text column is taken for a name and left out.", 1)
    ] = 20
    most_texts: Annotated[int, Setting("texts", "A column with more different ones is no category.", 1, 4294967296)] = (
        1_000_000
    )
    most_remembered_numbers: Annotated[
        int,
        Setting(
            "numbers",
            "Different ones of a column that are remembered as text, in case that it turns out to be a category.",
            1,
            4294967296,
        ),
    ] = 20_000
    most_rating_levels: Annotated[
        int,
        Setting(
            "ratings",
            "Different ones in columns without names, at most: 0 to 100 %; a column of measurements has more.",
            1,
        ),
    ] = 101
    least_distinct_pairs: Annotated[
        float,
        Setting(
            "of the lines",
            "That name a pair of their own in a list of ratings: people seldom rate a thing twice, but colours and "
            "counts repeat.",
            0,
            1,
        ),
    ] = 0.95
    most_distinct_ids: Annotated[
        float,
        Setting(
            "of the lines",
            "Users or items in a list of ratings, at most: ids come again, and row numbers do not.",
            0,
            1,
        ),
    ] = 0.9
