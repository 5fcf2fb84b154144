"""`open_data`: resolve a name, a path, an address or a Python object to a `Dataset`.

Reads only what the shape of the set requires, never all rows of a file with random access.
"""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.catalog import registry
from flegel.datasets.dataset import Dataset
from flegel.datasets.formats.readers import are_tables, files_are_plain, open_files, open_gapped, open_raw
from flegel.datasets.formats.registry import TABLE, check_format
from flegel.datasets.rows.keys import keys_from_column
from flegel.datasets.rows.options import CATEGORICAL, MISSING, Options, check_choice
from flegel.datasets.rows.weights import weights_from_column
from flegel.datasets.tables.columns import RawTable
from flegel.datasets.tables.ratings import recognized
from flegel.datasets.tables.treatment import Treatment
from flegel.errors import DataError, UsageError, nearest, warn
from flegel.loading.regular_files import check_regular
from flegel.wording import option


def open_data(
    spec: Any,
    *,
    label: str | int | None = None,
    weight: str | int | None = None,
    keep_together: str | int | None = None,
    rows: int | None = None,
    dtype: str | None = None,
    columns: list[str | int] | None = None,
    delimiter: str | None = None,
    header: bool | None = None,
    format: str | None = None,
    width: int | None = None,
    drop: list[str | int] | None = None,
    categorical: str = "auto",
    categories: list[str | int] | None = None,
    missing: str = "error",
    decimal: str | None = None,
    sparse: bool = True,
    ratings: bool = False,
    codes: bool = False,
) -> Dataset:
    """Open a registered name (`higgs`, `blobs:100000`), a file, folder, glob or URL, or rows from Python.

    `label` is a column's name or number (from 0); `weight` that of a column of weights, by number among the features;
    `keep_together` that of a column of keys, likewise: rows of one key stay on one worker;
    `rows` keeps only the first rows; `columns` chooses the features and `drop` leaves some out; `categorical` says what
    text becomes (auto, onehot, ordinal, drop; with `codes` auto is codes 0, 1, …), `categories` which columns are
    treated as text though they hold numbers, `missing` what gaps become (error, drop, mean, median, indicator, keep);
    `sparse` allows sparse rows where one-hot columns are many; `dtype` is float32 or float64. `delimiter`, `decimal`,
    `header` and `format` override what is guessed from a file (`format="ratings"`, with the `columns` of user, item and
    rating, and `format="table"`, which never takes a table for ratings, also from rows of Python); `ratings` takes
    three or four columns for (user, item, rating[, time]) where they look like that; `width` is the least number of
    columns of sparse rows.
    """
    if dtype not in (None, "float32", "float64"):
        raise UsageError(f"dtype={dtype!r} is not known; use float32 or float64.")
    if rows is not None and rows < 1:
        raise UsageError(f"rows={rows} selects no rows; use at least 1.")
    check_choice(categorical, CATEGORICAL, "categorical")
    check_choice(missing, MISSING, "missing")
    check_format(format)
    options = Options(
        label, dtype, columns, delimiter, header, format, width, drop, categorical, missing, sparse, decimal, ratings,
        keep_together, categories, codes,
    )  # fmt: skip
    return _with_keys(_opened(spec, rows, options, weight), keep_together)


def _opened(spec: Any, rows: int | None, options: Options, weight: str | int | None) -> Dataset:
    """With weights, without keys."""
    if isinstance(spec, Dataset):
        return _with_weights(spec, weight)
    if isinstance(spec, str | Path):
        data = _open_spec(str(spec), rows, options)
        data.label_place = _label_place(options.label, data)
        return _with_weights(data, weight)
    from flegel.datasets.formats.python_objects import source_from_object
    from flegel.datasets.lazy.parts import writer_of

    if writer_of(spec) is not None:
        return _with_weights(_keep_rows(_written(spec, options), rows), weight)
    source = source_from_object(spec, options)
    return _with_weights(_keep_rows(Dataset("(rows from Python)", source, 0), rows), weight)


