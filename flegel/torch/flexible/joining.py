"""`flegel.torch.join`: where ranks meet that heal. Takes the place of `dist.init_process_group`."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from flegel.errors import UsageError

LEAST_SILENCE_SECONDS = 0.5  # a process that computes on a loaded machine is silent for so long


@dataclass(frozen=True)
class Meeting:
    """How this process meets others."""

    address: str
    ranks: int
    run: str
    silence: float
    backend: str = "gloo"


BACKENDS = ("gloo", "nccl")
_current: Meeting | None = None


def join(address: str, ranks: int, run: str = "training", silence: float = 2.0, backend: str = "gloo") -> None:
    """Ranks meet at the store with this address (`tcp://HOST:PORT`, served by `flegel ddp-store`), and heal.

    `ranks`: processes with which the training begins; others may join later. `run`: a name, other than that of earlier
    trainings at the same store. `silence`: seconds without a sign of life after which the others go on without a rank.
    `backend`: "nccl" sums gradients that lie on GPUs by NCCL, with a GPU of its own for each rank; all ranks give the
    same. PyTorch's default process group has one rank then: use `model.rank` and `model.ranks`."""
    global _current
    if ranks < 1:
        raise UsageError(f"ranks={ranks}: give the number of processes with which the training begins.")
    if backend not in BACKENDS:
        raise UsageError(f"backend={backend!r} is not known; choose one of {', '.join(BACKENDS)}.")
    if backend == "nccl" and not dist.is_nccl_available():
        raise UsageError("backend='nccl': this PyTorch was built without NCCL; omit backend to use gloo.")
    if silence < LEAST_SILENCE_SECONDS:
        raise UsageError(f"silence={silence}: give at least {LEAST_SILENCE_SECONDS} s.")
    if not address.startswith("tcp://") or not address.rpartition(":")[2].isdigit():
        raise UsageError(f"{address!r} is no address of a store: give tcp://HOST:PORT, where `flegel ddp-store` runs.")
    if dist.is_initialized() and dist.get_world_size() > 1:
        raise UsageError("Leave out dist.init_process_group: its group ends with its first lost rank.")
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    _current = Meeting(address, ranks, run, silence, backend)


def current() -> Meeting | None:
    """How ranks of this process meet, if they heal."""
    return _current
