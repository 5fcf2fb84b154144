"""Files of rows that something else computes or streams: known by its type, written block by block. Trains nothing.

Blocks of a distributed collection (Dask, Ray Data, Spark) are written by the workers that have them, so they never pass
through this process; the folder must then be one that all of them see. Streams hold one block in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.formats.arrow_tables import import_pyarrow
from flegel.errors import DataError, UsageError

BLOCK_ROWS = 65_536
"""Rows of a file where the source does not come in blocks of its own."""

Writer = Callable[[Any, Path], None]


def writer_of(value: Any) -> Writer | None:
    """How such an object is written in parts; None for arrays, frames and all that is in memory already."""
    features = value[0] if isinstance(value, tuple) and len(value) == 2 else value
    modules = {cls.__module__ for cls in type(features).__mro__}
    for prefix, writer in KINDS.items():
        if any(module == prefix or module.startswith(f"{prefix}.") for module in modules):
            return writer
    if isinstance(value, tuple):
        return None
    if hasattr(value, "__next__") and not hasattr(value, "__arrow_c_stream__"):
        return write_blocks
    in_memory = {"pandas", "polars"} & {module.partition(".")[0] for module in modules}
    if hasattr(value, "__arrow_c_stream__") and not in_memory and type(value).__name__ not in ("Table", "RecordBatch"):
        return write_arrow_stream
    return None


def write_parts(value: Any, folder: Path) -> int | None:
    """Write all rows; the number of the label's column where the object is a pair, which is the last one."""
    writer = writer_of(value)
    if writer is None:
        raise UsageError(f"A {type(value).__name__} is in memory already; pass it as it is.")
    writer(value, folder)
    if not any(folder.iterdir()):
        raise DataError(f"The given {type(value).__name__} has no rows; give at least one.")
    first = next((path for path in sorted(folder.iterdir()) if path.suffix == ".npy"), None)
    if first is None or not (folder / LABELLED).exists():
        return None
    (folder / LABELLED).unlink()
    return int(np.load(first, mmap_mode="r", allow_pickle=False).shape[1]) - 1


LABELLED = ".labelled"
"""A file that says, while parts are written, that their last column is the label."""


# -- numbers ---------------------------------------------------------------------------------------------------


def save_block(block: Any, labels: Any, folder: str, number: int) -> None:
    """One part of numbers; runs wherever the block is."""
    rows = np.asarray(block)
    rows = rows.reshape(len(rows), -1)
    if rows.dtype.kind not in "fiub":
        raise DataError(f"Block {number + 1} holds {rows.dtype}, not numbers; convert it first.")
    if rows.dtype.kind != "f":
        rows = rows.astype(np.float64 if rows.dtype.itemsize > 2 else np.float32)
    if labels is not None:
        column = np.asarray(labels).reshape(-1, 1)
        if len(column) != len(rows):
            raise DataError(f"Block {number + 1} has {len(rows)} rows but {len(column)} labels; give one per row.")
        rows = np.concatenate([rows, column.astype(rows.dtype)], axis=1)
    if len(rows):
        np.save(Path(folder) / f"part-{number:06d}.npy", np.ascontiguousarray(rows), allow_pickle=False)


def write_dask_array(value: Any, folder: Path) -> None:
    """Each block is computed and written by one task, on the worker that has it."""
    import dask

    features, labels = value if isinstance(value, tuple) else (value, None)
    if features.ndim != 2:
        raise UsageError(f"The dask array has the shape {features.shape}; give rows × columns.")
    features = features.rechunk({1: -1})
    blocks = features.to_delayed().ravel()
    if labels is None:
        answers: Iterable[Any] = [None] * len(blocks)
    elif hasattr(labels, "to_delayed"):
        answers = labels.rechunk((features.chunks[0],)).to_delayed().ravel()
    else:
        answers = np.split(np.asarray(labels), np.cumsum(features.chunks[0])[:-1])
    _mark(folder, labels is not None)
    save = dask.delayed(save_block, pure=False)
    dask.compute(*(save(b, a, str(folder), k) for k, (b, a) in enumerate(zip(blocks, answers, strict=True))))