def _written(value: Any, options: Options) -> Dataset:
    """Rows that something else computes or streams, in files of this host that last as long as the data set."""
    from flegel.datasets.lazy.parts import write_parts

    folder = Path(tempfile.mkdtemp(prefix="flegel-rows-", dir=os.environ.get("FLEGEL_SCRATCH")))
    try:
        label = write_parts(value, folder)
        if label is not None and options.label is not None:
            raise UsageError("Labels are given twice; give them either as the second of the pair or as label=.")
        options = options if label is None else options._replace(label=label)
        data = Dataset(f"(rows of a {type(value).__name__})", open_files([folder], options, str(folder)), 0)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(data.source, shutil.rmtree, folder, ignore_errors=True)
    return data


def _label_place(label: str | int | None, data: Dataset) -> int | None:
    """The label's number among the columns of a table without names."""
    try:
        return None if label is None or data.names else int(label) % (data.columns + 1)
    except ValueError:
        return None


def _with_weights(data: Dataset, weight: str | int | None) -> Dataset:
    if weight is None:
        return data
    if data.weighted:
        raise UsageError("Weights are given twice; give them either as the third of the triple or as weight=.")
    return replace(data, source=weights_from_column(data.source, weight))


def _with_keys(data: Dataset, column: str | int | None) -> Dataset:
    if column is None:
        return data
    return replace(data, source=keys_from_column(data.source, column))


def _keep_rows(data: Dataset, rows: int | None) -> Dataset:
    data.rows = data.source.rows if rows is None else min(rows, data.source.rows)
    return data


def _open_spec(spec: str, rows: int | None, options: Options) -> Dataset:
    """A name of the catalog (`higgs:200000` with a number of rows), else a path, a pattern or a URL."""
    name, found, number = spec.partition(":")
    if name in registry.names():
        if found:
            try:
                rows = int(float(number.replace("_", "")))
            except ValueError:
                raise UsageError(f"{spec!r}: {number!r} is no number of rows; use for example {name}:200000.") from None
            if rows < 1:
                raise UsageError(f"{spec!r} selects no rows; use at least {name}:1.")
        return _open_registered(name, rows, options)
    paths = _paths(spec)
    if paths is not None:
        data = _keep_rows(Dataset(spec, open_files(paths, options, spec), 0), rows)
        data.remote = spec if "://" in spec else None
        return data
    if "/" in spec or "." in spec or "\\" in spec:
        raise DataError(f"{spec} does not exist; check the path.")
    raise UsageError(f"There is no data set and no file {spec!r}{nearest(name, registry.names())}")


def _open_registered(name: str, rows: int | None, options: Options) -> Dataset:
    """Open the first `rows` rows of a set: the real ones where they are in the cache."""
    known = registry.entry(name)
    path = None if known.generated else known.real_path()
    if path is not None:
        source = known.open_real(path, options)
        return Dataset(name, source, source.rows if rows is None else min(rows, source.rows))
    for given, value in options._asdict().items():
        if value != getattr(Options(), given) and given not in (
            "dtype",
            "sparse",
            "ratings",
            "codes",
        ):  # asked by the algorithm
            said = option("keep_together" if given == "key" else given, value)
            raise UsageError(f"{name} is generated here, so {said} has no effect; omit it.")
    source = known.stand_in(rows or known.default_rows)
    if options.dtype is not None:
        source.dtype = np.dtype(options.dtype)
    note = None
    if not known.generated:
        note = (
            f"{name}: the real data are not in the cache, so {source.rows:,} generated rows stand in "
            f"for them ({known.remark}); `flegel data fetch {name}` gets the real ones."
        )
    return Dataset(name, source, source.rows, stand_in=not known.generated, note=note)


