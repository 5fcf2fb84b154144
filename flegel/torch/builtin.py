"""Networks that `flegel submit` knows by name: cnn, lenet, vgg11, mlp. Imports torch only when a network is built."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from flegel.algorithm import Sample
from flegel.errors import UsageError
from flegel.torch.network import NeuralNetwork


class ImageNetwork(NeuralNetwork):
    """A network for square images of one or three channels, whose classes are counted in the data."""

    lr: Annotated[float, Meta(gt=0, description="learning rate")] = 1e-3
    batch: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="batch size that lr is meant for; none: lr as it is for any batch"),
    ] = 128
    classes: Annotated[
        Annotated[int, Meta(ge=2)] | None, Meta(description="number of classes; found in the data by default")
    ] = None

    def validate(self, sample: Sample) -> None:
        if self.classes is None and sample.labels is not None and len(sample.labels):
            self.classes = max(int(np.max(sample.labels)) + 1, 2)
        self._find_image(sample.columns)
        super().validate(sample)

    def _find_image(self, columns: int) -> None:
        """Find the shape of square images in rows of so many columns, where the user gave none."""
        if self.shape is None:
            for channels in (1, 3):
                side = math.isqrt(columns // channels)
                if channels * side * side == columns:
                    self.shape = [channels, side, side]
                    return
            raise UsageError(
                f"{type(self).__name__} takes square images of one or three channels; rows of {columns} columns are "
                "none. Give shape=…, or use mlp."
            )

    def _image(self) -> dict[str, int]:
        assert self.shape is not None and self.classes is not None, "validate comes first"
        return {"channels": self.shape[0], "side": self.shape[-1], "classes": self.classes}


class CNN(ImageNetwork):
    """A small convolutional network: 6 and 12 kernels of 5×5 (as in the FSP paper)."""

    def build(self) -> Any:
        from flegel.torch import modules

        return modules.ConvolutionalModule(**self._image())


class LeNet(ImageNetwork):
    """LeNet-5 for images."""

    def build(self) -> Any:
        from flegel.torch import modules

        return modules.LeNetModule(**self._image())


class VGG11(ImageNetwork):
    """VGG-11 with batch normalization for small images."""

    width: Annotated[
        int, Meta(ge=1, description="kernels of the first layer; later ones have up to 8 times as many")
    ] = 64

    def build(self) -> Any:
        from flegel.torch import modules

        return modules.VGGModule(**self._image(), width=self.width)


class MLP(ImageNetwork):
    """A multilayer perceptron for rows of any kind."""

    hidden: Annotated[list[int], Meta(description="sizes of the hidden layers")] = [128, 64]  # noqa: RUF012

    def _find_image(self, columns: int) -> None:
        self.shape = [columns]

    def build(self) -> Any:
        from flegel.torch import modules

        assert self.shape is not None and self.classes is not None, "validate comes first"
        return modules.PerceptronModule(self.shape[0], self.classes, self.hidden)
