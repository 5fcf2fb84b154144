"""Every format reads to the values that were written, whole and in shards."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import flegel
from flegel.algorithms.lr import LR
from flegel.datasets import open_data
from flegel.datasets.formats import arrow_tables, text_stream
from flegel.datasets.formats.arrow_tables import TableSource, open_blocks
from flegel.datasets.formats.text_dialect import Dialect
from flegel.errors import DataError, UsageError
from tests import needs
from tests.datasets.helpers import check_shards, dense

RNG = np.random.default_rng(7)
TABLE = RNG.normal(size=(500, 4)).astype(np.float32)
LABELS = RNG.integers(0, 3, 500)


def frame() -> pd.DataFrame:
    table = pd.DataFrame(TABLE, columns=["a", "b", "c", "d"])
    table.insert(1, "y", LABELS)
    return table


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t"), (".csv", ";"), (".txt", " ")])
@pytest.mark.parametrize("packing", ["", ".gz"])
def test_text_tables(tmp_path: Path, header: bool, suffix: str, delimiter: str, packing: str) -> None:
    path = tmp_path / f"table{suffix}{packing}"
    frame().to_csv(path, sep=delimiter, index=False, header=header)
    data = open_data(path, label="y" if header else 1)
    assert (data.rows, data.columns, data.dtype) == (500, 4, np.float32)
    assert data.names == (["a", "b", "c", "d"] if header else None)
    features, labels = data.load()
    assert np.array_equal(features, TABLE)
    assert np.array_equal(labels, LABELS)
    check_shards(data, 3)


@pytest.mark.parametrize("piece", [8, 1 << 20])
def test_an_empty_last_field_of_a_tsv_is_a_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(text_stream, "TEXT_PIECE_BYTES", piece)
    path = tmp_path / "table.tsv"
    path.write_bytes(b"1\t2\ta\n3\t4\t\n5\t6\tb\n7\t8\t\n\n")
    dialect = Dialect("\t", 0, 3, [0, 1], label=2, text_label=True)
    chunks = list(text_stream.TextStream(path, dialect, "float64").chunks())
    assert np.concatenate([chunk.features for chunk in chunks]).tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert np.concatenate([chunk.labels for chunk in chunks]).tolist() == ["a", "", "b", ""]


def test_a_blank_line_inside_is_refused_with_its_number_also_between_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_stream, "TEXT_PIECE_BYTES", 4)
    path = tmp_path / "table.csv"
    path.write_bytes(b"1,2\n\n\n\n\n\n\n3,4\n5\n")
    with pytest.raises(DataError, match="line 2 "):
        list(text_stream.TextStream(path, Dialect(",", 0, 2, [0, 1]), "float64").chunks())


@pytest.mark.parametrize("packing", [".bz2", ".xz", ".zip"])
def test_other_packings(tmp_path: Path, packing: str) -> None:
    text = frame().to_csv(index=False).encode()
    path = tmp_path / f"table.csv{packing}"
    if packing == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("table.csv", text)
    else:
        path.write_bytes({".bz2": bz2, ".xz": lzma}[packing].compress(text))
    assert np.array_equal(open_data(path, label="y").load()[0], TABLE)


def test_windows_line_ends_byte_order_marks_quotes_and_a_missing_last_line_end(tmp_path: Path) -> None:
    for name, text in {
        "crlf": b"a,b\r\n1,2\r\n3,4\r\n",
        "bom": b"\xef\xbb\xbfa,b\n1,2\n3,4\n",
        "quotes": b'"a","b"\n"1","2"\n3,4\n',
        "no end": b"a,b\n1,2\n3,4",
        "blank end": b"a,b\n1,2\n3,4\n\n\n",
        "padded": b"a, b\n1, 2\n3, 4\n",
        "hash": b"# a,b\n1,2\n3,4\n",
        "hash and blanks, as np.savetxt writes it": b"# a b\n1 2\n3 4\n",
    }.items():
        (tmp_path / "t.csv").write_bytes(text)
        data = open_data(tmp_path / "t.csv")
        assert data.names == ["a", "b"], name
        assert data.load()[0].tolist() == [[1, 2], [3, 4]], name


def test_a_label_cannot_be_dropped_whatever_else_the_table_holds(tmp_path: Path) -> None:
    for text in ("a,b\n1,2\n3,4\n", "a,b\n1,2\nx,4\n"):
        (tmp_path / "t.csv").write_text(text)
        with pytest.raises(UsageError, match="leaves out the label column 'b'"):
            open_data(tmp_path / "t.csv", label="b", drop=["b"])


def test_a_file_without_pyarrow_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame().to_csv(tmp_path / "t.csv", index=False)
    with_arrow = open_data(tmp_path / "t.csv", label="y").load()
    monkeypatch.setattr("flegel.datasets.formats.text_parse.import_pyarrow_csv", lambda: None)
    without = open_data(tmp_path / "t.csv", label="y").load()
    assert np.array_equal(with_arrow[0], without[0])
    assert np.array_equal(with_arrow[1], without[1])
    (tmp_path / "t.csv").write_text("1,2\n3,x\n")
    with pytest.raises(DataError, match="line 2, column 2"):
        open_data(tmp_path / "t.csv").load()


@pytest.mark.parametrize(
    ("text", "told"),
    [("1,2\n3,nan\n", "column 2 has no value in 1 of 2"), ("1,2\n3,4,5\n", "line 2 has 3 fields where 2")],
)
def test_bad_rows_are_named_without_pyarrow_too(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flegel.datasets.formats.text_parse.import_pyarrow_csv", lambda: None)
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=told):
        open_data(tmp_path / "t.csv").load()


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    frame().to_parquet(tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install 'flegel\[parquet\]'"):
        open_data(tmp_path / "t.parquet")


def test_labels_that_are_words_become_numbers_of_classes(tmp_path: Path) -> None:
    table = frame()
    table["y"] = np.array(["low", "mid", "high"])[LABELS]
    wanted = np.array([1, 2, 0])[LABELS]
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        data = open_data(tmp_path / name, label="y")
        assert data.classes == ["high", "low", "mid"]
        assert np.array_equal(data.load()[1], wanted)
        check_shards(data, 2)
    for number, part in enumerate((table[:250], table[250:])):
        part.to_csv(tmp_path / f"part-{number}.csv", index=False)
    data = open_data(tmp_path / "part-*.csv", label="y")
    assert np.array_equal(data.load()[1], wanted)


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    table = frame()
    table["name"] = "x"
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_parquet(tmp_path / "t.parquet")
    for path in tmp_path.iterdir():
        data = open_data(path, label="y", columns=["c", "a"])
        assert np.array_equal(data.load()[0], TABLE[:, [2, 0]])


def test_an_arrow_stream_is_read_by_batches_like_an_arrow_file(tmp_path: Path) -> None:
    """Tables of Hugging Face's `datasets` are such streams; they were refused as damaged."""
    import pyarrow as pa

    table = pa.Table.from_pandas(frame())
    for name, write in (("file.arrow", pa.ipc.new_file), ("stream.arrow", pa.ipc.new_stream)):
        with pa.OSFile(str(tmp_path / name), "wb") as file, write(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    for name in ("file.arrow", "stream.arrow"):
        data = open_data(tmp_path / name, label="y")
        features, labels = data.load()
        assert np.array_equal(features, TABLE) and np.array_equal(labels, LABELS)
        check_shards(data, 3)
    assert open_blocks(tmp_path / "stream.arrow").counts == [3] * 166 + [2]


def test_an_arrow_stream_with_dictionaries_is_refused_with_a_way_out(tmp_path: Path) -> None:
    import pyarrow as pa

    table = pa.table({"a": pa.array(["x", "y", "x"]).dictionary_encode(), "b": [1.0, 2.0, 3.0]})
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match=r"stream with dictionaries.*new_file"):
        open_data(tmp_path / "t.arrow")


