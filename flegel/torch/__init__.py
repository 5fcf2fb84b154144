"""Neural networks by PyTorch. Names are imported when they are used, because torch takes seconds to import."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "RankExcluded": "flegel.torch.flexible.agent",
    "FlexibleDDP": "flegel.torch.flexible.ddp",
    "FlexibleSampler": "flegel.torch.flexible.sampler",
    "LocalStepsDDP": "flegel.torch.flexible.local_ddp",
    "NeuralNetwork": "flegel.torch.network",
    "Site": "flegel.torch.flexible.site",
    "TrainingEnded": "flegel.torch.flexible.agent",
    "join": "flegel.torch.flexible.joining",
    "load": "flegel.torch.weight_files",
    "model": "flegel.torch.adapter",
    "save": "flegel.torch.weight_files",
    "watch": "flegel.torch.watching",
}
"""Name to the module that defines it."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
