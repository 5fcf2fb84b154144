"""Data sets by name and by path, installed as `flegel.datasets`.

`open_data` opens, `Dataset` describes, `read_shard` is what a worker calls. Never imports the engine.
"""

from flegel.datasets.dataset import Dataset, read_rows, read_shard
from flegel.datasets.partition import plan_rows
from flegel.datasets.resolve import open_data
from flegel.datasets.scale import Moments, Scaling
from flegel.datasets.source import Rows

__all__ = ["Dataset", "Moments", "Rows", "Scaling", "open_data", "plan_rows", "read_rows", "read_shard"]
