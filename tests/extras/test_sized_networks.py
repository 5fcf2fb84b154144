"""Networks of the sizes that the placement paper trains, and the jobs that train them behind limited links."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

needs.library("torch")

from bench.common.served_job import IMAGES, ServedJob, problem
from bench.common.sized_networks import alexnet, mobilenet, resnet50


def weights(module: Any) -> int:
    return sum(each.numel() for each in module.parameters())


@pytest.mark.parametrize(("make", "millions"), [(alexnet, 57.0), (resnet50, 23.25), (mobilenet, 3.2)])
def test_networks_have_the_paper_s_sizes_and_parts_of_them(make: Any, millions: float) -> None:
    whole = weights(make(3, 10, 1.0))
    assert whole == pytest.approx(1e6 * millions, rel=0.02)
    assert weights(make(3, 10, 10**-0.5)) == pytest.approx(whole / 10, rel=0.1)


@pytest.mark.parametrize("network", ["AlexNet", "ResNet50", "MobileNet"])
def test_every_network_of_a_job_can_be_built_and_takes_its_images(network: str) -> None:
    import torch

    algorithm, (images, labels) = problem(ServedJob("here", ("a", "b"), ("a", "b"), 0, 1, {}, network, 50.0))
    algorithm.classes = 10
    assert len(images) == len(labels) == 2 * IMAGES
    assert algorithm.build()(torch.from_numpy(images[:2]).reshape(2, 3, 32, 32)).shape == (2, 10)
