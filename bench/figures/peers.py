"""How long do other libraries take to the same objective, on the same cores?

Flegel under fsp against scikit-learn, PyTorch, Dask and Ray: k-means, Gaussian mixtures, logistic regression and
factorization of a full matrix, from the same start, to the objective that full passes come within 0.1 % of. Each run
is a process of its own; figures are training time, time end to end (imports, reading, starting workers, compiling),
and peak memory of all its processes. Packages that are not installed are left out by name. Where a rival is faster,
the answer says so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.common import program, suite
from bench.common.record import Chart, Series, Table
from bench.common.scripts import lacking
from bench.rivals.objectives import OBJECTIVES
from bench.rivals.registry import FIELDS
from flegel.api.jobs import resolve, run
from flegel.compare.stats import first_reaching, loosened, median, turns
from flegel.compare.table import seconds
from flegel.datasets import open_data
from flegel.runtime.job.prepared_job import take_sample

FIGURE = "Peers"
NEEDS = ("package:sklearn",)
WEIGHT = 5

SIZES = {
    "smoke": (20_000,),
    "laptop": (1_000_000, 200_000, 50_000, 10_000),
    "small": (2_000_000, 500_000, 50_000),
    "paper": (11_000_000, 2_000_000, 500_000, 50_000),
}
KMEANS = suite.Case("kmeans", "higgs", {"k": 10}, suite.rows(20_000, 2_000_000, 11_000_000))
CASES = [
    suite.Case("gmm", "susy", {"k": 5}, suite.rows(5_000, 500_000, 5_000_000)),
    suite.Case("lr", "higgs", {}, suite.rows(5_000, 1_000_000, 11_000_000)),
    suite.Case("nmf", "dense", {"rank": 16, "regularization": 0.0}, suite.rows(2_000, 50_000, 200_000)),
]
PARTS = {
    "kmeans": ("centroids",), "gmm": ("weights", "means", "covariances"), "lr": (), "nmf": ("factors", "scale")
}  # fmt: skip
LOOSE = 0.01  # a target that methods by small batches reach too
WITHIN = {"nmf": 0.01}  # it has many optima; elsewhere the target is within 0.001 of what full passes converge to
EXTRA = [
    ("--within", {"type": float, "default": None, "help": "how far the target is from the best; 0.001"}),
    ("--sizes", {"default": "", "help": "rows of the k-means cases with commas between, such as 11000000"}),
    ("--rivals", {"default": "", "help": "packages with commas between, such as sklearn,torch; all by default"}),
]
COLUMNS = ["who", "training", "× Flegel", "end to end", "× Flegel", "memory", "objective", "remark"]


class Answer(NamedTuple):
    """What one candidate did on one case; times are lower bounds unless it reached the target."""

    training: float
    whole: float
    memory: float
    objective: float | None
    reached: bool
    note: str
    moved: float = 0.0
    """Seconds to bring the rows to a device; part of `whole`, not of `training`."""


def main() -> None:
    options = suite.arguments(__doc__, EXTRA)
    with suite.Suite(__file__, __doc__, options) as bench:
        only = set(filter(None, options.only.split(",")))
        sizes = [int(word) for word in options.sizes.split(",") if word] or SIZES[bench.scale]
        cases = [KMEANS._replace(rows={bench.scale: size}) for size in sizes]
        cases += [] if bench.scale == "smoke" else CASES
        cases = [case for case in cases if not only or case.algorithm in only]
        asked = [(case, options.within or 0.0) for case in cases]
        if bench.scale != "smoke" and not options.within and cases[0].algorithm == "kmeans":
            asked.insert(1, (cases[0], LOOSE))
        by_size: dict[int, dict[str, Answer]] = {}
        for i, (case, within) in enumerate(asked):
            # the largest comes first and is what the question is about: much of the time is for it
            seconds = bench.left() * (1.0 if i == len(asked) - 1 else 0.4 if i < 2 else 1 / (len(asked) - i))
            found = compare_libraries(bench, case, seconds, within=within)
            if case.algorithm == "kmeans" and found and within != LOOSE:
                by_size[case.rows[bench.scale]] = found
                _chart(bench, by_size)
            bench.save()
        _crossover(bench, by_size)


def _chart(bench: suite.Suite, by_size: dict[int, dict[str, Answer]]) -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    for size, answers in sorted(by_size.items()):
        for name, answer in answers.items():
            if answer.reached:
                lines.setdefault(name, []).append((float(size), answer.whole))
    series = [Series(name=name, points=points) for name, points in lines.items()]
    title = f"k-means (k=10, 28 columns) end to end, {bench.workers} cores"
    bench.chart(
        Chart(title=title, x="points (logarithmic)", y="seconds (logarithmic)", series=series, log_x=True, log_y=True)
    )


def compare_libraries(
    bench: suite.Suite, case: suite.Case, seconds: float, field: str = "", within: float = 0.0
) -> dict[str, Answer]:
    """All rivals of a field on one case, for so many seconds, to what is `within` of what full passes converge to."""
    field = field or case.algorithm
    within = within or (LOOSE if bench.scale == "smoke" else WITHIN.get(case.algorithm, 0.001))
    what = f"{case.name}, {case.rows[bench.scale]:,} rows, to within {100 * within:g} %"
    if not bench.has(f"algorithm:{case.algorithm}", for_=what) or bench.over(what):
        return {}
    bench.say(f"{what} ({seconds:.0f} s)")
    until = time.monotonic() + seconds
    names = ["flegel"]
    for name, made in FIELDS[field].items():
        wanted = bench.options.rivals.split(",") if bench.options.rivals else [made.package]
        if made.package not in wanted or (bench.scale == "smoke" and len(names) > SMOKE):
            continue
        why = lacking(f"package:{made.package}")
        if not why:
            names.append(name)
        elif (name, why) not in bench.record.skipped:
            bench.skip(name, why)
    with tempfile.TemporaryDirectory(prefix="flegel-peers-") as folder:
        config = _prepare(bench, case, Path(folder), within)
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        order = [name for turn in turns(names, bench.repeat) for name in turn]
        for i, name in enumerate(order):
            if any(not run["reached"] for run in runs[name]):
                continue  # once is enough for who did not get there
            left = until - time.monotonic()
            if left < LEAST and i:
                bench.late(f"{name}: {what}", "the time for this case was over")
                continue
            share = max(left / (2 if name == "flegel" and not runs[name] else len(order) - i), LEAST)
            runs[name].append(_process(bench, config | {"who": name, "field": field}, share))
            _lines(bench, what, {n: r for n, r in runs.items() if r})
            bench.save()
    return {name: answer for name, mine in runs.items() if (answer := _answer(mine))}


LEAST = 6.0  # seconds that a rival gets
WATCH = 0.25  # seconds between two looks at the memory, which cost a few milliseconds each
SMOKE = 2  # rivals that a smoke test tries


def _prepare(bench: suite.Suite, case: suite.Case, folder: Path, within: float) -> dict[str, Any]:
    """Rows and start in files, and the target from full passes."""
    data = open_data(low_rank(case.rows[bench.scale])) if case.data == "dense" else bench.data(case)
    X, y = data.load()
    if case.algorithm == "lr":  # solvers that take plain steps need columns alike; everybody gets them
        X = ((X - X.mean(axis=0)) / X.std(axis=0)).astype(X.dtype)
        data = open_data((X, y))
    np.save(folder / "X.npy", X)
    algorithm = type(resolve(case.algorithm))(**case.settings)
    if algorithm.accepts.supervised:
        np.save(folder / "y.npy", np.asarray(y))
    sample = take_sample(data, bench.options.seed)
    algorithm.validate(sample)
    parameter = algorithm.initParameter(sample, np.random.default_rng(bench.options.seed))
    start = {name: np.asarray(getattr(parameter, name)) for name in PARTS[case.algorithm]}
    np.savez(folder / "start.npz", **start)
    full = run(algorithm, data, sync="bsp", cluster=bench.cluster(bench.workers), seed=bench.options.seed,
               tolerance=1e-5, max_iterations=suite.PASSES, max_seconds=suite.LIMIT[bench.scale])  # fmt: skip
    bench.cluster(bench.workers).close()  # the cores belong to the rivals now
    bench.leave_clusters()
    objective, maximize = OBJECTIVES[case.algorithm]
    best = objective(X, y, full.parameters)
    target = loosened(best, within, maximize)
    curve = [(float(row["iteration"]), row["objective"]) for row in full.rows]
    rounds = first_reaching(curve, target, maximize) or full.iterations
    return {
        "algorithm": case.algorithm, "settings": case.settings, "folder": str(folder), "target": target,
        "rounds": int(rounds), "threads": bench.workers, "limit": 2 * suite.LIMIT[bench.scale],
        "seed": bench.options.seed, "result": str(folder / "result.json"),
    }  # fmt: skip


def low_rank(rows: int, columns: int = 400, rank: int = 16) -> np.ndarray:
    """A non-negative matrix with a planted factorization and noise; every entry counts, so all mean the same by it."""
    rng = np.random.default_rng(0)
    W = rng.gamma(0.5, 1.0, (rows, rank)).astype(np.float32)
    H = rng.gamma(0.5, 1.0, (columns, rank)).astype(np.float32)
    X = W @ H.T
    X *= 1 + 0.3 * rng.standard_normal(X.shape, np.float32)
    return np.maximum(X, 0, out=X)


def _process(bench: suite.Suite, config: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Run one for at most so long, and watch the memory of all its processes."""
    folder = Path(config["folder"])
    (folder / "config.json").write_text(json.dumps(config))
    Path(config["result"]).unlink(missing_ok=True)
    words, began = program.command("bench.rivals.run", str(folder / "config.json")), time.monotonic()
    with (folder / "told.txt").open("wb") as told:
        process = subprocess.Popen(words, stderr=told, env=program.environment(), start_new_session=True)
        try:
            peak = 0
            while process.poll() is None and time.monotonic() < began + seconds:
                peak = max(peak, _memory(process.pid))
                time.sleep(WATCH)
        finally:
            cut = process.poll() is None
            if cut:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    found = {"reached": False, "seconds": 0.0, "end_to_end": time.monotonic() - began, "objective": None, "note": ""}
    if Path(config["result"]).exists():
        found |= json.loads(Path(config["result"]).read_text())
    elif not cut:
        lines = (folder / "told.txt").read_text(errors="replace").strip().splitlines()
        found["failed"] = lines[-1] if lines else f"ended with {process.returncode}"
    if cut and not found["reached"]:
        found["note"] = f"given up after {seconds:.0f} s in all" + (f", {found['note']}" if found["note"] else "")
    short = "" if found["reached"] else f", short of the target ({found.get('failed', found['note'])})"
    bench.say(f"    {config['who']}: {found['seconds']:.3g} s training, {found['end_to_end']:.3g} s in all{short}")
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


