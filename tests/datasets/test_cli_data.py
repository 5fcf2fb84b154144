"""`flegel data` shows, generates and finds; mistakes end with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from flegel.cli.data import app
from flegel.datasets import open_data
from flegel.datasets.catalog.registry import names

runner = CliRunner()


def test_list_and_info_say_what_there_is() -> None:
    shown = json.loads(runner.invoke(app, ["list", "--json"]).output)
    assert [entry["name"] for entry in shown] == names()
    assert runner.invoke(app, ["list"]).exit_code == 0
    info = runner.invoke(app, ["info", "ml25m"])
    assert "md5:6b51fb2759a8657d3bfcbfc42b592ada" in info.output
    assert json.loads(runner.invoke(app, ["info", "higgs", "--json"]).output)["rows"] == 11_000_000


@pytest.mark.parametrize("command", ["info", "fetch", "generate", "path"])
@pytest.mark.parametrize("name", ["higs", "../higgs"])
def test_an_unknown_name_ends_with_2(command: str, name: str) -> None:
    done = runner.invoke(app, [command, name])
    assert done.exit_code == 2
    assert "higgs" in done.output


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".parquet"])
def test_generate_writes_a_file_that_reads_back(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"higgs{suffix}"
    done = runner.invoke(app, ["generate", "higgs", "--rows", "5000", "--out", str(path)])
    assert done.exit_code == 0, done.output
    assert "not the real ones" in done.output
    wanted, labels = open_data("higgs:5000").load()
    features, found = open_data(path, label=-1 if suffix == ".npy" else "label").load()
    assert np.allclose(features, wanted, rtol=1e-6)
    assert np.array_equal(found, labels)


def test_generated_ratings_read_back(tmp_path: Path) -> None:
    done = runner.invoke(app, ["generate", "ratings", "--rows", "5000", "--out", str(tmp_path / "r.csv")])
    assert done.exit_code == 0, done.output
    assert len(open_data(tmp_path / "r.csv").load()[0].values) == 5000
    wrong = runner.invoke(app, ["generate", "ratings", "--rows", "5000", "--out", str(tmp_path / "r.npy")])
    assert wrong.exit_code == 2
    assert not list(tmp_path.glob("*.part"))


def test_path_finds_the_real_file_or_ends_with_1(cache_folder: Path) -> None:
    missing = runner.invoke(app, ["path", "susy"])
    assert missing.exit_code == 1
    (cache_folder / "susy").mkdir()
    (cache_folder / "susy" / "SUSY.csv").write_text("1,2\n")
    assert runner.invoke(app, ["path", "susy"]).output.strip().endswith("SUSY.csv")


def test_fetch_of_a_generated_set_ends_with_2() -> None:
    assert runner.invoke(app, ["fetch", "syn"]).exit_code == 2
