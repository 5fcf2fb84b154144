"""`--track KIND:PLACE`: a callback from words. Checks the words and whether the library is there; writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flegel.callbacks.callback import Callback
from flegel.callbacks.csv_writer import CsvWriter
from flegel.callbacks.mlflow import MlflowWriter
from flegel.callbacks.tensorboard import TensorBoardWriter
from flegel.callbacks.wandb import WandbWriter
from flegel.errors import UsageError, nearest

TRACKERS: dict[str, Callable[[str], Callback]] = {
    "csv": CsvWriter,
    "mlflow": MlflowWriter,
    "tensorboard": TensorBoardWriter,
    "wandb": WandbWriter,
}


def trackers(words: Iterable[str]) -> list[Callback]:
    """One callback for each, such as `mlflow:runs.db`, `tensorboard:logs`, `csv:trace.csv` or `wandb:project`."""
    return [_tracker(word) for word in words]


def _tracker(word: str) -> Callback:
    kind, _, place = word.partition(":")
    if kind not in TRACKERS:
        raise UsageError(f"--track {word}: there is no tracker {kind!r}{nearest(kind, list(TRACKERS))}")
    if not place:
        raise UsageError(
            f"--track {word} says no place; write --track {kind}:{'PROJECT' if kind == 'wandb' else 'PATH'}."
        )
    return TRACKERS[kind](place)
