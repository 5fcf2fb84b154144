"""Nothing of Python is left with PyArrow's threads when text was read: one that drops it at the end of the process
aborts that."""

from __future__ import annotations

import gzip
import io
import threading
from pathlib import Path

import numpy as np
import pytest

from flegel.datasets.formats import arrow_loans
from flegel.datasets.formats.arrow_loans import Loan
from flegel.datasets.formats.text_dialect import CellDialect, Dialect
from flegel.datasets.formats.text_parse import parse
from flegel.datasets.formats.text_table import TextTable
from flegel.errors import DataError
from tests import needs

needs.library("pyarrow")

TEXT = "name,town\n" + "".join(f"n{at},Zürich\n" for at in range(5000))


@pytest.fixture
def loans(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """For each wait: how many objects were lent before it, and are after it."""
    seen: list[tuple[int, int]] = []
    wait = Loan.wait

    def watched(self: Loan) -> None:
        refs = self._lent
        wait(self)
        seen.append((len(refs), sum(each() is not None for each in refs)))

    monkeypatch.setattr(Loan, "wait", watched)
    return seen


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_table_that_was_split_is_with_nobody(
    tmp_path: Path, loans: list[tuple[int, int]], encoding: str, packed: bool
) -> None:
    path, data = tmp_path / ("t.csv.gz" if packed else "t.csv"), TEXT.encode(encoding)
    path.write_bytes(gzip.compress(data) if packed else data)
    table = TextTable(path, CellDialect(encoding, ",", True, ("name", "town"), False, True))
    ((names, towns),) = table.chunks([0, 1])
    assert towns.texts == ("Zürich",) and len(names.values) == 5000 and names.texts[-1] == "n4999"
    assert loans and loans[0][0] > 0 and loans[0][1] == 0


def test_a_reader_that_is_left_early_or_refuses_is_with_nobody(
    tmp_path: Path, loans: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flegel.datasets.formats.text_table.BYTES_PER_BLOCK", 1 << 12)
    path = tmp_path / "t.csv"
    path.write_text(TEXT)
    dialect = CellDialect("utf-8", ",", True, ("name", "town"), False, True)
    chunks = iter(TextTable(path, dialect).chunks([0]))
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]
    path.write_text(TEXT + "too,many,cells\n")
    with pytest.raises(DataError):
        list(TextTable(path, dialect).chunks([0]))
    assert [after for _, after in loans] == [0, 0]


def test_numbers_that_were_parsed_are_with_nobody(loans: list[tuple[int, int]]) -> None:
    dialect = Dialect(",", 0, 2, [0, 1])
    (first, _), _ = parse(b"1,2\n3,4\n", dialect, np.dtype(np.float64), 2, 1, "here")
    assert first.tolist() == [1.0, 3.0]
    with pytest.raises(DataError):
        parse(b"1,2\n3,x\n", dialect, np.dtype(np.float64), 2, 1, "here")
    assert loans == [(1, 0), (1, 0)]


def test_a_wait_ends_with_the_last_reference_or_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    loan, held = Loan(), threading.Event()
    kept = [loan.block(b"1"), loan.file(io.BytesIO(b"2"), "utf-8")]
    threading.Thread(target=lambda: (held.wait(), kept.clear())).start()
    monkeypatch.setattr(arrow_loans, "LONGEST_WAIT_SECONDS", 0.0)
    loan.wait()
    assert len(kept) == 2
    monkeypatch.setattr(arrow_loans, "LONGEST_WAIT_SECONDS", 600.0)
    held.set()
    loan.wait()
    assert not kept
