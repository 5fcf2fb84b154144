"""File and frame forms that people have: each gives the rows that pandas reads, or one sentence that names the way out.

A case is a file or an object, the options of `open_data`, and either pandas' reading of it or words of the refusal.
pandas' frame is encoded here independently: numbers as they are, dates as days, text by `pandas.get_dummies`.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from flegel.datasets import open_data
from flegel.errors import DataError, FlegelError
from tests import needs
from tests.datasets.helpers import dense

Wanted = Callable[[Path], pd.DataFrame]


class Case(NamedTuple):
    make: Callable[[Path], Any]
    wanted: Wanted | str
    options: dict[str, Any]


CASES: dict[str, Case] = {}


def file(
    name: str, content: str | bytes, wanted: Any = None, /, *, suffix: str = ".csv", options: Any = None, **kw: Any
) -> None:
    """A file; `wanted`: words of a refusal, a change of pandas' frame, or None; `kw`: of `pandas.read_csv`."""
    assert name not in CASES
    data = content.encode() if isinstance(content, str) else content

    def make(folder: Path) -> Path:
        path = folder / f"table{suffix}"
        path.write_bytes(data)
        return path

    def read(path: Path) -> pd.DataFrame:
        frame = pd.read_csv(path, **kw)
        return wanted(frame) if wanted is not None else frame

    CASES[name] = Case(make, wanted if isinstance(wanted, str) else read, options or {})


def python(name: str, make: Callable[[], Any], wanted: Any, **options: Any) -> None:
    """An object; `wanted`: words of a refusal, or what makes the frame that it means."""
    assert name not in CASES
    CASES[name] = Case(
        lambda _: make(), wanted if isinstance(wanted, str) else lambda _: pd.DataFrame(wanted()), options
    )


def encoded(frame: pd.DataFrame) -> np.ndarray:
    """pandas' frame as numbers."""
    parts = []
    for k in range(frame.shape[1]):
        column = frame.iloc[:, k]
        if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
            parts.append(column.to_numpy(np.float64)[:, None])
        elif pd.api.types.is_datetime64_any_dtype(column):
            moments = pd.to_datetime(column, utc=True)
            parts.append(((moments - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)).to_numpy()[:, None])
        else:
            parts.append(pd.get_dummies(column).sort_index(axis=1).to_numpy(np.float64))
    return np.concatenate(parts, axis=1)


# -- delimiters, headers, line ends, encodings, packings -----------------------------------------------------

ROWS = [("1", "2.5", "red"), ("2", "-0.5", "blue"), ("3", "1e3", "red"), ("4", "0.25", "green"), ("5", "7", "blue")]
NAMES = ("n", "x", "colour")


def joined(delimiter: str, header: bool = True, end: str = "\n", rows: Any = ROWS, names: Any = NAMES) -> str:
    return end.join(delimiter.join(row) for row in ([names] if header else []) + list(rows)) + end


for title, sign in {"commas": ",", "semicolons": ";", "tabs": "\t", "bars": "|"}.items():
    file(f"{title} with a header", joined(sign), sep=sign)
    file(f"{title} without a header", joined(sign, header=False), sep=sign, header=None)
    file(f"{title}, numbers only", joined(sign, rows=[r[:2] for r in ROWS], names=NAMES[:2]), sep=sign)
