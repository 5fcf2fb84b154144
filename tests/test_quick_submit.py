"""`flegel submit` is read without Typer where its words are plain, and then to the same values."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import pytest
import typer.main

from flegel.cli import quick
from flegel.cli.job_options import FLAGS
from flegel.cli.main import app
from flegel.cli.quick import plain_submission

PLAIN = "kmeans --data higgs:1000"
VALUES = {int: "3", float: "0.5", str: "word"}


@cache
def command() -> Any:
    return typer.main.get_command(app).commands["submit"]  # type: ignore[attr-defined]


def as_typer_reads(words: list[str]) -> dict[str, Any]:
    return dict(command().make_context("submit", list(words)).params)


def lines() -> list[str]:
    own = ["", "--set k=3 --set init=first", "--out here --json -", "--no-save", "--json=a.json", "--save --no-save"]
    flags = [f"{o.flag} {VALUES[o.word_type]}" for o in FLAGS.values() if o.word_type in VALUES]
    return [*own, *flags, "--workers 2 --sync=bsp --seed -1 --tolerance 1e-3", "--workers 2 --workers 4"]


@pytest.mark.parametrize("line", lines())
def test_plain_words_are_read_as_typer_reads_them(line: str) -> None:
    words = f"{PLAIN} {line}".split()
    told = plain_submission(words)
    assert told is not None
    expected = as_typer_reads(words)
    assert told.options == {name: expected[name] for name in FLAGS}
    own, expected["hyper"] = told._asdict(), list(expected["hyper"])
    assert {name: own[name] for name in own if name != "options"} == {n: expected[n] for n in own if n != "options"}


@pytest.mark.parametrize(
    "line",
    [
        "kmeans", "--data higgs", "kmeans fcm --data higgs", "kmeans --data", "kmeans --data higgs --workers two",
        "kmeans --data higgs --worker 2", "kmeans --data higgs --help", "kmeans --data higgs -v",
        "kmeans --data --out x",
        "kmeans --data higgs --master tcp://head:7077", "kmeans --data higgs --detach", "kmeans --data higgs --sync -x",
        "kmeans --data higgs --no-replace", "kmeans --data higgs --workers 1_0", "kmeans --data higgs --labels x.csv",
    ],
)  # fmt: skip
def test_everything_else_is_left_to_typer(line: str) -> None:
    assert plain_submission(line.split()) is None


def test_a_cluster_in_the_environment_is_left_to_typer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plain_submission(PLAIN.split()) is not None
    monkeypatch.setenv("FLEGEL_MASTER", "tcp://head:7077")
    assert plain_submission(PLAIN.split()) is None
    monkeypatch.setattr(sys, "argv", ["flegel", "submit", *PLAIN.split()])
    assert quick.main(waiting=False) is False
