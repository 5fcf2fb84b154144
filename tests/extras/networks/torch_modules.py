"""Modules of the tests, at the top of a file as those of users are."""

from __future__ import annotations

import torch
from torch import nn


class Classifier(nn.Module):
    """Two layers for eight columns and three classes."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, hidden), nn.Linear(hidden, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


class Normalized(nn.Module):
    """With batch normalization, whose running means are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.norm(self.first(x))))


class Half(nn.Module):
    """Weights in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 3).to(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x.to(torch.bfloat16)).float()


class Regressor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def smooth_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over the batch, as users write it."""
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)
