"""Which rank keeps a barrier from ending, by the signs of life of all ranks; and where a rank stands meanwhile. Pure.

A rank that ended explains all that others do afterwards, so it is named before one that stops because of it, that
before one that is silent, and a rank that is alive only after the timeout. Never reads a clock, a store or a socket.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

from flegel.configuration.liveness import LivenessSettings

ENDED, STOPPED = "ended", "stopped"
"""In place of the barrier at which a rank waits: its process has ended, or it stops because another one has."""
OWN = str(Path(__file__).parents[2]) + os.sep
LIBRARIES = tuple(
    str(folder) + os.sep
    for folder in (
        Path(torch.__file__).parent,
        Path(__file__).parents[2],
        *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")),
    )
)
"""Folders whose files are not the script's."""
COLLECTIVES = str(Path("torch", "distributed", "distributed_c10d.py"))


class Sign(NamedTuple):
    """What one rank says of itself, every second."""

    beats: int = 0
    barrier: str = "-1"
    """At which it waits; "-1": at none; or `ENDED`, `STOPPED`."""
    module: int = -1
    """At whose barrier it waits; -1: at none."""
    text: str = ""
    """Why it ended or stops; otherwise where it stands in its script."""

    def to_text(self) -> str:
        return f"{self.beats} {self.barrier} {self.module} {self.text}"

    @classmethod
    def from_text(cls, text: bytes) -> Sign:
        beats, barrier, module, *rest = text.decode().split(maxsplit=3)
        return cls(int(beats), barrier, int(module), "".join(rest))

    def has_arrived(self, barrier: int) -> bool:
        return self.barrier not in (ENDED, STOPPED) and int(self.barrier) >= barrier


class Wait(NamedTuple):
    """Of the rank that looks."""

    barrier: int
    seconds: float
    """Since it arrived there."""
    module: int
    timeout: float


def reason_of_wait(
    wait: Wait, signs: Mapping[int, Sign], silence: Mapping[int, float], times: LivenessSettings
) -> str | None:
    """Why the barrier cannot end; None while it may. `signs`: of all other ranks; `silence`: seconds since each gave
    one that was new. One that had arrived may stop as well, in the middle of the exchange."""
    for rank, sign in signs.items():
        if sign.barrier == ENDED:
            return (
                f"rank {rank} has failed ({sign.text})"
                if sign.text
                else f"rank {rank} has ended its training: leave a loop on all ranks at the same barrier, by "
                "model.should_stop(…) or model.barriers"
            )
    for sign in signs.values():
        if sign.barrier == STOPPED:
            return sign.text
    factors = {rank: times.arrived_rank_factor if s.has_arrived(wait.barrier) else 1.0 for rank, s in signs.items()}
    stopped = [rank for rank, factor in factors.items() if silence[rank] > factor * times.rank_silence_seconds]
    if stopped:
        return f"rank {_names(stopped)} gave no sign of life for {min(silence[rank] for rank in stopped):.0f} s"
    elsewhere = [rank for rank, sign in signs.items() if sign.module not in (-1, wait.module)]
    if elsewhere and wait.seconds > 2 * times.rank_silence_seconds:
        return (
            f"rank {_names(elsewhere)} waits at a barrier of another model: models that are trained in one loop must "
            "be trained in the same iterations on all ranks, so choose them by model.barriers, not by a count of "
            "batches"
        )
    if wait.seconds <= wait.timeout:
        return None
    late = {rank: sign for rank, sign in signs.items() if not sign.has_arrived(wait.barrier)}
    if not late:
        return f"all ranks arrived, but it did not end within {wait.timeout:.0f} s"
    said = f"rank {_names(list(late))} is alive, but did not arrive within {wait.timeout:.0f} s"
    places = [sign.text if len(late) == 1 else f"rank {rank}: {sign.text}" for rank, sign in late.items() if sign.text]
    return f"{said} ({'; '.join(places)})" if places else said


def _names(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def place_in_script(innermost: FrameType | None) -> str:
    """Where a thread stands: the innermost line that belongs to no library, and a collective of PyTorch that it calls.
    A collective in the script is called by all ranks at the same barrier, or they wait for each other for ever."""
    frame, collective, own = innermost, "", ""
    while frame is not None and frame.f_code.co_filename.startswith(LIBRARIES):
        if frame.f_code.co_filename.endswith(COLLECTIVES):
            collective = frame.f_code.co_name
        elif collective and not own and frame.f_code.co_filename.startswith(OWN):
            own = frame.f_code.co_name
        frame = frame.f_back
    if frame is None:
        return ""
    place = f"it stands at {Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"
    if own:
        return f"{place}, in the messages of {own}"
    if not collective:
        return place
    return (
        f"{place}, in torch.distributed.{collective}: ranks make different numbers of batches, so call collectives on "
        "all ranks at the same barrier, where model.stepped is true, chosen by model.barriers"
    )
