"""K-means over more rows than memory holds: how long, how much memory, beside scikit-learn over the same chunks?

    python -m bench.micro.out_of_core [--rows 4000000] [--columns 96] [--k 32] [--limit 600M] [--workers 2]
                                      [--kinds npy map parquet arrow] [--epochs 12] [--folder DIR] [--json FILE]

Rows are written once, from a seed that is printed: clusters with unequal weights in float32. Each side then trains in a
process (and its children) inside a control group with this limit of memory, which the kernel enforces by killing; where
groups cannot be made, the private memory of each process is limited (`RLIMIT_DATA`). Ours: `flegel.run` on the `.npy`
file, on a memory map from `numpy.load`, on Parquet, or on an Arrow file, by so many worker processes, or by a team of
threads (`--workers 0`, the default of jobs). Theirs: `MiniBatchKMeans.partial_fit` over the file in chunks,
in order, epoch after epoch. All objectives are computed afterwards, over all rows, in float64. The time to ours is that
of the first epoch of theirs whose objective is at most 0.5 % above the best of ours. Processor seconds count from the
start of a process, all of its children included. Asserts nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.program import command, commit, environment, machine

CHUNK_ROWS = 65_536  # that are written, read by scikit-learn, and compared at a time
NOISE_ROWS = 4 * CHUNK_ROWS  # from which the noise of all rows is drawn: to make it anew takes longer than to train
WITHIN = 0.005  # relative: as good as ours
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def bytes_of(text: str) -> int:
    """600M as bytes."""
    unit = UNITS.get(text[-1:].upper(), 1)
    return int(float(text[:-1] if unit > 1 else text) * unit)


def write_rows(folder: Path, rows: int, columns: int, k: int, seed: int, kinds: list[str]) -> None:
    """rows.npy, and rows.parquet and rows.arrow where they are wanted."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(2 * k, columns)).astype(np.float32) * np.float32(1.5)
    shares = rng.gamma(1.0, size=2 * k)
    noise = rng.normal(size=(NOISE_ROWS, columns)).astype(np.float32)
    into = np.lib.format.open_memmap(folder / "rows.npy", "w+", np.float32, (rows, columns))
    writers: dict[str, Any] = {}
    for first in range(0, rows, CHUNK_ROWS):
        size = min(CHUNK_ROWS, rows - first)
        which = rng.choice(2 * k, size, p=shares / shares.sum())
        part = centres[which] + noise[rng.integers(NOISE_ROWS, size=size)]
        into[first : first + size] = part
        if set(kinds) & {"parquet", "arrow"}:
            import pyarrow

            table = pyarrow.table({f"c{t}": part[:, t] for t in range(columns)})
            writers = writers or writers_of(folder, kinds, table.schema)
            for writer in writers.values():
                writer.write_table(table)
    into.flush()
    for writer in writers.values():
        writer.close()


def writers_of(folder: Path, kinds: list[str], schema: Any) -> dict[str, Any]:
    """By kind: what appends tables to its file."""
    import pyarrow
    import pyarrow.parquet

    found: dict[str, Any] = {}
    if "parquet" in kinds:
        path = folder / "rows.parquet"
        found["parquet"] = pyarrow.parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False)
    if "arrow" in kinds:
        found["arrow"] = pyarrow.ipc.new_file(str(folder / "rows.arrow"), schema)
    return found


def chunks(path: Path) -> Iterator[Any]:
    """The rows of a file in order, by plain reads."""
    mapped: Any = np.load(path, mmap_mode="r")
    rows, columns = mapped.shape
    with path.open("rb") as file:
        file.seek(mapped.offset)
        for first in range(0, rows, CHUNK_ROWS):
            size = min(CHUNK_ROWS, rows - first)
            yield np.fromfile(file, np.float32, size * columns).reshape(size, columns)


def objective(path: Path, centroids: Any) -> float:
    half, total = 0.5 * (centroids**2).sum(axis=1), 0.0
    for part in chunks(path):
        nearest = centroids[(half - part @ centroids.T).argmin(axis=1)]
        total += float(((part - nearest) ** 2).sum(dtype=np.float64))
    return total


# -- inside the limit ------------------------------------------------------------------------------------------


