"""Turn what bench/figures/sync.py wrote into a record that `python -m bench.run_suite report` shows beside the others.

    python -m bench.sync_record runs/race.json runs/semi.json \\
        --like runs/bench/peers.json --out runs/bench/sync.json

bench/figures/sync.py knows nothing of the machine; `--like` is a record that was made on the same one.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from bench.common.paired_ratio import paired_ratio
from bench.common.record import Bench, Chart, Series, Table, read
from bench.figures.sync import MODELS
from flegel.compare.record import write

NAMES = {"kmeans": "k-means", "gmm": "GMM", "fcm": "FCM", "lr": "LR", "nmf": "NMF"}
SCENARIOS = {"8x": "8 times slower", "32ms/1000": "pauses of 32 ms", "": "nobody slow"}
PAPER = {"bsp": "1.5–170", "bsp-mini": "1.3–78", "fsp-binary": "1.0–3.0"}


def cell(models: dict[str, Any], name: str) -> str:
    """How many times as long as fsp."""
    if name not in models:
        return "–"
    ratio, bound = paired_ratio(models, name)
    return ("> " if bound else "") + (f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}")


def races(raw: dict[str, Any], scenario: str) -> dict[str, dict[str, Any]]:
    """By algorithm: what each model needed with these stragglers."""
    found = {}
    for key, value in raw.items():
        kind, _, case = key.partition(" ")
        algorithm, _, straggler = case.partition(" ")
        if kind == "race" and straggler.partition(":")[2] == scenario and "fsp" in value["models"]:
            found[algorithm] = value["models"]
    return {name: found[name] for name in NAMES if name in found}


def add_race(record: Bench, raw: dict[str, Any], scenario: str) -> None:
    held = races(raw, scenario)
    if not held:
        return
    title = SCENARIOS[scenario]
    rows = [[NAMES[a], f"{median(m['fsp']['all']):.2f} s", *(cell(m, n) for n in MODELS[:-1])] for a, m in held.items()]
    if scenario:
        rows.append(["in the paper", "", *(PAPER.get(name, "–") for name in MODELS[:-1])])
    series = [
        Series(name=name, points=[(float(i), m[name]["all"][0]) for i, m in enumerate(held.values()) if name in m])
        for name in MODELS
        if any(name in m for m in held.values())
    ]
    text = "All from the same start, the first. A rival that was given up has the time at which it was."
    groups = [NAMES[a] for a in held]
    record.charts.append(
        Chart(title=f"Time to target, {title}", x="", y="seconds (logarithmic)", series=series, log_y=True, bars=True,
              groups=groups, text=text)
    )  # fmt: skip
    record.tables.append(
        Table(title=f"Times as long as fsp, {title}", columns=["case", "fsp", *MODELS[:-1]], rows=rows,
              text="> marks a lower bound: the run was given up. Medians over pairs of runs from the same start.")
    )  # fmt: skip


def add_clocks(record: Bench, raw: dict[str, Any]) -> None:
    rows = []
    for key, value in raw.items():
        if not key.startswith("semi "):
            continue
        for eta in sorted({name.split()[0] for name in value if " " in name}, key=lambda text: float(text[:-2])):
            central, own = value[f"{eta} centralized"], value[f"{eta} semi"]
            straggler = SCENARIOS.get(key.partition(":")[2], key)
            rows.append([straggler, eta, f"{1e3 * central:.1f} ms", f"{1e3 * own:.1f} ms", f"{1 - own / central:.0%}"])
    if rows:
        columns = ["slow workers", "interval", "centralized", "own clocks", "saved"]
        record.tables.append(Table(title="Cost of synchronization per barrier, k-means", columns=columns, rows=rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("raw", type=Path, nargs="+", help="what bench/figures/sync.py wrote")
    parser.add_argument("--like", type=Path, required=True, help="a record of the same machine")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    raw: dict[str, Any] = {}
    for path in options.raw:
        raw |= json.loads(path.read_text())
    like = read(options.like)
    assert isinstance(like, Bench)
    like.environment.command = f"python -m bench.figures.sync --workers {raw['workers']}"
    record = Bench(
        name="sync", figure="Race", question="Which synchronization model reaches the same objective first?",
        scale="paper", seconds=0.0, environment=like.environment,
    )  # fmt: skip
    for scenario in SCENARIOS:
        add_race(record, raw, scenario)
    add_clocks(record, raw)
    record.answer.append(
        "The paper reports FSPV 1.5 to 170 times faster than BSPB, 1.3 to 78 times faster than BSPV and 1.0 to 3.0 "
        "times faster than FSPB with stragglers; it gives ranges, no figure for each case."
    )
    write(record, options.out)
    print(options.out)


if __name__ == "__main__":
    main()