file("blanks with a header", joined(" "), sep=" ", suffix=".txt")
file("runs of blanks", "1  2   red\n 3 4 blue\n5  6 red\n", sep=r"\s+", header=None, suffix=".txt")
file("tabs in a .tsv", joined("\t"), sep="\t", suffix=".tsv")
file("a .data file without names", joined(",", header=False), header=None, suffix=".data")
file("line ends of Windows", joined(",", end="\r\n"))
file("line ends of old Macs", joined(",", end="\r"))
file("line ends of old Macs, numbers only", "a,b\r1,2\r3,4\r")
file("line ends of several kinds", "a,b\r\n1,x\n2,y\r\n3,x\n")
file("no last line end", joined(",").rstrip())
file("blank lines inside", "a,b\n1,2\n\n3,4\n\n\n5,6\n")
file("blank lines above", "\n\na,b\n1,2\n3,4\n")
UMLAUTS = "größe,stadt\n1.5,Köln\n2.5,Zürich\n3.5,Köln\n"
file("UTF-8", UMLAUTS)
file("UTF-8 with a mark", UMLAUTS.encode("utf-8-sig"))
file("UTF-16", UMLAUTS.encode("utf-16"), encoding="utf-16")
file("UTF-16, big endian", b"\xfe\xff" + UMLAUTS.encode("utf-16-be"), encoding="utf-16")
file("UTF-16 without a mark", UMLAUTS.encode("utf-16-le"), encoding="utf-16-le")
file("UTF-16, numbers only", "a,b\r\n1,2\r\n3,4\r\n".encode("utf-16"), encoding="utf-16")
file("Latin-1", UMLAUTS.encode("latin-1"), encoding="latin-1")
file("Windows-1252", "preis,währung\n1,€\n2,$\n3,€\n".encode("cp1252"), encoding="cp1252")
zipped = io.BytesIO()
with zipfile.ZipFile(zipped, "w") as archive:
    archive.writestr("inner.csv", joined(","))
for packing, packed in {
    ".gz": gzip.compress(joined(",").encode()),
    ".bz2": bz2.compress(joined(",").encode()),
    ".xz": lzma.compress(joined(",").encode()),
}.items():
    file(f"packed as {packing}", packed, suffix=f".csv{packing}")
file("packed as .zip", zipped.getvalue(), suffix=".zip")

# -- quotes --------------------------------------------------------------------------------------------------

file("quoted names", '"a","b"\n1,x\n2,y\n3,x\n')
file("everything quoted", '"a","b"\n"1","x"\n"2","y"\n"3","x"\n')
file("delimiters in quotes", 'a,b\n1,"x, y"\n2,"z"\n3,"x, y"\n')
file("quotes in quotes", 'a,b\n1,"say ""no"""\n2,z\n3,z\n')
file("line ends in quotes", 'a,b\n1,"two\nlines"\n2,z\n3,z\n')
file("blanks after delimiters", "a, b, c\n1, x, 2\n2, y, 3\n3, x, 4\n", skipinitialspace=True)
file("blanks and quotes", 'a, b\n1, "x, y"\n2, "z"\n3, "z"\n', skipinitialspace=True)
file("an empty name in quotes", '"","b"\n"a",1\n"b",2\n"a",3\n')

# -- numbers -------------------------------------------------------------------------------------------------

file("decimal commas", "a;b\n1,5;2,25\n3,5;-4,125\n", sep=";", decimal=",")
file("decimal commas without names", "1,5;2,25\n3,5;4,1\n", sep=";", decimal=",", header=None)
file("decimal commas between tabs", "a\tb\n1,5\t2\n3,25\t4\n", sep="\t", decimal=",", suffix=".tsv")
file("decimal commas in quotes", 'a,b\n"1,5",2\n"3,25",4\n', decimal=",")
file("decimal commas and thousands", "a;b\n1.234,5;1\n12.000,25;2\n7,5;3\n", sep=";", decimal=",", thousands=".")
file("thousands beside decimal commas", "a;b\n1.234;1,5\n2.500;2,5\n", sep=";", decimal=",", thousands=".")
file("thousands with commas", 'a,b\n"1,234",1\n"12,500,000",2\n3,3\n', thousands=",")
file("thousands and points", 'a,b\n"1,234.5",1\n"2,000.25",2\n', thousands=",")
file("one group, semicolons: decimal", "a;b\n1,234;1\n2,345;2\n", sep=";", decimal=",")
file("one group, commas: thousands", 'a,b\n"1,234",1\n"2,345",2\n', thousands=",")
file("one group, tabs: cannot be told", "a\tb\n1,234\tx\n2,345\ty\n", "either a decimal comma or separates thousands")
file("one group, told", "a\tb\n1,234\tx\n2,345\ty\n", sep="\t", decimal=",", options={"decimal": ","})
file("thousands with blanks", "a;b\n1 234,5;1\n12 000,25;2\n", sep=";", decimal=",", thousands=" ")
file("thousands with apostrophes", "a,b\n1'234.5,x\n12'000.25,y\n", thousands="'")
file("exponents and signs", "a,b\n1e3,+2\n-2.5E-3,.5\n3.,-0\n")
file("leading zeros", "a,b\n007,x\n010,y\n003,x\n")
file("underscores are no numbers", "a,b\n1_000,1\n2_000,2\n1_000,3\n")
file("hexadecimal is no number", "a,b\n0x10,1\n0x20,2\n0x10,3\n")
file("an infinite number", "a,b\n1,x\ninf,y\n3,x\n", "is inf; every value must be a finite")
file("large numbers", "a,b\n123456789012,x\n5,y\n", options={"dtype": "float64"})

