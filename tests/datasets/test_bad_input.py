"""Bad files: one clear sentence that names the file and, where there is one, the line; and nothing is left
in the cache.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flegel.datasets import open_data
from flegel.errors import DataError, FlegelError

GOOD = "".join(f"{k},{k * 0.5},{k % 2}\n" for k in range(200))


def write(name: str, content: bytes | str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def with_line(number: int, line: str) -> str:
    lines = GOOD.splitlines()
    lines[number - 1] = line
    return "\n".join(lines) + "\n"


def parquet(**columns: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        import pyarrow
        from pyarrow import parquet as pq

        pq.write_table(pyarrow.table(columns), folder / "a.parquet")
        return folder / "a.parquet"

    return make


def idx(header: bytes, body: bytes) -> Callable[[Path], Path]:
    return write("train-images-idx3-ubyte", header + body)


BAD: dict[str, tuple[Callable[[Path], Path], dict[str, Any], str]] = {
    "truncated gzip": (write("a.csv.gz", gzip.compress(GOOD.encode() * 50)[:-40]), {}, "truncated"),
    "not gzip at all": (write("a.csv.gz", GOOD), {}, "damaged or not in the format of its name"),
    "ragged row": (write("a.csv", with_line(150, "1,2")), {}, "line 150 has 2 fields where 3"),
    "long row": (write("a.csv", with_line(150, "1,2,3,4")), {}, "line 150 has 4 fields where 3"),
    "ragged row, gzip": (write("a.csv.gz", gzip.compress(with_line(150, "1,2").encode())), {}, "line 150"),
    "text in a number column": (
        write("a.csv", with_line(120, "1,abc,3")),
        {},
        r"line 120, column 2: 'abc' is not",
    ),
    "text near the top": (
        write("a.csv", with_line(3, "1,abc,3")),
        {},
        r"line 3, column 2: 'abc' is not a number",
    ),
    "text under a header": (
        write("a.csv", "x,y,z\n" + with_line(120, "1,abc,3")),
        {},
        r"line 121, column 2 \(y\): 'abc'",
    ),
    "an empty field": (write("a.csv", with_line(120, "1,,3")), {}, "column 2 has no value in 1 of 200"),
    "NaN": (write("a.csv", with_line(120, "1,nan,3")), {}, r"column 2 has no value in 1 of 200 rows"),
    "infinity": (write("a.csv", with_line(120, "1,inf,3")), {}, "row 120, column 2 is inf"),
    "too large for float32": (write("a.csv", with_line(120, "1,1e300,3")), {}, "row 120, column 2 is inf"),
    "NaN label and another gap": (
        write("a.csv", "1,,nan\n1,2,nan\n" + GOOD),
        {"label": 2},
        "column 3, and 1 more column has gaps; .*drop.* leaves out rows with any gap, .*mean.* those without a label",
    ),
    "NaN label": (write("a.csv", with_line(120, "1,2,nan")), {"label": 2}, "have no label in column 3"),
    "empty file": (write("a.csv", ""), {}, "is empty"),
    "only blanks": (write("a.csv", "\n\n"), {}, "is empty"),
    "empty gzip": (write("a.csv.gz", gzip.compress(b"")), {}, "is empty"),
    "only a header": (write("a.csv", "a,b,c\n"), {}, "a header but no rows"),
    "header taken for data": (write("a.csv", "a,b\n1,2\n"), {"header": False}, "omit header=False"),
    "data taken for a header": (write("a.csv", GOOD), {"header": True}, "omit header=True"),
    "wrong delimiter": (write("a.csv", GOOD), {"delimiter": ";"}, "pass delimiter=','"),
    "label column missing": (write("a.csv", "x,y\n1,2\n"), {"label": "z"}, "no column 'z'"),
    "label column by name without names": (write("a.csv", GOOD), {"label": "z"}, "no column names"),
    "label column out of range": (write("a.csv", GOOD), {"label": 7}, "has 3 columns"),
    "nothing but a label": (write("a.csv", "1\n2\n"), {"label": 0}, "no column of features besides the label"),
    "huge line": (write("a.csv", b"1," * 400_000), {}, "longer than"),
    "not UTF-8": (write("a.csv", b"a,b\n1,2\n\xff\xfe\xfa,3\n"), {}, "line 3, column 1"),
    "not UTF-8, further down": (
        write("a.csv", GOOD.encode() + b"1,\xff\xfa,3\n"),
        {},
        "line 201, column 2: 'ÿú' is not a number",
    ),
    "binary": (write("a.csv", b"1,2\n\0\0\0\n"), {}, "zero bytes"),
    "npy without rows": (
        lambda f: (np.save(f / "a.npy", np.empty((0, 3))), f / "a.npy")[1],
        {},
        "holds no rows",
    ),
    "npy without columns": (
        lambda f: (np.save(f / "a.npy", np.empty((3, 0))), f / "a.npy")[1],
        {},
        "holds no rows",
    ),
    "npy of objects": (
        lambda f: (np.save(f / "a.npy", np.array([{}, {}]), allow_pickle=True), f / "a.npy")[1],
        {},
        "no NumPy array that can be mapped",
    ),
    "npy of text": (
        lambda f: (np.save(f / "a.npy", np.array(["a"])), f / "a.npy")[1],
        {},
        "convert them to real numbers",
    ),
    "npy with NaN": (
        lambda f: (np.save(f / "a.npy", np.array([[1.0, 2.0], [3.0, np.nan]])), f / "a.npy")[1],
        {},
        "row 2, column 2 is nan",
    ),
    "npy cut off": (write("a.npy", b"\x93NUMPY\x01\0v\0{'descr'"), {}, "no NumPy array"),
    "npz cut off": (write("a.npz", b"PK\x03\x04nothing"), {}, r"no \.npz of plain arrays"),
    "libsvm: no colon": (
        write("a.libsvm", "1 1:2 3:4\n-1 2:1 7\n"),
        {},
        "line 2 has an entry without index:value",
    ),
    "libsvm: bad value": (write("a.libsvm", "1 1:2\n1 2:x\n"), {}, "line 2 has a value that is not a number"),
    "libsvm: bad value, long": (
        write("a.libsvm", "1 1:2\n1 2:1.2.3\n"),
        {},
        "line 2 has a value that is not",
    ),
    "libsvm: bad index": (write("a.libsvm", "1 1:2\n\n1 a:3\n"), {}, "line 3 has an index"),
    "libsvm: order": (write("a.libsvm", "1 3:1 2:1\n"), {}, "line 1 has indices that do not ascend"),
    "libsvm: overflow of float32": (write("a.libsvm", "1 3:1e300\n"), {}, "row 1, column 3 is inf"),
    "libsvm: NaN": (write("a.libsvm", "1 3:nan\n"), {}, "not finite"),
    "libsvm: only comments": (write("a.libsvm", "# nothing\n"), {}, "no rows"),
    "libsvm: truncated gzip": (write("a.libsvm.gz", gzip.compress(b"1 1:2\n" * 9999)[:-30]), {}, "truncated"),
    "idx: wrong magic": (idx(b"\x01\x02\x03\x04", b""), {}, "no IDX file"),
    "idx: cut off": (
        idx(b"\0\0\x08\x02\0\0\0\x05\0\0\0\x02", b"1234"),
        {},
        "truncated: its header announces 5 rows",
    ),
    "idx: no rows": (idx(b"\0\0\x08\x02\0\0\0\0\0\0\0\x02", b""), {}, "holds no rows"),
    "parquet: lists": (parquet(a=[1.0, 2.0], b=[[1], [2]]), {}, "column 'b' holds list"),
    "parquet: null": (parquet(a=[1.0, None], b=[1, 2]), {}, r"\(a\) has no value in 1 of 2 rows"),
    "parquet: NaN": (parquet(a=[1.0, float("nan")]), {}, r"row 2, column 1 \(a\) is nan"),
    "parquet: no such label": (parquet(a=[1.0], label=[1]), {"label": "labl"}, "did you mean 'label'"),
    "parquet: no rows": (parquet(a=np.empty(0)), {}, "no rows"),
    "parquet: cut off": (write("a.parquet", b"PAR1 and no more"), {}, "no complete Parquet"),
    "parquet: empty": (write("a.parquet", b""), {}, "is empty"),
    "ratings: text": (write("a.csv", "userId,movieId,rating\n1,2,3\n1,3,x\n"), {}, "line 3, column 3"),
    "ratings: no item": (write("a.csv", "userId,movieId,rating\n1,2,3\n1,,4\n"), {}, "line 3: the item is missing"),
    "ratings: gap": (write("a.csv", "userId,movieId,rating\n1,2,\n"), {}, "line 2, column 3 .* is missing or not fin"),
    "ratings: ragged": (write("ratings.dat", "1::2::3::4\n1::2\n2::2::3::4\n"), {}, "line 2 has 2 fields"),
    "ratings: half a user": (write("a.csv", "userId,movieId,rating\n1.5,2,3\n"), {}, "is no integer"),
    "jester: wrong count": (
        write("a.csv", "2,99,1.5\n1,99,3\n"),
        {"format": "jester"},
        "line 1 announces 2 ratings and has 1",
    ),
    "unknown format": (write("a.csv", GOOD), {"format": "xml"}, "--format xml is not known"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_sentence_and_nothing_is_cached(name: str, tmp_path: Path, cache_folder: Path) -> None:
    make, options, words = BAD[name]
    path = make(tmp_path)
    with pytest.raises(DataError if name != "unknown format" else FlegelError, match=words) as caught:
        open_data(path, **options).load()
    text = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in text
    assert not text.endswith(("..", "?.", ".?")), text
    assert len(text.replace(str(tmp_path), "")) < 400
    assert not [p for p in cache_folder.rglob("*") if p.is_file() and p.suffix != ".lock"]


def test_files_of_one_folder_must_have_the_same_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x,y,z\n1,2,3\n")
    with pytest.raises(DataError, match="3 columns where"):
        open_data(tmp_path)
    (tmp_path / "b.csv").write_text("x,q\n1,2\n")
    with pytest.raises(DataError, match="'q'"):
        open_data(tmp_path)


def test_a_bad_row_deep_in_a_large_file_is_named_and_half_written_columns_vanish(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flegel.datasets.rows import recorder

    monkeypatch.setattr(recorder, "MIN_BYTES", 1000)
    lines = [f"{k},{k}\n" for k in range(30_000)]
    lines[23_456] = "7,seven\n"
    (tmp_path / "a.csv").write_text("".join(lines))
    data = open_data(tmp_path / "a.csv")
    failures = []
    for index in range(2):
        try:
            data.shard(index, 2)
        except DataError as error:
            failures.append(str(error))
    assert len(failures) == 1
    assert "line 23457, column 2: 'seven' is not a number" in failures[0]
    assert not list(cache_folder.rglob("*.npy"))


def test_a_file_that_changes_after_it_was_opened_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(GOOD)
    description = open_data(tmp_path / "a.csv").describe()
    (tmp_path / "a.csv").write_text(GOOD + "1,2,3\n")
    from flegel.datasets import read_shard

    with pytest.raises(DataError, match="bytes here but had"):
        read_shard(description, 0, 2)


def test_of_several_bad_values_in_an_array_the_first_is_named_whichever_thread_finds_one() -> None:
    rows = np.zeros((5_000_000, 2), np.float32)  # two pieces of 32 MiB
    rows[4_900_000, 1] = np.inf
    rows[4_300_000, 0] = -np.inf
    with pytest.raises(DataError, match="row 4300001, column 1 is -inf"):
        open_data(rows).read()
    rows[[4_300_000, 4_900_000]] = np.float32(3e38)  # finite, but their sum is not
    assert len(open_data(rows).read().features) == len(rows)
