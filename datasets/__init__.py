"""Data sets by name and by path, installed as `flegel.datasets`.

`open_data` opens a set, `Dataset` describes it, `read_shard` reads the rows of one worker. Importing the package
registers every source and stream (see rows/descriptions.py). Never imports the engine.
"""

from flegel.datasets.dataset import Dataset, read_rows, read_shard, stream_shard
from flegel.datasets.held_out import hold_out
from flegel.datasets.resolve import known_labels, open_data, open_for_prediction, open_table
from flegel.datasets.rows.partition import plan_rows
from flegel.datasets.rows.scale import ColumnMoments, Scaling
from flegel.datasets.rows.source import Rows
from flegel.datasets.tables.treatment import Treatment

__all__ = [
    "ColumnMoments",
    "Dataset",
    "Rows",
    "Scaling",
    "Treatment",
    "hold_out",
    "known_labels",
    "open_data",
    "open_for_prediction",
    "open_table",
    "plan_rows",
    "read_rows",
    "read_shard",
    "stream_shard",
]