# -- gaps ----------------------------------------------------------------------------------------------------

for word in ("", "NA", "nan", "NULL", "N/A", "None", "?", "-", "#N/A"):
    text = f"a,b,c\n1,2,x\n{word},4,y\n5,6,x\n"
    file(f"a gap written {word!r}", text, r"column 1 \(a\) has no value in 1 of 3 rows \(first: line 3\)")
    file(
        f"a gap written {word!r}, left out",
        text,
        pd.DataFrame.dropna,
        options={"missing": "drop"},
        na_values=["?", "-"],
    )
GAPS = "a,b,c\n1,2,x\n,4,y\n6,,x\n8,8,\n9,1,y\n"


def filled(how: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def fill(frame: pd.DataFrame) -> pd.DataFrame:
        numbers = frame[["a", "b"]]
        parts = [numbers.fillna(numbers.mean() if how != "median" else numbers.median()), frame["c"].fillna("~")]
        whole = pd.concat(parts, axis=1)
        if how == "indicator":
            whole.insert(1, "a?", numbers["a"].isna())
            whole.insert(3, "b?", numbers["b"].isna())
        return whole

    return fill


for how in ("mean", "median", "indicator"):
    file(f"gaps, {how}", GAPS, filled(how), options={"missing": how})
file("gaps in text only", "a,b\n1,x\n2,\n3,y\n", r"column 2 \(b\) has no value in 1 of 3 rows")
file("a named column without values", "a,b\n1,\n2,\n", r"column 2 \(b\) has no value in 2 of 2 rows")
file("a column without values, left out", "a,b\n1,\n2,\n", lambda f: f[["a"]], options={"missing": "mean"})
file("only rows with gaps", "a,b\n1,\n,2\n", "every row has a gap", options={"missing": "drop"})
file(
    "a label is missing", "a,y\n1,x\n2,\n3,z\n", r"1 of 3 rows \(first: line 3\) have no label", options={"label": "y"}
)
file("a label is missing, left out", "a,y\n1,x\n2,\n3,z\n", lambda f: f.dropna()[["a"]],
     options={"label": "y", "missing": "mean"})  # fmt: skip

# -- booleans and dates --------------------------------------------------------------------------------------

for no, yes in (
    ("False", "True"),
    ("false", "true"),
    ("FALSE", "TRUE"),
    ("no", "yes"),
    ("N", "Y"),
    ("f", "t"),
    ("0", "1"),
):
    file(f"booleans written {no} and {yes}", f"a,b\n1,{yes}\n2,{no}\n3,{yes}\n", true_values=[yes], false_values=[no])
DATES = {
    "dates": ("2024-01-31", "2023-12-01", {}),
    "dates with slashes": ("2024/01/31", "2023/12/01", {}),
    "dates and times": ("2024-01-31T12:30:00", "2023-12-01T00:00:15", {}),
    "dates, blank, times": ("2024-01-31 12:30", "2023-12-01 00:00", {}),
    "times of Greenwich": ("2024-01-31T12:30:00Z", "2023-12-01T00:00:15Z", {}),
    "times with offsets": ("2024-01-31T12:30:00+02:00", "2023-12-01T00:00:15-0530", {"utc": True}),
    "fractions of seconds": ("2024-01-31 12:30:00.250", "2023-12-01 00:00:15.5", {"format": "ISO8601"}),
    "dates with points": ("31.01.2024", "1.12.2023", {"dayfirst": True}),
    "day first": ("31/01/2024", "01/12/2023", {"dayfirst": True}),
    "month first": ("01/31/2024", "12/01/2023", {}),
    "names of months": ("31 Jan 2024", "1 December 2023", {"format": "mixed"}),
    "American names of months": ("Jan 31, 2024", "December 1, 2023", {"format": "mixed"}),
}
for title, (one, two, how_read) in DATES.items():

    def to_dates(frame: pd.DataFrame, how_read: dict[str, Any] = how_read) -> pd.DataFrame:
        return frame.assign(d=pd.to_datetime(frame["d"], **how_read))

    file(title, f'a,d\n1,"{one}"\n2,"{two}"\n3,"{one}"\n', to_dates, options={"dtype": "float64"})
file("day or month", "a,d\n1,01/02/2024\n2,03/04/2024\n", "cannot be told which number of '01/02/2024' is the day")
file("a date among numbers", "a,b\n1,x\n2,y\n3,x\n2024-01-01,y\n", "'2024-01-01' is not a number")
file("a word among dates", "a,d\n1,2024-01-01\n2,2024-01-02\n3,soon\n", "'soon' is not a date")

# -- text ----------------------------------------------------------------------------------------------------

CODES = "a,b,c\n1,x,u\n2,y,v\n3,x,u\n4,z,v\n"
file("text, one column each", CODES)
file("text, ordered", CODES, lambda f: f.assign(b=f["b"].map({"x": 0, "y": 1, "z": 2}), c=f["c"].map({"u": 0, "v": 1})),
     options={"categorical": "ordinal"})  # fmt: skip
file("text, left out", CODES, lambda f: f[["a"]], options={"categorical": "drop"})
UNIQUE = "id,a\n" + "".join(f"key{k},{k % 7}\n" for k in range(40))
file("names of rows are left out", UNIQUE, lambda f: f[["a"]])
file("names of rows are kept", UNIQUE, options={"categorical": "onehot"})
file("always the same text", "a,b\n1,x\n2,x\n3,x\n", lambda f: f[["a"]])
file("a word among numbers", "a,b\n1,2\n3,oops\n5,6\n", r"line 3, column 2 \(b\): 'oops' is not a number")
file("a word among numbers, as text", "a,b\n1,2\n3,oops\n5,6\n", options={"categorical": "onehot"})
file("codes of digits and letters", "a,b\n1,12A\n2,13\n3,12A\n4,9X\n", options={"categorical": "onehot"})
file("blanks around text", "a,b\n1,x \n2, x\n3,y\n", lambda f: f.assign(b=f["b"].str.strip()))
file("nothing but text", "b,c\nx,u\ny,v\nx,u\n")
file("nothing but text, without names", "x,u\ny,v\nx,u\nx,v\n", header=None)
file(
    "no features are left",
    "id,a\nx,1\ny,2\n",
    "no column of features besides the label",
    options={"drop": ["id"], "label": "a"},
)

# -- names, indexes, chosen columns --------------------------------------------------------------------------

file("an index without a name", ",a,b\n0,5,x\n1,6,y\n2,7,x\n", index_col=0)
file("an index without a name, numbers", ",a,b\n0,5,1.5\n1,6,2.5\n2,7,3.5\n", index_col=0)
file("an index from 1", '"","a","b"\n"1",5,"x"\n"2",6,"y"\n"3",7,"x"\n', index_col=0)
file("names of rows as R writes them", "a b\nr1 5 2\nr2 6 3\nr3 7 4\n", sep=" ", suffix=".txt")
file("an unnamed column that is no index", ",a\n7,5\n3,6\n9,7\n")
file("two columns of one name", "a,a,b\n1,2,x\n3,4,y\n5,6,x\n")
file("a delimiter at the end of lines", "a,b,\n1,2,\n3,4,\n", lambda f: f[["a", "b"]], index_col=False)
file("names that are numbers", "country,2019,2020\nFR,1.5,2\nDE,3,4.5\nIT,5,6\n")
file("a header with a hash", "# a,b\n1,x\n2,y\n3,x\n", lambda f: f.set_axis(["a", "b"], axis=1))
file("chosen by name", CODES, lambda f: f[["c", "a"]], options={"columns": ["c", "a"]})
file("chosen by number", CODES, lambda f: f[["a", "b"]], options={"columns": [0, "1"]})
file("left out by name", CODES, lambda f: f[["a", "c"]], options={"drop": ["b"]})
file("left out by number", CODES, lambda f: f[["b", "c"]], options={"drop": [0]})
file("the last is the label", CODES, lambda f: f[["a", "b"]], options={"label": -1})
file("a label by name", CODES, lambda f: f[["a", "c"]], options={"label": "b"})
file("no such column", CODES, "no column 'bb'; did you mean", options={"drop": ["bb"]})
file("the label is left out", CODES, "leaves out the label", options={"drop": ["b"], "label": "b"})
file("an unknown choice", CODES, "--missing men is not known; did you mean 'mean'", options={"missing": "men"})
file("a short row", "a,b\n1,x\n2\n3,x\n", "line 3 has 1 field where 2 are expected")
file("a long row", "a,b\n1,x\n2,y,z\n3,x\n", "line 3 has 3 fields where 2 are expected")

# -- other formats -------------------------------------------------------------------------------------------

for suffix in (".xls", ".json", ".pkl", ".h5", ".sav", ".sqlite"):
    other = "JSON lines" if suffix == ".json" else "CSV, Parquet or .npy"
    file(f"a {suffix}", b"\x00\x01\x02", f"is not read; save it as {other}", suffix=suffix)
FRAME = pd.DataFrame(
    {
        "a": [1.5, 2.5, 3.5, 4.5],
        "c": ["x", "y", "x", "z"],
        "d": pd.to_datetime(["2024-01-31", "2023-12-01", "2024-02-29", "1969-12-31"]),
        "e": [True, False, True, True],
        "n": [1, 2, 3, 4],
    }
)
HOLES = FRAME.assign(a=[1.5, None, 3.5, 4.5], c=["x", "y", None, "z"])


def stored(name: str, frame: pd.DataFrame, wanted: Any, suffix: str = ".parquet", **options: Any) -> None:
    def make(folder: Path) -> Path:
        path = folder / f"t{suffix}"
        frame.to_parquet(path) if suffix == ".parquet" else frame.reset_index(drop=True).to_feather(path)
        return path

    CASES[name] = Case(make, wanted if isinstance(wanted, str) else lambda _: wanted, options)


for suffix in (".parquet", ".feather"):
    stored(f"{suffix}: text, dates, booleans", FRAME, FRAME, suffix, dtype="float64")
    stored(f"{suffix}: gaps", HOLES, "has no value in 1 of 4 rows", suffix)
    stored(f"{suffix}: gaps left out", HOLES, HOLES.dropna(), suffix, missing="drop", dtype="float64")
stored("parquet: a named index", FRAME.set_index("n"), FRAME[["a", "c", "d", "e"]], dtype="float64")
stored("parquet: another index", FRAME.set_index(pd.Index([5, 6, 9, 2])), FRAME, dtype="float64")
stored("parquet: categories", FRAME.assign(c=FRAME["c"].astype("category")), FRAME, dtype="float64")
stored("parquet: nullable types", FRAME[["a", "n"]].convert_dtypes(), FRAME[["a", "n"]])
stored("parquet: gaps in whole numbers", pd.DataFrame({"n": pd.array([1, None, 3], "Int64"), "m": [1, 2, 3]}),
       pd.DataFrame({"n": [1.0, 2.0, 3.0], "m": [1, 2, 3]}), missing="mean")  # fmt: skip


def partitioned(folder: Path) -> Path:
    for year, part in ((2023, FRAME[:2]), (2024, FRAME[2:])):
        for kind in ("p", "q"):
            place = folder / "set" / f"year={year}" / f"kind={kind}"
            place.mkdir(parents=True)
            part[["a", "c"]].to_parquet(place / "part-0.parquet")
    return folder / "set"


def partitioned_wanted(_: Path) -> pd.DataFrame:
    parts = [
        part[["a", "c"]].assign(year=year, kind=kind)
        for year, part in ((2023, FRAME[:2]), (2024, FRAME[2:]))
        for kind in ("p", "q")
    ]
    return pd.concat(parts)


CASES["keys in the names of folders"] = Case(partitioned, partitioned_wanted, {})


def several(*texts: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "set").mkdir()
        for k, text in enumerate(texts):
            (folder / "set" / f"part{k}.csv").write_text(text)
        return folder / "set"

    return make


CASES["files with columns in another order"] = Case(
    several("a,b\n1,x\n2,y\n", "b,a\nx,3\nz,4\n"),
    lambda _: pd.DataFrame({"a": [1, 2, 3, 4], "b": ["x", "y", "x", "z"]}),
    {},
)
CASES["files with other columns"] = Case(several("a,b\n1,x\n", "a,c\n1,x\n"), "has a column 'c' that", {})
CASES["the name of a file is the label"] = Case(
    several("a,b\n1,x\n2,y\n", "a,b\n3,x\n"), lambda _: pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "x"]}),
    {"label": "@file"},
)  # fmt: skip


