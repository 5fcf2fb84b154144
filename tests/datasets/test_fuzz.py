"""Whatever bytes a file holds, a reader gives rows or one of our own errors, and gives the same again."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flegel.datasets import open_data
from flegel.errors import FlegelError
from tests.datasets.helpers import check_shards, dense

common = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
cells = st.one_of(
    st.floats(width=32).map(str), st.integers(-(10**12), 10**12).map(str), st.text(max_size=4), st.just("")
)
lines = st.lists(st.lists(cells, min_size=1, max_size=4).map(",".join), max_size=12)
numbers = st.sampled_from(["1:1", "2:0.5", "3:-1e3", "0:2", "x", "2:", ":3", "qid:1", "#", "5:nan", "9999999999:1"])


def reads_or_refuses(name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        for label in (None, 0):
            try:
                data = open_data(path, label=label)
                features, labels = data.load()
            except FlegelError as error:
                assert str(error)
                continue
            found = dense(features)
            assert found.shape == (data.rows, data.columns)
            assert np.isfinite(found).all()
            assert labels is None or len(labels) == data.rows
            if data.rows > 1:
                check_shards(data, 2)


@common
@given(rows=lines, end=st.sampled_from(["\n", "\r\n"]), packed=st.booleans())
@example(rows=["1,2", "", "3,4"], end="\n", packed=False)
@example(rows=['"1,2', '3"'], end="\n", packed=False)
@example(rows=["1", "", "2"], end="\n", packed=True)
@example(rows=[","], end="\n", packed=False)
def test_text(rows: list[str], end: str, packed: bool) -> None:
    content = end.join(rows).encode("utf-8", "surrogatepass")
    reads_or_refuses("t.csv.gz" if packed else "t.csv", gzip.compress(content) if packed else content)


@common
@given(rows=st.lists(st.lists(numbers, max_size=5).map(lambda t: " ".join(["1", *t])), max_size=6))
def test_libsvm(rows: list[str]) -> None:
    reads_or_refuses("t.libsvm", "\n".join(rows).encode())


@common
@given(
    name=st.sampled_from(
        [
            "t.csv",
            "t.csv.gz",
            "t.npy",
            "t.npz",
            "t.parquet",
            "t.arrow",
            "t.libsvm",
            "t.txt",
            "ratings.dat",
            "t-idx3-ubyte",
        ]
    ),
    content=st.binary(max_size=200),
)
def test_arbitrary_bytes(name: str, content: bytes) -> None:
    magic = {
        "t.npy": b"\x93NUMPY\x01\0",
        "t.parquet": b"PAR1",
        "t-idx3-ubyte": b"\0\0\x08\x02",
        "t.arrow": b"ARROW1",
    }
    reads_or_refuses(name, magic.get(name, b"") + content)


@pytest.fixture(scope="module")
def whole_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    import pandas as pd
    import pyarrow as pa

    folder = tmp_path_factory.mktemp("whole")
    frame = pd.DataFrame(np.arange(60.0).reshape(20, 3), columns=["a", "b", "c"])
    frame.to_parquet(folder / "t.parquet")
    frame.to_feather(folder / "t.arrow")
    table = pa.Table.from_pandas(frame)
    with pa.OSFile(str(folder / "stream.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    frame.to_csv(folder / "t.csv.gz", index=False)
    np.savez_compressed(folder / "t.npz", X=frame.to_numpy())
    np.save(folder / "t.npy", frame.to_numpy())
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@common
@given(data=st.data())
def test_damaged_files(whole_files: dict[str, bytes], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(whole_files)))
    content = bytearray(whole_files[name])
    end = data.draw(st.integers(1, len(content)))
    at = data.draw(st.integers(0, end - 1))
    content[at] ^= data.draw(st.integers(0, 255))
    reads_or_refuses(name, bytes(content[:end]))


@common
@given(
    table=arrays(
        np.float32,
        st.tuples(st.integers(1, 40), st.integers(1, 5)),
        elements=st.floats(-(2.0**100), 2.0**100, width=32),
    ),
    header=st.booleans(),
    delimiter=st.sampled_from([",", "\t", ";", "|"]),
)
def test_what_is_written_is_read(table: np.ndarray, header: bool, delimiter: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        names = delimiter.join(f"c{k}" for k in range(table.shape[1])) if header else ""
        np.savetxt(path, table, delimiter=delimiter, fmt="%.9g", header=names, comments="")
        if not header:
            path.write_text(path.read_text().lstrip("\n"))
        data = open_data(path, delimiter=delimiter)
        assert np.array_equal(data.load()[0], table)
