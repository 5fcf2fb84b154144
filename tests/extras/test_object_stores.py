"""Objects in a store are data: one by its key, many by their prefix; a changed object is fetched again."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from flegel.datasets import open_data
from flegel.errors import DataError, UsageError
from tests import needs
from tests.datasets.helpers import check_shards


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    obstore = needs.library("obstore")
    memory = obstore.store.MemoryStore()
    monkeypatch.setattr("obstore.store.from_url", lambda url: memory)
    return memory


def test_an_object_and_a_prefix(store: Any) -> None:
    import obstore

    for k in range(3):
        obstore.put(store, f"table/part-{k}.csv", f"{k},1\n{k},2\n".encode())
    one = open_data("s3://bucket/table/part-1.csv")
    assert one.load()[0].tolist() == [[1, 1], [1, 2]]
    many = open_data("s3://bucket/table/")
    assert many.load()[0][:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    check_shards(many, 2)
    obstore.put(store, "table/part-1.csv", b"9,9\n")
    assert open_data("s3://bucket/table/part-1.csv").load()[0].tolist() == [[9, 9]]


def test_a_missing_object_is_named(store: Any) -> None:
    with pytest.raises(DataError, match=r"s3://bucket/no\.csv could not be read"):
        open_data("s3://bucket/no.csv")
    with pytest.raises(DataError, match="no object below"):
        open_data("s3://bucket/none/")


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(UsageError, match=r"flegel\[s3\]"):
        open_data("s3://bucket/x.csv")
