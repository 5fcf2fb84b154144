"""The 63 cells of `bench.figures.cells`: parts cover them once, and records of parts become one table."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from bench.figures import cells
from flegel.errors import UsageError

ALL = {"only": "kmeans,gmm,fcm,lr,nmf,cnn,lenet", "lengths": "0.1,1,5"}


def test_parts_have_every_problem_once_and_each_a_long_one() -> None:
    parts = [cells.chosen(Namespace(part=f"{number}/7", **ALL)) for number in range(1, 8)]
    assert len({problem for part in parts for problem in part}) == sum(map(len, parts)) == 21
    assert all([length for _, length in part] == [5.0, 1.0, 0.1] for part in parts)
    with pytest.raises(UsageError, match="i from 1 to n"):
        cells.chosen(Namespace(part="8/7", **ALL))


def test_problems_that_cannot_be_made_are_left_out_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: object) -> None:
        raise UsageError("Networks need PyTorch.")

    monkeypatch.setattr(cells, "made", refused)
    given = Namespace(part="1/1", only="cnn", lengths="1", conditions="even,8x", workers=4, virtual=True, seconds=9.0)
    given.seeds = 2
    found = dict(cells.cells(given, {}))
    assert len(found) == 4 and all(label.startswith(("cnn 1 s even seed", "cnn 1 s 8x seed")) for label in found)
    assert all(cell == {"left out": "Networks need PyTorch."} for cell in found.values())


@pytest.mark.parametrize(("option", "text"), [("only", "kmeans,nobody"), ("conditions", "odd")])
def test_words_that_are_not_known_are_refused(option: str, text: str) -> None:
    given = Namespace(
        part="1/1", workers=4, virtual=True, seconds=9.0, seeds=1, **{**ALL, "conditions": "even", option: text}
    )
    with pytest.raises(UsageError, match=f"--{option} {text}: '(nobody|odd)' is none of"):
        list(cells.cells(given, {}))


def test_a_cell_names_its_best_model_and_who_is_behind() -> None:
    turns: dict[str, list[float | None]] = {"fsp": [1.2, 1.1, 1.3], "auto": [1.0, 1.04, None], "bsp": [1.0, 9.0, 1.0]}
    cell = cells.judged(turns)
    assert cell["best"] == "bsp" and cell["ratio"] == {"fsp": 1.2, "auto": 1.04, "bsp": 1.0}
    assert cells.behind({"a": cell}, "fsp") == ["a"] and not cells.behind({"a": cell}, "auto")
    lost = cells.judged({"fsp": [None, None, 1.0], "bsp": [1.0]})
    assert lost["ratio"]["fsp"] is None and cells.behind({"a": lost}, "fsp") == ["a"]
    assert cells.judged({"fsp": [None]})["best"] is None


def test_records_of_parts_become_one_table(tmp_path: Path) -> None:
    raced = cells.judged({"fsp": [1.0], "auto": [1.5]})
    parts = [{"fcm 1 s even": {"left out": "540 s were over"}, "lr 1 s 8x": raced}, {"fcm 1 s even": raced}]
    paths = [tmp_path / f"{number}.json" for number in range(2)]
    for path, part in zip(paths, parts, strict=True):
        path.write_text(json.dumps({"workers": 16, "cells": part}), encoding="utf-8")
    record = cells.merged(paths)
    assert record["cells"]["fcm 1 s even"]["best"] == "fsp" and len(record["cells"]) == 2
    text = cells.page(record["cells"], record["workers"])
    assert "auto is more than 5 % behind the best model in 2 of 2 cells" in text
    assert "| lr 1 s 8x | fsp, 1 s | 1.00 | 1.50 |" in text
