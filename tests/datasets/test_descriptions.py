"""Every source and stream of the package can be opened from its description by kind."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

import flegel.datasets
from flegel.datasets.rows.descriptions import source_from, stream_from
from flegel.datasets.rows.source import SOURCES, STREAMS, Source, Stream
from flegel.errors import DataError


def concrete(base: type) -> Iterator[type]:
    """Classes of the package that can be instantiated and have a kind of their own."""
    for module in pkgutil.walk_packages(flegel.datasets.__path__, "flegel.datasets."):
        for _, cls in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(cls, base) and "kind" in vars(cls) and not inspect.isabstract(cls):
                yield cls


def test_every_class_with_a_kind_is_registered_under_it() -> None:
    assert {cls.kind: cls for cls in concrete(Source)} == SOURCES  # type: ignore[attr-defined]
    assert {cls.kind: cls for cls in concrete(Stream)} == STREAMS  # type: ignore[attr-defined]


def test_a_kind_is_given_once() -> None:
    with pytest.raises(TypeError, match="has the kind 'text' of TextSource"):
        type("Other", (Source,), {"kind": "text"})


@pytest.mark.parametrize("kind", [None, 7, "no-such-kind"])
def test_an_unknown_kind_is_refused(kind: object) -> None:
    for opener in (source_from, stream_from):
        with pytest.raises(DataError, match="install one version on all hosts"):
            opener({"kind": kind})
