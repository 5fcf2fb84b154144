"""Data sets by name and by path, installed as `flegel.datasets`."""

from flegel.datasets.base import Rows
from flegel.datasets.dataset import Dataset, read_share
from flegel.datasets.opening import open_data
from flegel.datasets.partition import plan_rows

__all__ = ["Dataset", "Rows", "open_data", "plan_rows", "read_share"]