def numpy_file(folder: Path) -> Path:
    np.save(folder / "t.npy", np.array([[1.0, np.nan, 3.0], [4.0, 5.0, 6.0]]))
    return folder / "t.npy"


CASES[".npy: chosen columns"] = Case(numpy_file, lambda _: pd.DataFrame([[3, 1], [6, 4]]), {"columns": [2, 0]})
CASES[".npy: gaps"] = Case(numpy_file, lambda _: pd.DataFrame([[1, 5, 3], [4, 5, 6]]), {"missing": "mean"})

# -- objects -------------------------------------------------------------------------------------------------

python("frame: mixed", lambda: FRAME, lambda: FRAME)
python("frame: an index is no feature", lambda: FRAME.set_index("c"), lambda: FRAME[["a", "d", "e", "n"]])
python("frame: categories", lambda: FRAME.assign(c=FRAME["c"].astype("category")), lambda: FRAME)
python("frame: gaps", lambda: HOLES, "has no value in 1 of 4 rows")
python("frame: gaps left out", lambda: HOLES, HOLES.dropna, missing="drop")
python("frame: nullable types", lambda: FRAME[["a", "e", "n"]].convert_dtypes(), lambda: FRAME[["a", "e", "n"]])
python("frame: nullable gaps", lambda: pd.DataFrame({"n": pd.array([1, None], "Int64"), "b": [1, 2]}),
       "has no value in 1 of 2 rows")  # fmt: skip
