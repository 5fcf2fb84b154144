"""How long do other libraries take to the same objective, on the same cores?

Flegel under fsp against scikit-learn, PyTorch, Dask and Ray: k-means, Gaussian mixtures and logistic regression,
from the same start, to the objective that Lloyd-like full passes come within 0.1 % of. Each run is a process of its
own; figures are training time, time end to end (imports, reading, starting workers, compiling), and peak memory of
all its processes. Packages that are not installed are left out by name. Where a rival is faster, the answer says
so.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import suite
from rivals.objectives import OBJECTIVES
from rivals.trainers import RIVALS, Rival

from flegel.api import resolve, run
from flegel.compare import Chart, Series, Table
from flegel.compare.stats import first_reaching, loosened, median, turns
from flegel.compare.suite import lacking
from flegel.compare.table import seconds
from flegel.runtime.run import take_sample

FIGURE = "Peers"
NEEDS = ("package:sklearn",)

SIZES = {"smoke": (20_000,), "small": (50_000, 500_000, 2_000_000), "paper": (50_000, 500_000, 2_000_000, 11_000_000)}
CASES = [
    suite.KMEANS,
    suite.Case("gmm", "susy", {"k": 5}, {"smoke": 5_000, "small": 200_000, "paper": 5_000_000}),
    suite.Case("lr", "higgs", {}, {"smoke": 5_000, "small": 500_000, "paper": 11_000_000}),
]
PARTS = {"kmeans": ("centroids",), "gmm": ("weights", "means", "covariances"), "lr": ()}


def main() -> None:
    options = suite.arguments(
        __doc__, [("--within", {"type": float, "default": None, "help": "how far the target is from the best; 0.001"})]
    )
    with suite.Suite(__file__, __doc__, options) as bench:
        rows: list[list[str]] = []
        by_size: dict[str, list[tuple[float, float]]] = {}
        for size in SIZES[bench.scale]:
            case = suite.KMEANS._replace(rows={bench.scale: size})
            for name, found in _contest(bench, case, rows).items():
                by_size.setdefault(name, []).append((float(size), found))
        for case in [] if bench.scale == "smoke" else CASES[1:]:
            _contest(bench, case, rows)
        columns = ["who", "training", "× Flegel", "end to end", "× Flegel", "memory", "objective", "remark"]
        bench.record.tables.append(Table(title="Time to the same objective", columns=columns, rows=rows))
        series = [Series(name=name, points=points) for name, points in by_size.items()]
        title = f"k-means (k=10, 28 columns) end to end, {bench.workers} cores"
        bench.record.charts.append(
            Chart(
                title=title, x="points (logarithmic)", y="seconds (logarithmic)", series=series, log_x=True, log_y=True
            )
        )
        _crossover(bench, by_size)


def _contest(bench: suite.Suite, case: suite.Case, rows: list[list[str]]) -> dict[str, float]:
    """All rivals on one case; returns the seconds end to end of those that reached the target."""
    what = f"{case.name}, {case.rows[bench.scale]:,} rows"
    if not bench.has(f"algorithm:{case.algorithm}", for_=what) or bench.over(what):
        return {}
    bench.say(what)
    with tempfile.TemporaryDirectory() as folder:
        config = _prepare(bench, case, Path(folder))
        names = ["flegel"]
        for name, made in RIVALS[case.algorithm].items():
            package = made.package if isinstance(made, type) and issubclass(made, Rival) else ""
            why = lacking(f"package:{package}")
            if why:
                if (name, why) not in bench.record.skipped:
                    bench.skip(name, why)
            else:
                names.append(name)
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for order in turns(names, bench.repeat):
            for name in order:
                runs[name].append(_process(bench, config | {"who": name}))
    return _lines(bench, what, runs, rows)


def _prepare(bench: suite.Suite, case: suite.Case, folder: Path) -> dict[str, Any]:
    """Rows and start in files, and the target from full passes."""
    data = bench.data(case)
    X, y = data.load()
    np.save(folder / "X.npy", X)
    algorithm = type(resolve(case.algorithm))(**case.settings)
    if algorithm.supervised:
        np.save(folder / "y.npy", np.asarray(y))
    sample = take_sample(data, bench.options.seed)
    algorithm.validate(sample)
    parameter = algorithm.initParameter(sample, np.random.default_rng(bench.options.seed))
    start = {name: np.asarray(getattr(parameter, name)) for name in PARTS[case.algorithm]}
    np.savez(folder / "start.npz", **start)
    full = run(algorithm, data, sync="bsp", cluster=bench.cluster(bench.workers), seed=bench.options.seed,
               max_seconds=suite.LIMIT[bench.scale])  # fmt: skip
    bench.cluster(bench.workers).close()  # the cores belong to the rivals now
    bench._clusters.clear()
    objective, maximize = OBJECTIVES[case.algorithm]
    best = objective(X, y, full.parameters)
    within = bench.options.within or (0.01 if bench.scale == "smoke" else 0.001)
    target = loosened(best, within, maximize)
    curve = [(float(row["iteration"]), row["objective"]) for row in full.rows]
    rounds = first_reaching(curve, target, maximize) or full.iterations
    return {
        "algorithm": case.algorithm, "settings": case.settings, "folder": str(folder), "target": target,
        "rounds": int(rounds), "threads": bench.workers, "limit": suite.LIMIT[bench.scale] * 2,
        "seed": bench.options.seed, "result": str(folder / "result.json"),
    }  # fmt: skip


def _process(bench: suite.Suite, config: dict[str, Any]) -> dict[str, Any]:
    """Run one, and watch the memory of all its processes."""
    folder = Path(config["folder"])
    (folder / "config.json").write_text(json.dumps(config))
    Path(config["result"]).unlink(missing_ok=True)
    script = Path(__file__).parent / "rivals" / "run.py"
    process = subprocess.Popen([sys.executable, str(script), str(folder / "config.json")], stderr=subprocess.PIPE)
    peak, deadline = 0, time.monotonic() + 20 * config["limit"] + 120
    while process.poll() is None and time.monotonic() < deadline:
        peak = max(peak, _memory(process.pid))
        time.sleep(0.1)
    if process.poll() is None:
        process.kill()
    told = process.communicate()[1].decode(errors="replace").strip().splitlines()
    if not Path(config["result"]).exists():
        return {"failed": told[-1] if told else f"ended with {process.returncode}"}
    found: dict[str, Any] = json.loads(Path(config["result"]).read_text())
    bench.say(f"    {config['who']}: {found['seconds']:.3g} s training, {found['end_to_end']:.3g} s end to end")
    return found | {"memory": peak}


def _memory(root: int) -> int:
    """Proportional share of memory of a process and its descendants, in bytes; shared pages count once."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    ours = {root}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    total = 0
    for pid in ours:
        try:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue
    return total


