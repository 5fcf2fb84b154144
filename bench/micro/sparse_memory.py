"""Is the memory of a job over sparse text proportional to its values and θ? Peak resident size of whole jobs.

    python -m bench.micro.sparse_memory [--rows 50000 100000] [--columns 50000] [--only kmeans lr nmf] [--out FILE]

Rows with 60 drawn words each, frequent ones more often; k-means with 20 clusters, LR of 20 classes, NMF of rank 20,
five passes each in one worker of a process of its own. Added is the peak (VmHWM) of the job less what the process had
when the rows were there and a small job had loaded the code. A dense array of the rows would take `dense_mb`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import program
from bench.common.process_memory import peak_of

WORDS_A_ROW = 60
CLASSES = 20
PASSES = 5
MB = 1 << 20


def drawn_text(rows: int, columns: int, seed: int) -> tuple[Any, np.ndarray]:
    """Sparse rows as a scipy matrix, float32, and labels."""
    import scipy.sparse

    rng = np.random.default_rng(seed)
    chances = 1 / np.arange(1, columns + 1) ** 0.8
    words = np.searchsorted(np.cumsum(chances / chances.sum()), rng.random((rows, WORDS_A_ROW))).clip(max=columns - 1)
    ends = np.arange(0, rows * WORDS_A_ROW + 1, WORDS_A_ROW)
    values = rng.random(rows * WORDS_A_ROW, dtype=np.float32)
    text = scipy.sparse.csr_matrix((values, np.sort(words, axis=1).astype(np.int32).ravel(), ends), (rows, columns))
    text.sum_duplicates()
    return text, rng.integers(CLASSES, size=rows)


def one_job(name: str, rows: int, columns: int, seed: int) -> dict[str, Any]:
    """Runs in a process of its own."""
    import flegel
    from flegel.algorithms.kmeans import KMeans
    from flegel.algorithms.lr import LR
    from flegel.algorithms.nmf import NMF

    warnings.simplefilter("ignore")
    text, labels = drawn_text(rows, columns, seed)
    algorithm = {"kmeans": lambda: KMeans(k=CLASSES), "lr": LR, "nmf": lambda: NMF(rank=CLASSES)}[name]

    def train(count: int, width: int, passes: int) -> Any:
        some = text[:count, :width]
        given = (some, labels[:count]) if name == "lr" else (some,)
        return flegel.run(algorithm(), *given, max_passes=passes, workers=1, processes=False)

    train(min(2000, rows), min(500, columns), 2)
    before = peak_of(os.getpid())
    found = train(rows, columns, PASSES)
    values = sum(array.nbytes for array in (text.data, text.indices, text.indptr))
    return {
        "rows_mb": round(values / MB, 1),
        "theta_mb": round(sum(np.asarray(array).nbytes for array in found.parameter) / MB, 1),
        "dense_mb": round(rows * columns * 4 / MB),
        "added_mb": round((peak_of(os.getpid()) - before) / MB),
    }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[50_000, 100_000])
    parser.add_argument("--columns", type=int, default=50_000)
    parser.add_argument("--only", nargs="*", default=["kmeans", "lr", "nmf"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where the summary is written")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.one:
        print(json.dumps(one_job(given.one, given.rows[0], given.columns, given.seed)))
        return 0
    found: dict[str, Any] = {}
    for name in given.only:
        for rows in given.rows:
            words = ["--one", name, "--rows", str(rows), "--columns", str(given.columns), "--seed", str(given.seed)]
            done = subprocess.run(
                program.command("bench.micro.sparse_memory", *words),
                env=program.environment(),
                capture_output=True,
                text=True,
                check=True,
            )
            found[f"{name}, {rows:,} rows"] = line = json.loads(done.stdout.splitlines()[-1])
            print(f"{name:7} {rows:9,} rows: {line}", flush=True)
    if given.out:
        about = {
            "title": "Peak memory of jobs over sparse text",
            "command": f"python -m bench.micro.sparse_memory --seed {given.seed}",
            "commit": program.commit(),
            "machine": program.machine(),
        }
        given.out.write_text(json.dumps({**about, "figures": found}, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