python("frame: times with a zone", lambda: FRAME.assign(d=FRAME["d"].dt.tz_localize("Asia/Tokyo")),
       lambda: FRAME.assign(d=FRAME["d"].dt.tz_localize("Asia/Tokyo")))  # fmt: skip
python("frame: durations", lambda: pd.DataFrame({"t": pd.to_timedelta([1, 36], "h"), "a": ["x", "y"]}),
       lambda: {"t": [1 / 24, 1.5], "a": ["x", "y"]})  # fmt: skip
python("frame: periods", lambda: pd.DataFrame({"t": pd.period_range("2024-01", periods=2, freq="M"), "a": [1, 2]}),
       lambda: {"t": pd.to_datetime(["2024-01-01", "2024-02-01"]), "a": [1, 2]})  # fmt: skip
python("frame: whole numbers as objects", lambda: FRAME[["n"]].astype(object), lambda: FRAME[["n"]])
python("frame: numbers as text", lambda: FRAME[["n", "a"]].astype(str), lambda: FRAME[["n", "a"]])
python("frame: two columns of one name", lambda: pd.DataFrame([[1, "x"], [2, "y"]], columns=["a", "a"]),
       lambda: pd.DataFrame([[1, "x"], [2, "y"]]))  # fmt: skip
python("frame: names of two levels", lambda: pd.DataFrame([[1, 2.5], [3, 4]], columns=[("a", "x"), ("a", "y")]),
       lambda: [[1, 2.5], [3, 4]])  # fmt: skip