def _lines(
    bench: suite.Suite, what: str, runs: dict[str, list[dict[str, Any]]], rows: list[list[str]]
) -> dict[str, float]:
    ended: dict[str, float] = {}
    base: tuple[float, float] | None = None
    for name, mine in runs.items():
        done = [r for r in mine if "failed" not in r and r["reached"]]
        if not done:
            failed = next((r["failed"] for r in mine if "failed" in r), "did not reach the objective in time")
            rows.append([f"{name}: {what}", "–", "–", "–", "–", "–", "–", failed[:80]])
            bench.answer(
                f"{what}: {name} {'failed' if any('failed' in r for r in mine) else 'did not reach the objective'}."
            )
            continue
        training, whole = (median([r[key] for r in done]) for key in ("seconds", "end_to_end"))
        if name == "flegel":
            base = training, whole
        ratio = [f"{training / base[0]:.2f}", f"{whole / base[1]:.2f}"] if base else ["–", "–"]
        memory = f"{median([r['memory'] for r in done]) / 2**20:,.0f} MiB"
        objective = f"{median([r['objective'] for r in done]):.6g}"
        rows.append([
            f"{name}: {what}", seconds(training), ratio[0], seconds(whole), ratio[1], memory, objective, done[0]["note"]
        ])  # fmt: skip
        ended[name] = whole
        if base and name != "flegel":
            bench.record.ratios[f"{what}: {name} / flegel training"] = round(training / base[0], 4)
            bench.record.ratios[f"{what}: {name} / flegel end to end"] = round(whole / base[1], 4)
            if training < base[0]:
                bench.answer(
                    f"{what}: {name} trains faster than Flegel ({seconds(training)} against {seconds(base[0])})."
                )
    return ended


def _crossover(bench: suite.Suite, by_size: dict[str, list[tuple[float, float]]]) -> None:
    """From how many points on Flegel is faster end to end than the fastest rival."""
    ours = dict(by_size.get("flegel", []))
    wins = []
    for size, time_ in sorted(ours.items()):
        others = [dict(points).get(size, float("inf")) for name, points in by_size.items() if name != "flegel"]
        wins.append((size, time_ <= min(others, default=float("inf"))))
    first = next((size for i, (size, _) in enumerate(wins) if all(won for _, won in wins[i:])), None)
    if first is None:
        bench.answer("k-means end to end: up to the largest size measured, the fastest rival is faster than Flegel.")
    elif first == wins[0][0]:
        bench.answer(f"k-means end to end: Flegel is the fastest from the smallest size measured, {first:,.0f} points.")
    else:
        bench.answer(
            f"k-means end to end: below {first:,.0f} points another library is faster; from there on Flegel is."
        )


if __name__ == "__main__":
    main()