def write_zarr(value: Any, folder: Path) -> None:
    """As many rows at a time as its chunks have."""
    features, labels = value if isinstance(value, tuple) else (value, None)
    step = max(int(features.chunks[0]), 1)
    step *= max(1, BLOCK_ROWS // (4 * step))
    _mark(folder, labels is not None)
    for number, start in enumerate(range(0, features.shape[0], step)):
        end = start + step
        save_block(features[start:end], None if labels is None else labels[start:end], str(folder), number)


def write_torch_dataset(value: Any, folder: Path) -> None:
    """Items of a map-style or iterable dataset: rows, or pairs of a row and its label."""
    items = (value[k] for k in range(len(value))) if hasattr(value, "__len__") else iter(value)
    write_blocks(items, folder)


def write_blocks(items: Iterable[Any], folder: Path) -> None:
    """A generator of rows, of (row, label), of blocks, of (block, labels), of frames or of record batches."""
    stream = iter(items)
    first = next(stream, None)
    if first is None:
        return
    whole = chain([first], stream)
    if hasattr(first, "__arrow_c_stream__") or hasattr(first, "__arrow_c_array__") or isinstance(first, dict):
        _write_tables(whole, folder)
        return
    paired = isinstance(first, tuple) and len(first) == 2 and np.ndim(first[0]) > 0
    _mark(folder, paired)
    flat = np.ndim(first[0] if paired else first) < 2
    blocks = _grouped(whole, paired) if flat else ((item if paired else (item, None)) for item in whole)
    for number, (block, labels) in enumerate(blocks):
        save_block(block, labels, str(folder), number)


def _grouped(rows: Iterator[Any], paired: bool) -> Iterator[tuple[Array, Array | None]]:
    held: list[Any] = []
    for row in rows:
        held.append(row)
        if len(held) == BLOCK_ROWS:
            yield _stacked(held, paired)
            held = []
    if held:
        yield _stacked(held, paired)


def _stacked(rows: list[Any], paired: bool) -> tuple[Array, Array | None]:
    try:
        if not paired:
            return np.stack([np.asarray(row) for row in rows]), None
        return np.stack([np.asarray(row) for row, _ in rows]), np.array([float(label) for _, label in rows])
    except (ValueError, TypeError) as error:
        raise DataError(f"The given rows are no table of numbers ({error}); yield rows of equal length.") from None


def _mark(folder: Path, labelled: bool) -> None:
    if labelled:
        (folder / LABELLED).touch()


# -- tables ----------------------------------------------------------------------------------------------------


def write_dask_frame(value: Any, folder: Path) -> None:
    """Each partition is written by one task, on the worker that has it."""
    value.to_parquet(str(folder), write_index=False)


def write_ray_dataset(value: Any, folder: Path) -> None:
    """Each block is written by a task of Ray."""
    value.write_parquet(str(folder))


def write_spark_frame(value: Any, folder: Path) -> None:
    """Each partition is written by its executor. Slaves that Spark itself holds for a launch keep their slots, so the
    job that writes would wait for ever where they hold all of them."""
    context = value.sparkSession.sparkContext
    slots, used = _spark_slots(context)
    if used >= slots and context.getConf().get("spark.dynamicAllocation.enabled") != "true":
        raise UsageError(
            f"All {slots} slots of Spark are in use ({used} tasks, one for each slave), so it cannot write this frame; "
            "give it one core more than there are slaves, or write it before the launch and give the folder."
        )
    value.write.mode("append").parquet(folder.as_uri())


def _spark_slots(context: Any) -> tuple[int, int]:
    """Tasks that can run at a time, and those that run now."""
    inner = context._jsc.sc()
    slots = int(inner.maxNumConcurrentTasks(inner.resourceProfileManager().defaultResourceProfile()))
    status = context.statusTracker()
    stages = [status.getStageInfo(stage) for stage in status.getActiveStageIds()]
    return slots, sum(stage.numActiveTasks for stage in stages if stage is not None)


def write_huggingface(value: Any, folder: Path) -> None:
    """Batches of Arrow tables, as the data set holds them."""
    if not hasattr(value, "with_format"):
        raise UsageError("A dictionary of data sets has no rows; choose one of its splits, such as data['train'].")
    _write_tables(value.with_format("arrow").iter(batch_size=BLOCK_ROWS), folder)


def write_arrow_stream(value: Any, folder: Path) -> None:
    """DuckDB relations, record batch readers and all others that offer a stream of Arrow batches."""
    _write_tables(import_pyarrow().RecordBatchReader.from_stream(value), folder)


def _write_tables(tables: Iterable[Any], folder: Path) -> None:
    pa = import_pyarrow()
    from pyarrow import parquet

    held: list[Any] = []
    number = 0
    for table in tables:
        held.append(_table(pa, table))
        if sum(each.num_rows for each in held) >= BLOCK_ROWS:
            parquet.write_table(pa.concat_tables(held), folder / f"part-{number:06d}.parquet")
            held, number = [], number + 1
    if held:
        parquet.write_table(pa.concat_tables(held), folder / f"part-{number:06d}.parquet")


def _table(pa: Any, value: Any) -> Any:
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if isinstance(value, dict):
        lists = all(np.ndim(each) for each in value.values())
        return pa.Table.from_pydict(value if lists else {name: [each] for name, each in value.items()})
    return pa.table(value)


KINDS: dict[str, Writer] = {
    "dask.array": write_dask_array,
    "dask.dataframe": write_dask_frame,
    "dask_expr": write_dask_frame,
    "ray.data": write_ray_dataset,
    "pyspark.sql": write_spark_frame,
    "zarr": write_zarr,
    "datasets": write_huggingface,
    "torch.utils.data": write_torch_dataset,
}
"""By the module of the object's class or of one of its bases, so that no library is imported to look."""
