"""`check_algorithm` believes classes that keep their promises, and names the promise that others break."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flegel import Algorithm, FlegelError, check_algorithm
from flegel.algorithms.clusters.auto_kmeans import AutoKMeans
from flegel.algorithms.clusters.bisecting_kmeans import BisectingKMeans
from flegel.algorithms.clusters.gap_kmeans import GapKMeans
from flegel.algorithms.clusters.gap_mixture import GapGMM
from flegel.algorithms.clusters.kprototypes import KPrototypes
from flegel.algorithms.clusters.sized_kmeans import SizedKMeans
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gap_pca import GapPCA
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lda import LDA
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf import NMF
from flegel.algorithms.nmf.kullback import KLNMF
from flegel.algorithms.pca import PCA
from flegel.checks.hard_data import check_hard_data
from flegel.errors import ConformanceError

sys.path.append(str(Path(__file__).parent / "runtime"))
import broken_promises as broken
import user_classes as users

ALWAYS = {
    "parameters serialize",
    "class and hyper-parameters travel to workers",
    "block equals per-point",
    "the stop flag stops the kernel",
    "training resumes where it stopped",
    "hooks answer in the right shape",
}


def promises(algorithm: Algorithm) -> set[str]:
    return {line.rsplit(" (", 1)[0] for line in check_algorithm(algorithm)}


BUILT_IN = [KMeans(k=4), GMM(k=3), GMM(k=2, covariance="tied"), FCM(k=3), LR(), NMF(rank=4), KLNMF(rank=3), PCA(k=2)]

CLUSTERS = [
    SizedKMeans(k=3, size_min=5),
    KPrototypes(k=3, categorical=[]),
    AutoKMeans(k_max=5),
    BisectingKMeans(k=4),
    GapKMeans(k=3),
    GapGMM(k=3),
    GapPCA(k=2),
    LDA(k=3),
]


@pytest.mark.parametrize("algorithm", [*BUILT_IN, *CLUSTERS, broken.Good()], ids=lambda a: type(a).__name__)
def test_sound_classes_keep_every_promise(algorithm: Algorithm) -> None:
    kept = promises(algorithm)
    assert kept >= ALWAYS | {"statistics conserve"}


def test_a_class_is_as_good_as_an_instance() -> None:
    assert check_algorithm(broken.Good) == check_algorithm(broken.Good())


def test_a_promise_that_does_not_apply_is_not_said_to_be_kept() -> None:
    assert "statistics conserve" not in promises(broken.Gradient()), "all its statistics are spent at a barrier"
    assert "aggregate is addition" not in promises(users.Histogram()), "its aggregate takes no whole reports"
    assert "statistics conserve" in promises(users.Histogram())


BROKEN = [
    (broken.ForgetsToSubtract, "change since the point's last visit"),
    (broken.AggregateIsNoAddition, "aggregate"),
    (broken.WrongKernel, "per-point statistics differ"),
    (broken.DeafKernel, "the kernel trains on although the flag is up"),
    (broken.KernelLosesItsPlace, "the kernel stops before the end"),
    (broken.ChangesShape, "θ in another shape"),
    (broken.NotFinite, "not finite"),
    (broken.NoFiniteObjective, "objective returns nan"),
    (broken.StartsNotFinite, "initParameter returned numbers that are not finite"),
    (broken.ParameterOfText, "initParameter"),
    (broken.TerminationIsNoAnswer, "terminationCheck returns 'perhaps'"),
    (broken.PredictsTooFew, "one answer per row"),
    (broken.AcceptsAnything, "unknown hyper-parameter is accepted"),
    (broken.UpdateWritesItsInput, "updateParameter writes into the statistics"),
    (broken.StateOfText, "initState must return numbers"),
    (broken.DrawsFromThinAir, "initParameter gives something else for the same seed"),
]


@pytest.mark.parametrize(("cls", "sentence"), BROKEN, ids=lambda x: getattr(x, "__name__", ""))
def test_a_broken_promise_is_named(cls: type[Algorithm], sentence: str) -> None:
    with pytest.raises(FlegelError, match=sentence) as caught:
        check_algorithm(cls)
    assert isinstance(caught.value, ConformanceError)
    assert str(caught.value).startswith(cls.__name__)
    assert "\n" not in str(caught.value)


class Raises(broken.Good):
    """A class of the user's with a mistake in one hook."""

    hook: str = ""

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.linalg.inv(np.zeros((2, 2))) if self.hook == "initParameter" else super().initParameter(sample, rng)

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return {}["theta"] if self.hook == "updateParameter" else super().updateParameter(aggregator, oldParameter)


@pytest.mark.parametrize(
    ("hook", "error"), [("initParameter", "LinAlgError: Singular matrix"), ("updateParameter", "KeyError: 'theta'")]
)
def test_what_a_hook_raises_is_told_with_its_file_and_line(hook: str, error: str) -> None:
    """Of the class, also where the error comes from a library below it."""
    function = getattr(Raises, hook)
    place = rf"test_conformance\.py:{function.__code__.co_firstlineno + 1}$"
    with pytest.raises(ConformanceError, match=f"{hook} raised {re.escape(error)}.*, at .*{place}"):
        check_algorithm(Raises(hook=hook))


def test_hard_data_are_tried_and_told_in_sentences() -> None:
    good, bad = check_hard_data(KMeans(k=4))  # a kernel that others in this file have compiled
    assert "trains on constant columns" in good and any(
        line.startswith("refuses one row: KMeans: k=4") for line in good
    )
    assert bad == []
    good, bad = check_hard_data(broken.DividesByTheSpread())
    assert "trains on heavy tails" in good
    assert any(line.startswith("with rows that are all equal: DividesByTheSpread: ") for line in bad)