@pytest.mark.parametrize("group", [20, 100, 1000])
def test_parquet_row_groups(tmp_path: Path, group: int) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pandas(frame()), tmp_path / "t.parquet", row_group_size=group)
    data = open_data(tmp_path / "t.parquet", label="y")
    assert data.names == ["a", "b", "c", "d"]
    assert np.array_equal(data.load()[0], TABLE)
    check_shards(data, 3)
    check_shards(data, 2, "contiguous")
    assert data.sample(50)[0].shape == (50, 4)


@pytest.mark.parametrize("suffix", [".feather", ".arrow"])
def test_arrow_files(tmp_path: Path, suffix: str) -> None:
    from pyarrow import feather

    feather.write_feather(frame(), tmp_path / f"t{suffix}", chunksize=100, compression="uncompressed")
    data = open_data(tmp_path / f"t{suffix}", label="y")
    assert np.array_equal(data.load()[0], TABLE)
    check_shards(data, 2)


def test_npz_by_the_usual_names_and_by_given_ones(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", X=TABLE, y=LABELS)
    features, labels = open_data(tmp_path / "a.npz").load()
    assert np.array_equal(features, TABLE)
    assert np.array_equal(labels, LABELS)
    np.savez(tmp_path / "b.npz", TABLE)
    assert open_data(tmp_path / "b.npz").load()[1] is None
    np.savez(tmp_path / "c.npz", features=TABLE, kind=np.array(["u", "v"])[LABELS % 2])
    data = open_data(tmp_path / "c.npz", label="kind")
    assert data.classes == ["u", "v"]
    check_shards(data, 2)
    with pytest.raises(DataError, match="no array 'z'"):
        open_data(tmp_path / "c.npz", label="z")


def test_a_scipy_sparse_file(tmp_path: Path) -> None:
    sparse = needs.library("scipy.sparse")
    matrix = sparse.random(60, 9, 0.3, "csr", random_state=1)
    sparse.save_npz(tmp_path / "m.npz", matrix)
    data = open_data(tmp_path / "m.npz")
    assert data.sparse
    assert np.array_equal(dense(data.load()[0]), matrix.toarray())
    check_shards(data, 4)


@pytest.mark.parametrize("first", [0, 1])
def test_libsvm_agrees_with_scikit_learn(tmp_path: Path, first: int) -> None:
    sparse = needs.library("scipy.sparse")
    datasets = needs.library("sklearn.datasets")
    matrix = sparse.random(300, 40, 0.2, "csr", random_state=2, data_rvs=lambda n: RNG.normal(0, 1e3, n))
    path = str(tmp_path / "m.libsvm")
    datasets.dump_svmlight_file(matrix, LABELS[:300], path, zero_based=first == 0, comment="made for a test")
    data = open_data(path, dtype="float64", width=40)
    theirs, labels = datasets.load_svmlight_file(path, n_features=40, zero_based=first == 0)
    features, ours = data.load()
    assert np.array_equal(dense(features), theirs.toarray())
    assert np.array_equal(ours, labels)
    check_shards(data, 3)


def test_libsvm_numbers_of_every_kind(tmp_path: Path) -> None:
    numbers = [
        "1",
        "-2.5",
        "+3",
        "1e-3",
        "1E5",
        "123456789012345678",
        "0.1234567890123456789012",
        "1e300",
        ".5",
        "7.",
    ]
    numbers += ["3.141592653589793", "2.2250738585072014e-308", "9007199254740993", "-0"]
    line = " ".join(f"{k + 1}:{text}" for k, text in enumerate(numbers))
    (tmp_path / "m.svm").write_text(f"-1 qid:3 {line} # remark 1:2\r\n\n+1\n")
    features, labels = open_data(tmp_path / "m.svm", dtype="float64").load()
    assert labels.tolist() == [-1, 1]
    assert dense(features)[0].tolist() == [float(text) for text in numbers]


def test_idx_images_with_their_labels(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (50, 3, 4)).astype(np.uint8)
    answers = RNG.integers(0, 10, 50).astype(np.uint8)
    head = b"\0\0\x08\x03" + np.array(images.shape, ">u4").tobytes()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + images.tobytes()))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(
        gzip.compress(b"\0\0\x08\x01" + np.array([50], ">u4").tobytes() + answers.tobytes())
    )
    for spec in (tmp_path, tmp_path / "train-images-idx3-ubyte.gz"):
        data = open_data(spec)
        assert (data.rows, data.columns, data.dtype) == (50, 12, np.float32)
        features, labels = data.load()
        assert np.array_equal(features, images.reshape(50, 12))
        assert np.array_equal(labels, answers)
        check_shards(data, 3)