python("frame: sparse columns", lambda: pd.DataFrame({"a": pd.arrays.SparseArray([0, 0, 5]), "b": ["x", "y", "x"]}),
       lambda: {"a": [0, 0, 5], "b": ["x", "y", "x"]})  # fmt: skip
python("frame: lists in cells", lambda: pd.DataFrame({"a": [1, 2], "b": [[1], [2]]}), "holds list objects")
python("frame: complex numbers", lambda: pd.DataFrame({"a": [1j, 2j]}), "complex numbers")
python("dict of columns", lambda: {"a": [1, 2], "b": ["x", "y"]}, lambda: {"a": [1, 2], "b": ["x", "y"]})
python("dict of unequal columns", lambda: {"a": [1, 2], "b": ["x"]}, "different lengths")
python("list of dicts", lambda: [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], lambda: {"a": [1, 2], "b": ["x", "y"]})
python("list of rows", lambda: [[1, "x"], [2, "y"]], lambda: [[1, "x"], [2, "y"]])
python("list of rows of unequal length", lambda: [[1, 2], [3]], "rows of equal length")
python("structured array", lambda: np.array([(1, "x"), (2, "y")], [("a", "i4"), ("b", "U3")]),
       lambda: {"a": [1, 2], "b": ["x", "y"]})  # fmt: skip