def train_ours(folder: Path, kind: str, k: int, workers: int) -> None:
    import flegel
    from flegel.algorithms.kmeans import KMeans

    data: Any = str(folder / f"rows.{kind if kind in ('parquet', 'arrow') else 'npy'}")
    if kind == "map":
        data = np.load(data, mmap_mode="r")
    result = flegel.run(KMeans(k=k), data, workers=workers or None, seed=1)
    np.save(folder / "ours.npy", result.parameter.centroids)
    passes = [each["passes"] for each in result.worker]
    print(json.dumps({"passes": float(np.mean(passes)), "train_s": result.seconds, "reason": result.reason}))


def train_theirs(folder: Path, k: int, epochs: int) -> None:
    from sklearn.cluster import MiniBatchKMeans

    model = MiniBatchKMeans(k, batch_size=CHUNK_ROWS, random_state=1, n_init=3)
    began, seconds, processor, found = time.perf_counter(), [], [], []
    for _ in range(epochs):
        for part in chunks(folder / "rows.npy"):
            model.partial_fit(part)
        seconds.append(time.perf_counter() - began)
        processor.append(time.process_time())
        found.append(model.cluster_centers_.copy())
    np.save(folder / "theirs.npy", np.stack(found))
    print(json.dumps({"epoch_s": seconds, "epoch_cpu_s": processor}))


# -- around it -------------------------------------------------------------------------------------------------


def limited(folder: Path, limit: int, *words: str) -> dict[str, Any]:
    """One side in a process of its own: what it printed, wall and processor seconds, the most memory at a time."""
    with contextlib.ExitStack() as stack:
        group: Path | None = None
        with contextlib.suppress(OSError, ImportError):
            from bench.chaos.environment.pressure import control_group

            group = stack.enter_context(control_group(limit))

        def enter() -> None:
            if group is not None:
                (group / "cgroup.procs").write_text(str(os.getpid()))
            else:
                resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(
            command("bench.micro.out_of_core", "side", str(folder), *words),
            env=environment(FLEGEL_SCRATCH=str(folder)),
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=enter,
        )
        after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
        record: dict[str, Any] = {"wall_s": wall, "limited_by": "control group" if group else "RLIMIT_DATA"}
        record["cpu_s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if group is not None:
            record["most_bytes"] = _number(group, "memory.max_usage_in_bytes", "memory.peak")
    if done.returncode:
        record["failed"] = f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
        return record
    return record | json.loads(done.stdout.strip().splitlines()[-1])


def _number(group: Path, *names: str) -> int | None:
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            return int((group / name).read_text())
    return None


def main(argv: list[str]) -> int:
    if argv[:1] == ["side"]:
        folder, side, k, *rest = argv[1:]
        if side == "theirs":
            train_theirs(Path(folder), int(k), int(rest[0]))
        else:
            train_ours(Path(folder), side, int(k), int(rest[0]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--columns", type=int, default=96)
    parser.add_argument("--k", type=int, default=32)
    parser.add_argument("--limit", type=bytes_of, default=600 << 20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kinds", nargs="*", default=["npy", "map", "parquet", "arrow"])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    seed = secrets.randbits(32) if given.seed is None else given.seed
    size = given.rows * given.columns * 4
    print(
        f"{given.rows:,} × {given.columns} float32, {size / 2**20:,.0f} MB, limit {given.limit >> 20} MB, seed {seed}"
    )
    record: dict[str, Any] = {
        "command": "python -m bench.micro.out_of_core", "commit": commit(), "machine": machine(), "rows": given.rows,
        "columns": given.columns, "k": given.k, "limit": given.limit, "size": size, "workers": given.workers,
        "seed": seed,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="flegel-out-of-core-") as name:
        folder = Path(name)
        write_rows(folder, given.rows, given.columns, given.k, seed, given.kinds)
        best = np.inf
        for kind in given.kinds:
            side = limited(folder, given.limit, kind, str(given.k), str(given.workers))
            if "failed" not in side:
                side["objective"] = objective(folder / "rows.npy", np.load(folder / "ours.npy"))
                best = min(best, side["objective"])
            record[kind] = side
            print(kind, json.dumps(side), flush=True)
        side = limited(folder, given.limit, "theirs", str(given.k), str(given.epochs))
        if "failed" not in side:
            found = [objective(folder / "rows.npy", each) for each in np.load(folder / "theirs.npy")]
            good = [i for i, value in enumerate(found) if value <= (1 + WITHIN) * best][:1]
            to_ours = {f"to_ours_{each}": side[f"epoch_{each}"][good[0]] if good else None for each in ("s", "cpu_s")}
            side |= {"objectives": found} | to_ours
        record["theirs"] = side
        print("MiniBatchKMeans", json.dumps(side), flush=True)
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
