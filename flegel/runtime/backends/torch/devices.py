"""Devices of torch by their names in a job: cpu, torch:cpu, cuda, cuda:1. Imports torch."""

from __future__ import annotations

import torch

from flegel.errors import UsageError
from flegel.wording import counted, option


def torch_device(name: str) -> torch.device:
    """The device; a sentence where this host does not have it."""
    kind, _, rest = name.partition(":")
    if kind == "cpu" or (kind == "torch" and rest in ("", "cpu")):
        return torch.device("cpu")
    try:
        device = torch.device(rest if kind == "torch" else name)
    except RuntimeError:
        raise UsageError(f"torch knows no device {name!r}; write for instance cuda:0.") from None
    if device.type == "cuda":
        _check_cuda(name, device.index or 0)
        return torch.device("cuda", device.index or 0)
    return device


def _check_cuda(name: str, index: int) -> None:
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        raise UsageError(
            f"The device {name} was asked for, but CUDA is not available on this host (torch {torch.__version__}, "
            f"{built}); omit {option('device')} and {option('gpus')} to use processors."
        )
    count = torch.cuda.device_count()
    if index >= count:
        raise UsageError(
            f"The device {name} was asked for, but this host has {counted(count, 'GPU')}: "
            f"{'only cuda:0' if count == 1 else f'cuda:0 to cuda:{count - 1}'}."
        )
