"""How fast do workers read their shards, and in how much memory?

    python -m bench.micro.data_loading [--rows N] [--workers 2]

Every figure is a fresh process per worker, started together and timed from a common start signal after imports, so
that only reading counts. The reference is the library's own read of the same file in one process. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

MB = 1e6


def peak() -> int:
    """Largest resident memory of this program so far, in bytes (getrusage would count the parent's, too)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def resident() -> int:
    """Resident memory of this process now, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def warm() -> None:
    """Imports and first-call costs out of the way, on a few rows of each kind."""
    import pyarrow
    import pyarrow.parquet

    from flegel.datasets import open_data

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.csv").write_text("1,2\n3,4\n")
        pyarrow.parquet.write_table(pyarrow.table({"a": [1.0, 2.0]}), f"{folder}/a.parquet")
        for name in ("a.csv", "a.parquet"):
            open_data(f"{folder}/{name}").load()
    open_data("higgs:100").load()


def worker(index: int, count: int, description: str, start: Any, answers: Any) -> None:
    from flegel.datasets import read_shard

    warm()
    before = resident()
    start.wait()
    began, busy = time.perf_counter(), time.process_time()
    rows = read_shard(json.loads(description), index, count)
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    features: Any = rows.features
    size = features.nbytes + (0 if rows.labels is None else rows.labels.nbytes)
    answers.put((seconds, size, peak() - before, busy))


def shares(spec: str, workers: int, **options: Any) -> dict[str, Any]:
    """Open and read by `workers` processes."""
    from flegel.datasets import open_data

    warm()
    began = time.perf_counter()
    data = open_data(spec, **options)
    opened = time.perf_counter() - began
    description = json.dumps(data.describe())
    context = multiprocessing.get_context("spawn")
    start, answers = context.Barrier(workers), context.Queue()
    processes = [context.Process(target=worker, args=(i, workers, description, start, answers)) for i in range(workers)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
    return {
        "open_s": round(opened, 3),
        "read_s": round(max(f[0] for f in found), 3),
        "share_mb": round(max(f[1] for f in found) / MB, 1),
        "peak_over_share": round(max(f[2] / f[1] for f in found), 2),
        "worker_cpu_s": round(max(f[3] for f in found), 3),
        "rows": data.rows,
    }


YARDSTICKS = {
    "csv": "import pandas, pyarrow; pyarrow.set_cpu_count(2); f = pandas.read_csv(FILE, engine='pyarrow')",
    "parquet": "import pyarrow.parquet as p; f = p.read_table(FILE, use_threads=True)",
    "npy": "import numpy; f = numpy.load(FILE)",
}
PEERS = {
    ("csv", "polars"): "import polars; f = polars.read_csv(FILE).to_numpy()",
    ("csv", "duckdb"): "import duckdb; f = duckdb.sql(f\"from read_csv('{FILE}')\").fetchnumpy()",
    ("parquet", "polars"): "import polars; f = polars.read_parquet(FILE).to_numpy()",
    ("parquet", "duckdb"): "import duckdb; f = duckdb.sql(f\"from read_parquet('{FILE}')\").fetchnumpy()",
}
"""By format and library: others that read the same file into arrays; those that are not installed are left out."""
_TIMED = """
import time, sys, pandas, pyarrow, pyarrow.csv, pyarrow.parquet, numpy
pyarrow.set_cpu_count(2)
FILE = sys.argv[1]
t, c = time.perf_counter(), time.process_time()
{}
print(time.perf_counter() - t, time.process_time() - c)
"""


def peers(kind: str, file: Path, repeat: int) -> dict[str, float]:
    """Seconds and processor seconds of other libraries, the best of several."""
    found = {}
    for (format, library), code in PEERS.items():
        if format == kind and find_spec(library) is not None:
            imported, _, reading = code.partition("; ")
            runs = [yardstick(reading, file, imported) for _ in range(repeat)]
            found[f"{library}_s"], found[f"{library}_cpu_s"] = (
                round(min(column), 3) for column in zip(*runs, strict=True)
            )
    return found


def yardstick(code: str, file: Path, imported: str = "") -> tuple[float, float]:
    """Seconds and processor seconds of a library's own read, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", imported + _TIMED.format(code), str(file)],
        capture_output=True,
        text=True,
        check=True,
    )
    wall, busy = done.stdout.split()
    return float(wall), float(busy)


def make_files(folder: Path, rows: int) -> dict[str, Path]:
    """The HIGGS stand-in as CSV (with the digits that float32 needs), Parquet and npy."""
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    from flegel.datasets import open_data

    data = open_data(f"higgs:{rows}")
    names = ["label", *(data.names or [])]
    files = {kind: folder / f"higgs.{kind}" for kind in YARDSTICKS}
    matrix = np.lib.format.open_memmap(files["npy"], "w+", np.float32, (rows, data.columns))
    schema = pyarrow.schema([(name, pyarrow.float32()) for name in names])
    with (
        pyarrow.OSFile(str(files["csv"]), "wb") as text,
        pyarrow.parquet.ParquetWriter(files["parquet"], schema) as table,
    ):
        for number, window in enumerate(data.source.windows(np.array([[0, rows]]))):
            part = data.source.take(window)
            matrix[part.ids[0] : part.ids[-1] + 1] = part.features
            columns = [part.labels, *np.asarray(part.features).T]
            piece = pyarrow.table([np.ascontiguousarray(c, np.float32) for c in columns], names=names)
            table.write_table(piece)
            doubles = piece.cast(pyarrow.schema([(name, pyarrow.float64()) for name in names]))
            pyarrow.csv.write_csv(doubles, text, pyarrow.csv.WriteOptions(include_header=number == 0))
    matrix.flush()
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="about 1 GB of CSV")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--generate", type=int, default=11_000_000, help="rows of the stand-in to generate; 0: none")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flegel-bench-") as name:
        folder = Path(name)
        files = make_files(folder, given.rows)
        for kind, file in files.items():
            options = {} if kind == "npy" else {"label": "label"}
            library = [yardstick(YARDSTICKS[kind], file) for _ in range(given.repeat)]
            ours = []
            for attempt in range(given.repeat):
                os.environ["FLEGEL_DATA"] = str(folder / f"cache-{kind}-{attempt}")
                ours.append(shares(str(file), given.workers, **options))
            again = shares(str(file), given.workers, **options)
            best = min(ours, key=lambda f: f["open_s"] + f["read_s"])
            total = best["open_s"] + best["read_s"]
            line = {
                "format": kind,
                "file_mb": round(file.stat().st_size / MB),
                "library_s": round(min(library)[0], 3),
                "library_cpu_s": round(min(b for _, b in library), 3),
                **peers(kind, file, given.repeat),
                **best,
                "speed_against_library": round(min(library)[0] / total, 2),
                "second_start_s": round(again["open_s"] + again["read_s"], 3),
            }
            print(json.dumps(line), flush=True)
        if given.generate:
            os.environ["FLEGEL_DATA"] = str(folder / "none")
            print(json.dumps({"generate": "higgs", **shares(f"higgs:{given.generate}", given.workers)}))


if __name__ == "__main__":
    main()