python(
    "array of objects", lambda: np.array([[1, "x", None], [2, "y", None]], object)[:, :2], lambda: [[1, "x"], [2, "y"]]
)
python("array of numbers as objects", lambda: np.array([[1, 2.5], [3, 4]], object), lambda: [[1, 2.5], [3, 4]])
python("array of text", lambda: np.array([["x", "1"], ["y", "2"]]), lambda: [["x", 1], ["y", 2]])
python("array with a gap", lambda: np.array([[1.0, np.nan], [2.0, 3.0]]), "column 2 has no value in 1 of 2 rows")
python("array with a gap, filled in", lambda: np.array([[1.0, np.nan], [2.0, 3.0]]), lambda: [[1, 3], [2, 3]],
       missing="mean")  # fmt: skip
MASKED = np.ma.array([[1.0, -999.0], [2.0, 3.0]], mask=[[0, 1], [0, 0]])
python("masked array", lambda: MASKED, "column 2 has no value in 1 of 2 rows")
python("masked array, left out", lambda: MASKED, lambda: [[2, 3]], missing="drop")
python("masked array without masked values", lambda: np.ma.array([[1.0, 2.0], [3.0, 4.0]]), lambda: [[1, 2], [3, 4]])
python("whole numbers, masked", lambda: np.ma.array([[1, -9], [2, 3]], mask=[[0, 1], [0, 0]]), lambda: [[1, 3], [2, 3]],
       missing="median")  # fmt: skip