@pytest.mark.parametrize("style", ["dat", "csv"])
def test_ratings_become_sparse_rows_of_users(tmp_path: Path, style: str) -> None:
    triples = [(7, 30, 4.0), (7, 10, 3.5), (2, 30, 1.0), (9, 20, 5.0), (7, 30, 2.0)]
    if style == "dat":
        path = tmp_path / "ratings.dat"
        path.write_text("".join(f"{u}::{i}::{r}::0\n" for u, i, r in triples))
    else:
        path = tmp_path / "ratings.csv"
        path.write_text("userId,movieId,rating,timestamp\n" + "".join(f"{u},{i},{r},0\n" for u, i, r in triples))
    data = open_data(path)
    assert (data.rows, data.columns, data.names) == (3, 3, ["10", "20", "30"])
    assert dense(data.load()[0]).tolist() == [[0, 0, 1], [3.5, 0, 2], [0, 5, 0]]
    check_shards(data, 2)


def test_dense_ratings_with_99_for_none(tmp_path: Path) -> None:
    (tmp_path / "jokes.csv").write_text("2,99,1.5,-3\n0,99,99,99\n3,1,2,3\n")
    data = open_data(tmp_path / "jokes.csv")
    assert data.sparse
    assert dense(data.load()[0]).tolist() == [[0, 1.5, -3], [0, 0, 0], [1, 2, 3]]
    (tmp_path / "jester-notes.csv").write_text("2,99,1.5,-3\n1,99,99,99\n3,1,2,3\n")
    assert not open_data(tmp_path / "jester-notes.csv").sparse  # the counts are wrong, and a name says nothing
    (tmp_path / "other.csv").write_text("1,99,1.5\n2,4,2\n")
    assert dense(open_data(tmp_path / "other.csv", format="jester").load()[0]).tolist() == [[0, 1.5], [4, 2]]


