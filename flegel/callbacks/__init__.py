"""Callbacks of a job: early stopping, and writers for experiment trackers. See docs/callbacks.md."""

from flegel.callbacks.callback import Callback
from flegel.callbacks.csv_writer import CsvWriter
from flegel.callbacks.early_stopping import EarlyStopping
from flegel.callbacks.mlflow import MlflowWriter
from flegel.callbacks.tensorboard import TensorBoardWriter
from flegel.callbacks.wandb import WandbWriter

__all__ = ["Callback", "CsvWriter", "EarlyStopping", "MlflowWriter", "TensorBoardWriter", "WandbWriter"]
