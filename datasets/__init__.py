"""Data sets by name and by path, installed as `flegel.datasets`.

`open_data` opens, `Dataset` describes, `read_share` is what a worker calls. Never imports the engine.
"""

from flegel.datasets.base import Rows
from flegel.datasets.dataset import Dataset, read_rows, read_share
from flegel.datasets.opening import open_data
from flegel.datasets.partition import plan_rows
from flegel.datasets.scale import Moments, Scaling

__all__ = ["Dataset", "Moments", "Rows", "Scaling", "open_data", "plan_rows", "read_rows", "read_share"]