def objects() -> dict[str, Any]:
    import polars
    import pyarrow

    table = pd.DataFrame(TABLE, columns=list("abcd"))
    return {
        "array": TABLE,
        "fortran": np.asfortranarray(TABLE),
        "list": TABLE.tolist(),
        "pandas": table,
        "polars": polars.from_pandas(table),
        "arrow": pyarrow.Table.from_pandas(table),
    }


@pytest.mark.parametrize("kind", ["array", "fortran", "list", "pandas", "polars", "arrow"])
def test_objects_from_python(kind: str) -> None:
    data = open_data(objects()[kind])
    assert data.in_memory
    assert (data.rows, data.columns, data.labelled) == (500, 4, False)
    features, labels = data.load()
    assert labels is None
    assert features.flags.c_contiguous
    assert np.array_equal(features.astype(np.float32), TABLE)
    with pytest.raises(DataError, match="this process only"):
        data.describe()
    shards = [data.shard(i, 3) for i in range(3)]
    assert sorted(np.concatenate([s.ids for s in shards]).tolist()) == list(range(500))


def test_pairs_frames_with_labels_and_words_as_labels() -> None:
    assert np.array_equal(open_data((TABLE, LABELS)).load()[1], LABELS)
    data = open_data(frame(), label="y")
    assert data.names == ["a", "b", "c", "d"]
    assert np.array_equal(data.load()[1], LABELS)
    words = open_data((TABLE, np.array(["x", "z", "y"])[LABELS]))
    assert words.classes == ["x", "y", "z"]
    assert np.array_equal(words.load()[1], np.array([0, 2, 1])[LABELS])
    with pytest.raises(DataError, match="500 rows but 3 labels"):
        open_data((TABLE, [1, 2, 3]))
    with pytest.raises(UsageError, match="given twice"):
        open_data((frame(), LABELS), label="y")
    with pytest.raises(DataError, match="neither numbers nor text"):
        open_data(pd.DataFrame({"a": [1.0], "b": [{}]}))
    with pytest.raises(UsageError, match="cannot be read as rows"):
        open_data(object())
    with pytest.raises(DataError, match="column 2 has no value in 1 of 1 rows"):
        open_data(np.array([[1.0, np.nan]])).load()


def test_an_array_of_the_right_type_is_not_copied() -> None:
    features, _ = open_data(TABLE).load()
    assert np.shares_memory(features, TABLE)


def test_scipy_matrices_and_torch_tensors() -> None:
    sparse = needs.library("scipy.sparse")
    matrix = sparse.random(40, 7, 0.3, "coo", random_state=3)
    data = open_data((matrix, LABELS[:40]))
    assert np.array_equal(dense(data.load()[0]), matrix.toarray())

    class Tensor:  # what a torch tensor shows to others, where torch itself is not installed
        def detach(self) -> Tensor:
            return self

        def cpu(self) -> Tensor:
            return self

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return TABLE

    assert np.array_equal(open_data(Tensor()).load()[0], TABLE)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("block", [5000, 1700, 900])