def _answer(mine: list[dict[str, Any]]) -> Answer | None:
    """Medians of the runs that count."""
    if not mine:
        return None
    done = [r for r in mine if r["reached"]]
    if not done:
        worst = mine[-1]
        note = worst.get("failed") or worst["note"] or "did not reach the objective"
        return Answer(worst["seconds"], worst["end_to_end"], worst["memory"], worst["objective"], False, note)
    middle = {key: median([r[key] for r in done]) for key in ("seconds", "end_to_end", "memory", "objective")}
    moved = median([r.get("moved", 0.0) for r in done])
    note = done[0]["note"] + (f", {seconds(moved)} to bring the rows there" if moved else "")
    return Answer(middle["seconds"], middle["end_to_end"], middle["memory"], middle["objective"], True, note, moved)


def _lines(bench: suite.Suite, what: str, runs: dict[str, list[dict[str, Any]]]) -> None:
    """The table of one case, and what follows from it, from the runs so far."""
    answers = {name: answer for name, mine in runs.items() if (answer := _answer(mine))}
    ours = answers.get("flegel")
    base = ours if ours and ours.reached else None
    rows = []
    bench.record.answer = [text for text in bench.record.answer if not text.startswith(f"{what}: ")]
    for name, answer in answers.items():
        mark = "" if answer.reached else "> "
        ratios = ["–", "–"]
        if base:
            training, whole = answer.training / max(base.training, 1e-9), answer.whole / base.whole
            ratios = [f"{mark}{r:.2f}" if answer.reached or r > 1 else "–" for r in (training, whole)]
            if answer.reached and name != "flegel":
                bench.record.ratios[f"{what}: {name} / flegel training"] = round(training, 4)
                bench.record.ratios[f"{what}: {name} / flegel end to end"] = round(whole, 4)
        value = "–" if answer.objective is None else f"{answer.objective:.6g}"
        trained = mark + seconds(answer.training) if answer.training else "–"
        rows.append(
            [name, trained, ratios[0], mark + seconds(answer.whole), ratios[1],
             f"{answer.memory / 2**20:,.0f} MiB", value, answer.note[:90]]
        )  # fmt: skip
    text = "> : given up or stopped short of the objective, so the time is a lower bound. "
    text += "The objective is computed from the final model and all rows in plain NumPy, for everybody alike."
    bench.table(Table(title=f"Time to the same objective: {what}", columns=COLUMNS, rows=rows, text=text))
    rivals = {name: a for name, a in answers.items() if name != "flegel" and a.reached}
    if base and rivals:
        for kind, mine, of in (
            ("training", base.training, lambda a: a.training), ("end to end", base.whole, lambda a: a.whole),
            ("training and transfer", base.training, lambda a: a.training + a.moved),
        ):  # fmt: skip
            if kind == "training and transfer" and not any(a.moved for a in rivals.values()):
                continue
            best = min(rivals, key=lambda name: of(rivals[name]))
            other = of(rivals[best])
            told = f"{other / mine:.1f} times" if other >= mine else f"only {other / mine:.2f} of"
            bench.answer(
                f"{what}: {kind}, the fastest rival is {best} with {seconds(other)}, {told} Flegel's {seconds(mine)}."
            )
    if short := [name for name, answer in answers.items() if not answer.reached]:
        bench.answer(f"{what}: not there when they were given up: {'; '.join(short)}.")


