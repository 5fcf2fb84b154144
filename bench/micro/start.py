"""How long until a job trains: with empty caches, the second time, and in a process that has run one?

    python -m bench.micro.start [--rows 1000000] [--repeat 3] [--json start.json]

The command is that of `make demo`. Wall seconds are counted from the start of the process to its first line, to the
first barrier (training has begun) and to the end; processor seconds of the process and its children stand beside them,
because a busy machine changes those less. Python's bytecode is there, as after an installation; compiled kernels are
not. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from flegel.runtime.processes import host

GOALS = {"first_result_s": 8.0, "second_training_s": 1.0, "warm_run_s": 0.1, "import_s": 0.15}
JOB = "submit kmeans --data higgs:{rows} --set k=10 --workers 4 --sync fsp --no-save"
WARM = """
import json, time
import numpy as np
import flegel
from flegel.algorithms.kmeans import KMeans
rows = np.random.default_rng(0).normal(size=(10_000, 28)).astype(np.float32)
flegel.run(KMeans(k=10), rows)
found = []
for _ in range(5):
    wall, cpu = time.perf_counter(), time.process_time()
    result = flegel.run(KMeans(k=10), rows)
    found.append((time.perf_counter() - wall, time.process_time() - cpu, result.load_seconds))
print(json.dumps([min(column) for column in zip(*found)]))
"""
IMPORT = "import time; t, c = time.perf_counter(), time.process_time(); import flegel; "
IMPORT += "print(time.perf_counter() - t, time.process_time() - c)"
SWEEP = """
import json, time
import numpy as np
import flegel
from flegel.algorithms.kmeans import KMeans
rows = np.random.default_rng(0).normal(size=(2_000, 28)).astype(np.float32)
found = {}
for k in range(2, 31):
    cpu = time.process_time()
    flegel.run(KMeans(k=k), rows, max_iterations=2)
    found[k] = time.process_time() - cpu
print(json.dumps(found))
"""


def surroundings(cache: str) -> dict[str, str]:
    """With this cache folder and data beside it, and bytecode, whatever this process was told about bytecode."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    beside = Path(cache).parent
    places = {"FLEGEL_CACHE": cache, "FLEGEL_DATA": f"{cache}-data", "PYTHONPYCACHEPREFIX": str(beside / "bytecode")}
    return {**kept, **places}


def children() -> float:
    """Processor seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def submit(rows: int, cache: str) -> dict[str, Any]:
    """One command in a process of its own."""
    began, before = time.perf_counter(), children()
    process = subprocess.Popen(
        [sys.executable, "-m", "flegel", *JOB.format(rows=rows).split()],
        env=surroundings(cache), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    first = training = None
    assert process.stderr is not None
    for line in process.stderr:
        now = time.perf_counter() - began
        first = now if first is None else first
        training = now if training is None and " iteration " in line else training
    if process.wait():
        raise SystemExit(f"the job failed with code {process.returncode}")
    whole = time.perf_counter() - began
    return {"first_line_s": first, "training_s": training, "result_s": whole, "cpu_s": children() - before}


def script(text: str, cache: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", text], env=surroundings(cache), check=True, capture_output=True, text=True
    ).stdout


def measure(rows: int, repeat: int, sweep: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="flegel-start-") as folder:
        submit(1_000, f"{folder}/other")  # an installation leaves bytecode
        cache = f"{folder}/cache"
        cold = submit(rows, cache)
        print(json.dumps({"cold": cold}), file=sys.stderr, flush=True)
        second = [submit(rows, cache) for _ in range(repeat)]
        print(json.dumps({"second": second}), file=sys.stderr, flush=True)
        wall, cpu, loading = json.loads(script(WARM, cache))
        imports = [[float(word) for word in script(IMPORT, cache).split()] for _ in range(repeat)]
        found = {
            "cold": cold,
            "second": {name: statistics.median(run[name] for run in second) for name in cold},
            "warm": {"run_s": wall, "cpu_s": cpu, "load_s": loading},
            "import": {"wall_s": min(i[0] for i in imports), "cpu_s": min(i[1] for i in imports)},
        }
        if sweep:
            by_k = json.loads(script(SWEEP, cache))
            found["sweep"] = {"cpu_s": sum(by_k.values()), "compiled": [k for k, s in by_k.items() if s > 0.7]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--no-sweep", action="store_true", help="leave out k = 2 … 30 of k-means")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = measure(given.rows, given.repeat, not given.no_sweep)
    found |= {"goals": GOALS, "machine": host.machine(), "commit": host.commit(), "load_average": os.getloadavg()[0]}
    print(json.dumps(found, indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