def _paths(spec: str) -> list[Path] | None:
    """The files or the folder that an address, a pattern or a path stands for; None where there is no such path."""
    if "://" in spec:
        from flegel.datasets.catalog.remote import stage

        return [stage(spec)]
    if not spec.strip():
        raise UsageError("The name of the data is empty; give a data set, a file, a folder or an address.")
    path = Path(spec).expanduser()
    if path.exists():
        check_regular(path, DataError)
        _refuse_model(path)
        return [path]
    if not glob.has_magic(spec):
        return None
    found = glob.glob(str(path), recursive=True)  # noqa: PTH207 - absolute patterns
    files = sorted(Path(p) for p in found if Path(p).is_file())
    if not files:
        raise DataError(f"No file matches {spec}; check the pattern.")
    return files


def _refuse_model(path: Path) -> None:
    """A saved model is a folder of arrays, which would pass for rows."""
    folder = path if path.is_dir() else path.parent
    if (folder / "model.json").is_file() and (path.is_dir() or path.name in ("model.npz", "model.json", "result.json")):
        raise UsageError(f"{path} is a saved model, not data; give rows, such as a file or the name of a data set.")


def open_table(spec: str) -> RawTable:
    """Columns of files as they are written, before anything is decided about them."""
    paths = _paths(spec)
    table = None if paths is None or not are_tables(paths) else open_raw(paths, spec, Options(format=TABLE))
    if table is None:
        raise DataError(f"{spec} is no table of named columns; give labels as an array.")
    return table


def known_labels(spec: str, label: str | None = None) -> Array | None:
    """Labels of what is no table: a set of the catalog or a libsvm file has them by itself, an array by the number of
    its column. None where there are none, and for tables. Words where labels are words."""
    paths = None if spec.partition(":")[0] in registry.names() else _paths(spec)
    if paths is not None and are_tables(paths):
        return None
    gapped = None if paths is None else open_gapped(paths, spec, label)
    place, _ = (None, []) if gapped is None else gapped.chosen(Options())
    if gapped is not None and place is not None:
        return gapped.whole(place)
    data = open_data(spec, label=label)
    found = data.load()[1]
    if found is None or not data.classes:
        return found
    return np.array([data.classes[int(one)] for one in found], object)


def may_be_rated(spec: str) -> bool:
    """Whether an algorithm that factorizes ratings would take these files, read without options, for a list of them."""
    paths = None if spec.partition(":")[0] in registry.names() else _paths(spec)
    table = None if paths is None else open_raw(paths, spec, Options())
    return table is not None and recognized(table, likely=True)


def open_for_prediction(spec: str, how: Treatment, label: str | int | None = None, missing: str | None = None) -> Any:
    """Rows for `Treatment.apply`: a table whose columns it finds by name, or numbers.

    `label` is a column of numbers without names that is no feature; by name it is left out anyway. `missing`: gaps are
    to be treated, so files that may have some are opened as tables.
    """
    paths = None if spec.partition(":")[0] in registry.names() else _paths(spec)
    chosen = Options(format=TABLE) if how.rating_columns else Options()
    table = None if paths is None else open_raw(paths, spec, chosen)
    if how.rating_columns and table is not None:
        return table
    if table is None and paths is not None and not (how.plain and missing is None):
        table = open_gapped(paths, spec)
    if table is None:
        data = open_data(spec, label=label)
        if data.note:
            warn(data.note)
        return data.load()[0]
    if not how.plain:
        return table
    plain: dict[str, Any] = {"columns": list(how.names or ())}
    if not (table.named and how.names):
        place = how.label_place if label is None and len(table.names) == how.width + 1 else label
        plain = {"label": place}
        if missing is not None and not table.named and place is not None:
            return how.numbers_at(table, table.chosen(Options(label=place))[1])
    elif not set(how.names) <= set(table.names):
        return table
    numbers = missing is None and files_are_plain(paths or [], plain)
    return open_data(spec, **plain).load()[0] if numbers else table