def _crossover(bench: suite.Suite, by_size: dict[int, dict[str, Answer]]) -> None:
    """From how many points on Flegel is faster end to end than every rival that was tried.

    A rival that has trained longer than Flegel without coming to the objective is taken for slower.
    """
    wins: list[tuple[int, bool]] = []
    for size, answers in sorted(by_size.items()):
        ours = answers.get("flegel")
        rivals = [a for name, a in answers.items() if name != "flegel"]
        if ours is None or not ours.reached or not any(a.reached for a in rivals):
            continue
        if any(a.reached and a.whole < ours.whole for a in rivals):
            wins.append((size, False))
        elif all(a.reached or a.training > ours.training for a in rivals):  # else one was given up too early to tell
            wins.append((size, True))
    if not wins:
        return
    first = next((size for i, (size, _) in enumerate(wins) if all(won for _, won in wins[i:])), None)
    if first is None:
        bench.answer(f"k-means end to end: up to {wins[-1][0]:,} points another library is faster than Flegel.")
    elif first == wins[0][0]:
        bench.answer(f"k-means end to end: Flegel is the fastest from the smallest size measured, {first:,} points.")
    else:
        below = max(size for size, won in wins if not won)
        bench.answer(
            f"k-means end to end: up to {below:,} points another library is faster; from {first:,} on Flegel is."
        )


if __name__ == "__main__":
    main()