def test_tables_read_some_columns_and_rows_of_a_block_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, block: int
) -> None:
    """Whatever part of a row group or batch is in memory at a time, the rows are the same."""
    pa = needs.library("pyarrow")
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(5000, 7)).astype(np.float32), rng.integers(0, 3, 5000)
    names = [f"c{t}" for t in range(7)]
    table, path = pa.table({**dict(zip(names, X.T, strict=True)), "y": y}), tmp_path / f"rows.{kind}"
    if kind == "parquet":
        needs.library("pyarrow.parquet").write_table(table, path, row_group_size=block)
    else:
        with pa.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table, max_chunksize=block)
    monkeypatch.setattr(TableSource, "window_bytes", 64 * 7 * 4)
    whole, ranges = np.array([[0, 5000]]), np.array([[3, 10], [10, 11], [400, 2100], [4000, 4999]])
    windows = []
    for part, decoded in ((32 << 20, 1 << 20), (64 * 7 * 4 * 5, 1000), (1, 1)):
        monkeypatch.setattr(arrow_tables, "PART_BYTES", part)
        monkeypatch.setattr(arrow_tables, "DECODED_NUMBERS", decoded)
        source = TableSource(path, names, "y", "float32")
        windows.append(len(list(source.windows(whole))))
        some, mixed = source.take(ranges), source.take(whole, np.random.default_rng(3))
        wanted = np.concatenate([np.arange(*each) for each in ranges])
        for rows, ids in ((source.take(whole), np.arange(5000)), (some, wanted), (mixed, mixed.ids)):
            assert np.array_equal(rows.ids, ids) and np.array_equal(rows.labels, y[ids])
            assert np.array_equal(rows.features, X[ids])
        assert np.array_equal(np.sort(mixed.ids), np.arange(5000)) and not np.array_equal(mixed.ids, np.arange(5000))
    assert windows[0] < windows[1] < windows[2], "large blocks are cut"


@pytest.mark.parametrize("words", [False, True])
def test_gaps_of_npz_files_are_treated_like_those_of_npy(tmp_path: Path, words: bool) -> None:
    rows = np.array([[1.0, np.nan], [3.0, 4.0], [np.nan, 8.0], [5.0, 6.0]])
    labels = np.array(["no", "no", "yes", "yes"]) if words else np.array([0.0, 0.0, 1.0, 1.0])
    np.savez(tmp_path / "rows.npz", X=rows, y=labels)
    np.save(tmp_path / "rows.npy", rows)
    for missing in ("mean", "median", "drop", "indicator"):
        data, other = (open_data(tmp_path / name, missing=missing) for name in ("rows.npz", "rows.npy"))
        features, found = data.load()
        np.testing.assert_array_equal(features, other.load()[0])
        kept = [1, 3] if missing == "drop" else [0, 1, 2, 3]
        np.testing.assert_array_equal(found, (labels == labels[3])[kept])
    with pytest.raises(DataError, match=r"row 1, column 2 is nan.*leaves such rows out"):
        open_data(tmp_path / "rows.npz").load()


def test_models_answer_for_npz_files_with_gaps(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(200, 3))
    labels = np.array(["no", "yes"])[(rows[:, 0] > 0).astype(int)]
    rows[rng.random(rows.shape) < 0.1] = np.nan
    np.savez(tmp_path / "rows.npz", X=rows, kind=labels)
    np.savez(tmp_path / "new.npz", X=rows)
    given = {"label": "kind", "missing": "mean", "progress": False}
    result = flegel.run(LR(), tmp_path / "rows.npz", **given)
    assert (result.predict(tmp_path / "new.npz") == labels).mean() > 0.9
    assert result.evaluate(tmp_path / "rows.npz", "kind").metrics["accuracy"] > 0.9


def test_files_that_are_no_tables_have_their_own_labels(tmp_path: Path) -> None:
    rows = np.random.default_rng(3).normal(size=(200, 3))
    labels = (rows[:, 0] > 0).astype(float)
    result = flegel.run(LR(), rows, labels, progress=False)
    np.savez(tmp_path / "rows.npz", X=rows, y=labels)
    both = list(zip(rows, labels, strict=True))
    lines = [f"{y:g} " + " ".join(f"{k + 1}:{x:.17g}" for k, x in enumerate(row)) for row, y in both]
    (tmp_path / "rows.libsvm").write_text("\n".join(lines) + "\n")
    for name in ("rows.npz", "rows.libsvm"):
        assert result.evaluate(tmp_path / name).objective == pytest.approx(result.objective, rel=1e-5)