python("array of complex numbers", lambda: np.array([[1j, 2]]), "complex numbers")
python("array of dates", lambda: np.array([["2024-01-01", "2024-01-02"]], "datetime64[D]"),
       lambda: [[pd.Timestamp("2024-01-01"), pd.Timestamp("2024-01-02")]])  # fmt: skip
python("labels that are None", lambda: ([[1.0], [2.0], [3.0]], ["a", None, "b"]), "1 of 3 rows .* have no label")
python("labels that are NaN", lambda: ([[1.0], [2.0], [3.0]], [0.0, np.nan, 1.0]), "1 of 3 rows .* have no label")
python("labels that are None, left out", lambda: ([[1.0], [2.0], [3.0]], ["a", None, "b"]), lambda: [[1], [3]],
       missing="drop")  # fmt: skip
python("text and labels apart", lambda: (FRAME[["a", "c"]], ["u", "v", "u", "v"]), lambda: FRAME[["a", "c"]])
python("chosen columns of an array", lambda: np.arange(6.0).reshape(2, 3), lambda: [[2, 0], [5, 3]], columns=[2, 0])
python("left out columns of a frame", lambda: FRAME, lambda: FRAME[["a", "c", "e"]], drop=["d", "n"])
python("nothing that holds rows", object, "cannot be read as rows")


def polars(frame: pd.DataFrame) -> Any:
    pl = needs.library("polars")
    return pl.DataFrame({name: frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame})


def arrow(frame: pd.DataFrame) -> Any:
    return needs.library("pyarrow").Table.from_pandas(frame)


python("polars: mixed", lambda: polars(FRAME), lambda: FRAME)
python("polars: gaps", lambda: polars(HOLES), "has no value in 1 of 4 rows")
python("polars: lazy", lambda: polars(FRAME[["a", "n"]]).lazy(), lambda: FRAME[["a", "n"]])
python("arrow: mixed", lambda: arrow(FRAME), lambda: FRAME)
python("arrow: gaps left out", lambda: arrow(HOLES), HOLES.dropna, missing="drop")


def test_there_are_enough_forms() -> None:
    assert len(CASES) >= 120


@pytest.mark.parametrize("name", CASES)
def test_a_form_gives_the_rows_that_pandas_reads_or_one_sentence(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    given = case.make(tmp_path)
    if isinstance(case.wanted, str):
        with pytest.raises(FlegelError, match=case.wanted) as caught:
            open_data(given, **case.options).load()
        text = str(caught.value)
        assert caught.value.exit_code == 2 and "\n" not in text and len(text) < 500
        assert not text.endswith(("..", "?.")), text
        return
    features = dense(open_data(given, **case.options).load()[0])
    wanted = encoded(case.wanted(given))
    assert features.shape == wanted.shape
    np.testing.assert_allclose(features, wanted, rtol=1e-7 if features.dtype == np.float64 else 1e-6, atol=1e-9)


def test_numbers_with_points_and_with_groups_in_one_column_are_told(tmp_path: Path) -> None:
    """Found by fuzzing: a line break was lost, and two numbers became one with two points."""
    (tmp_path / "rows.csv").write_text("a,b\n0.126,1.5\n-1.280.109,2.5\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"'-1\.280\.109' is either a decimal comma or separates thousands"):
        open_data(str(tmp_path / "rows.csv"))


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
@pytest.mark.parametrize("name", ["rows.npz", "rows.csv.zip"])
def test_members_that_python_may_read_for_ever_are_refused(name: str, method: int, tmp_path: Path) -> None:
    """Found by fuzzing: the reader of a member by LZMA or bzip2 does not end where the member is cut off."""
    with zipfile.ZipFile(tmp_path / name, "w", method) as archive:
        archive.writestr("X.npy" if name.endswith("npz") else "rows.csv", b"a,b\n" + bytes(4000))
    with pytest.raises(DataError, match="is compressed by a method that is not known here"):
        open_data(str(tmp_path / name))
