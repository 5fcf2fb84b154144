"""The table "what you type, what you get" of docs/data.md: every line is run, and gives what it says."""

from __future__ import annotations

import gzip
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from flegel.cli.main import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "data.md"
TEXTS: dict[str, str | bytes] = {
    "points.csv": "x,y\n1,2\n3,4.5\n5,6\n7,8\n",
    "iris.data": "5.1,3.5,setosa\n4.9,3.0,setosa\n7.0,3.2,versicolor\n6.4,3.1,versicolor\n",
    "kdd.gz": gzip.compress(
        b"0,tcp,http,181,normal.\n0,udp,dns,239,normal.\n5,tcp,smtp,235,attack.\n1,tcp,http,9,normal.\n"
    ),
    "penguins.csv": "species,island,mass,bill\nA,x,3750,39.1\nA,y,3800,39.5\nB,x,,40.3\nB,y,3450,36.7\nA,x,3650,39.3\n",
    "umsatz.csv": "stadt;betrag\nKöln;1.234,50\nBonn;999,00\nKöln;12.000,25\n".encode("latin-1"),
    "sales.csv": 'shop,amount\nA,"1,234.50"\nB,"22,000.00"\nA,7\n',
    "mac.csv": "a,b\r1,x\r2,y\r3,x\r",
    "export.txt": "a\tb\r\n1\tx\r\n2\ty\r\n3\tx\r\n".encode("utf-16"),
    "orders.csv": "day,paid,sum\n2024-12-31,yes,5\n2025-01-02,no,7\n",
    "us.csv": "day,sum\n03/04/2024,5\n05/06/2024,7\n",
    "frame.csv": ",a,b\n0,5,x\n1,6,y\n2,7,x\n",
    "cars.csv": "name,power,weight\n" + "".join(f"car {k},{50 + k},{900 + 7 * k}\n" for k in range(30)),
    "sizes.csv": "size,price\nS,1\nM,2\nL,3\nM,2\n",
    "typo.csv": "a,b\n1,2\n3,oops\n5,6\n",
    "part-1.csv": "a,b\n1,x\n2,y\n",
    "part-2.csv": "b,a\nx,3\nz,4\n",
    "films.csv": "userId,movieId,rating\n1,10,4\n2,10,3\n2,20,5\n3,20,1\n",
    "u.data": "1\t10\t4\t881250949\n2\t10\t3\t881250950\n2\t20\t5\t881250951\n3\t20\t1\t881250952\n",
}


def lines() -> list[tuple[str, str]]:
    """Commands of the table and what they give."""
    text = PAGE.read_text(encoding="utf-8").partition("what you get: begin -->")[2].partition("<!--")[0]
    cells = [re.findall(r"`([^`]+)`", row) for row in text.splitlines() if row.startswith("|")]
    return [(found[0], found[1]) for found in cells if found]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in TEXTS.items():
        (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
    for year in (2023, 2024):
        (tmp_path / "events" / f"year={year}").mkdir(parents=True)
        pd.DataFrame({"a": [1.0, 2.0]}).to_parquet(tmp_path / "events" / f"year={year}" / "part.parquet")
    monkeypatch.chdir(tmp_path)


def test_there_are_twenty_files() -> None:
    assert len(lines()) >= 20


@pytest.mark.parametrize(("command", "given"), lines())
def test_what_you_type_gives_what_the_page_says(command: str, given: str, files: None) -> None:
    outcome = CliRunner().invoke(app, shlex.split(command)[1:])
    assert given in outcome.output
    assert outcome.exit_code == (
        0 if any(word in outcome.output for word in ("→", "plain numbers", "ratings of")) else 2
    )
