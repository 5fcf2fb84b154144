"""Where does one coordinator stop to scale, and what would help? Simulated: up to 100,000 workers.

For each number of workers and each size of θ: what a barrier costs (φ), with one coordinator as it is, with heads of
groups between it and the workers, and with θ in parts on several servers. Writes JSON and a picture.

    python -m bench.micro.scaling_simulated --out runs/simulated --picture docs/img/scaling.svg
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from bench.common.grouped_costs import GroupedCosts
from flegel.api.jobs import resolve
from flegel.compare.candidate import parse_candidate
from flegel.compare.simulation import ClusterModel, JobSimulator, SimulationSettings
from flegel.datasets import open_data
from flegel.job import Criteria
from flegel.report.charts import ChartCurve, curves
from flegel.sim.coordinator_cost import MAX_HEARTBEAT_SHARE, MEASURED
from flegel.sim.learning_curve import FittedProgress
from flegel.sim.speeds import Speeds

PROGRESS = FittedProgress((0.0, 1000.0), (1e6, 1.0), 0.5)
DESIGNS = {
    "one coordinator": {},
    "heads of groups": {"heads": True},
    "θ in 16 parts": {"parts": 16},
    "heads and parts": {"heads": True, "parts": 16},
}
SIZES = {"2 kB": 2_000, "1 MB": 1_000_000}
PASS = 60.0  # seconds: the job is large, so that only the barrier is looked at


def barrier(workers: int, size: int, design: dict[str, Any], barriers: int) -> dict[str, Any]:
    """φ of a fixed interval, in the middle of a few rounds."""
    group, parts = max(2, round(workers**0.5)) if design.get("heads") else 0, design.get("parts", 1)
    costs = replace(MEASURED, merge_byte=MEASURED.merge_byte / parts, send_byte=MEASURED.send_byte / parts)
    costs = GroupedCosts(**asdict(costs), group=group) if group else costs
    settings = SimulationSettings(
        algorithm=resolve("kmeans"), data=open_data("higgs:4000"), candidates=[], workers=workers, repeat=1
    )
    model = ClusterModel(PASS, Speeds("lognormal:0.2"), costs=costs, learning="curve", size=size, progress=PROGRESS)
    simulator = JobSimulator(settings, model)
    criteria = Criteria(max_iterations=barriers, tolerance=0.0)
    result = simulator.run(parse_candidate(f"fsp:interval={PASS / 8}s"), criteria, "", 0)
    return {
        "workers": workers, "bytes": size, "group": group, "shards": parts,
        "phi": median(row["barrier_cost"] for row in result.rows[1:]), "utilization": result.utilization,
        "beats": min(costs.beat * (group or workers), MAX_HEARTBEAT_SHARE),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", default="100,1000,10000,100000")
    parser.add_argument("--barriers", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("runs/simulated"))
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    rows = []
    for name, size in SIZES.items():
        for label, design in DESIGNS.items():
            for workers in map(int, given.workers.split(",")):
                began = time.process_time()
                row = {"size": name, "design": label, **barrier(workers, size, design, given.barriers)}
                rows.append(row)
                print(f"{row}  [{time.process_time() - began:.0f} s]", file=sys.stderr, flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "scaling.json").write_text(
        json.dumps({"pass": PASS, "rows": rows}, indent=1, ensure_ascii=False) + "\n"
    )
    print(table(rows))
    if given.picture:
        given.picture.write_text(drawn(rows), encoding="utf-8")


def table(rows: list[dict[str, Any]]) -> str:
    counts = sorted({row["workers"] for row in rows})
    lines = ["| θ | design | " + " | ".join(f"{n:,}" for n in counts) + " |", "|---|---|" + "---|" * len(counts)]
    for size in SIZES:
        for design in DESIGNS:
            mine = {r["workers"]: r["phi"] for r in rows if (r["size"], r["design"]) == (size, design)}
            lines.append(f"| {size} | {design} | " + " | ".join(_seconds(mine[n]) for n in counts) + " |")
    return "\n".join(lines)


def _seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.3g} s"


def drawn(rows: list[dict[str, Any]]) -> str:
    lines = [
        ChartCurve(
            f"{size}, {design}",
            [(float(r["workers"]), r["phi"]) for r in rows if (r["size"], r["design"]) == (size, design)],
            i,
        )
        for i, (size, design) in enumerate((s, d) for s in SIZES for d in DESIGNS)
    ]
    canvas = curves(
        lines, 820, "workers (logarithmic)", "seconds that a barrier costs (logarithmic)", log_x=True, log_y=True,
        marks=True, height=340,
    )  # fmt: skip
    canvas.origin = "Simulated by bench/micro/scaling_simulated.py; no such cluster was measured."
    return canvas.svg(standalone=True)


if __name__ == "__main__":
    main()
