"""Networks of the sizes of AlexNet, ResNet-50 and MobileNet, for images of 32×32 in three colours.

The layers are those of the papers; `part` divides the number of weights by making every layer narrower. Needs PyTorch
when one is built. Weights are random and images made up: what is measured is how long rounds of such a θ take.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from flegel.torch.builtin import ImageNetwork

ALEXNET = ((64, 2), (192, 2), (384, 1), (256, 1), (256, 2))
"""Channels of the convolutions, and by how much the image shrinks after each."""
ALEXNET_HIDDEN, ALEXNET_GRID = 4096, 6
RESNET = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Channels inside the bottlenecks of each stage, how many there are, and the stride of the first."""
MOBILENET = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))


class SizedNetwork(ImageNetwork):
    """One of three well-known networks, or a narrower one of the same form."""

    network: str = "MobileNet"
    part: Annotated[float, Meta(ge=1, description="the number of weights is divided by about this")] = 1.0

    def build(self) -> Any:
        image = self._image()
        make = {"AlexNet": alexnet, "ResNet50": resnet50, "MobileNet": mobilenet}[self.network]
        return make(image["channels"], image["classes"], self.part**-0.5)


def _wide(channels: int, width: float) -> int:
    return max(4, round(channels * width))


def alexnet(channels: int, classes: int, width: float) -> Any:
    """57 million weights: five convolutions and three full layers."""
    from torch import nn

    layers: list[Any] = []
    for out, shrink in ALEXNET:
        layers += [nn.Conv2d(channels, _wide(out, width), 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(shrink)] if shrink > 1 else []
        channels = _wide(out, width)
    hidden = _wide(ALEXNET_HIDDEN, width)
    layers += [nn.AdaptiveAvgPool2d(ALEXNET_GRID), nn.Flatten()]
    layers += [nn.Linear(channels * ALEXNET_GRID**2, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, classes))


def _bottleneck(have: int, inside: int, out: int, stride: int) -> Any:
    """A residual block of three convolutions; its input is added to its output."""
    from torch import nn

    class Bottleneck(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.way = nn.Sequential(
                nn.Conv2d(have, inside, 1, bias=False), nn.BatchNorm2d(inside), nn.ReLU(),
                nn.Conv2d(inside, inside, 3, stride, 1, bias=False), nn.BatchNorm2d(inside), nn.ReLU(),
                nn.Conv2d(inside, out, 1, bias=False), nn.BatchNorm2d(out),
            )  # fmt: skip
            same = have == out and stride == 1
            self.past = nn.Identity() if same else nn.Conv2d(have, out, 1, stride, bias=False)
            self.end = nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.end(self.way(x) + self.past(x))

    return Bottleneck()


def resnet50(channels: int, classes: int, width: float) -> Any:
    """23 million weights in 16 residual blocks."""
    from torch import nn

    have = _wide(64, width)
    layers: list[Any] = [nn.Conv2d(channels, have, 3, 1, 1, bias=False), nn.BatchNorm2d(have), nn.ReLU()]
    for inside, count, stride in RESNET:
        narrow = _wide(inside, width)
        for number in range(count):
            layers.append(_bottleneck(have, narrow, 4 * narrow, stride if number == 0 else 1))
            have = 4 * narrow
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(have, classes))


def mobilenet(channels: int, classes: int, width: float) -> Any:
    """3.2 million weights, and those of the last layer: convolutions within a channel, then across channels."""
    from torch import nn

    have = _wide(32, width)
    layers: list[Any] = [nn.Conv2d(channels, have, 3, 1, 1, bias=False), nn.BatchNorm2d(have), nn.ReLU()]
    for out, stride in MOBILENET:
        wide = _wide(out, width)
        layers += [nn.Conv2d(have, have, 3, stride, 1, groups=have, bias=False), nn.BatchNorm2d(have), nn.ReLU()]
        layers += [nn.Conv2d(have, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
        have = wide
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(have, classes))
