"""The networks of the papers as modules: small convolutional ones, LeNet, VGG-11, and a plain perceptron."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
from torch import nn


class ConvolutionalModule(nn.Module):
    """Two convolutions of 6 and 12 kernels of 5×5, each with pooling, and one linear layer (FSP paper)."""

    def __init__(self, channels: int, side: int, classes: int) -> None:
        super().__init__()
        left = ((side - 4) // 2 - 4) // 2
        self.first, self.second = nn.Conv2d(channels, 6, 5), nn.Conv2d(6, 12, 5)
        self.pool = nn.MaxPool2d(2)
        self.out = nn.Linear(12 * left * left, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.first(x)))
        x = self.pool(torch.relu(self.second(x)))
        return cast("torch.Tensor", self.out(x.flatten(1)))


class LeNetModule(nn.Module):
    """LeNet-5 (LeCun et al., 1998) with rectifiers and max pooling."""

    def __init__(self, channels: int, side: int, classes: int) -> None:
        super().__init__()
        left = (side // 2 - 4) // 2
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(16 * left * left, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast("torch.Tensor", self.classifier(self.features(x)))


class VGGModule(nn.Module):
    """VGG-11 (Simonyan and Zisserman, 2015) for small images: eight convolutions with batch normalization."""

    def __init__(self, channels: int, side: int, classes: int, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        have, size = channels, side
        for times, pooled in (
            (1, True),
            (2, True),
            (4, False),
            (4, True),
            (8, False),
            (8, True),
            (8, False),
            (8, True),
        ):
            layers += [nn.Conv2d(have, times * width, 3, padding=1), nn.BatchNorm2d(times * width), nn.ReLU()]
            have = times * width
            if pooled and size >= 2:
                layers.append(nn.MaxPool2d(2))
                size //= 2
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(have * size * size, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast("torch.Tensor", self.classifier(self.features(x)))


class PerceptronModule(nn.Module):
    """Fully connected layers with rectifiers between them."""

    def __init__(self, columns: int, classes: int, hidden: list[int]) -> None:
        super().__init__()
        sizes = [columns, *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast("torch.Tensor", self.layers(x))
