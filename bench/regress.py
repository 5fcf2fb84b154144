"""Have key ratios fallen below what was recorded? Reads results of the suite; exits with 1 where one has.

    python -m bench.regress RESULTS [--floors bench/floors.json] [--record] [--scale small]

RESULTS is a folder of JSON that benchmarks wrote (the output of data_loading as load.jsonl). `--record` writes new
floors at nine tenths of what was measured, so that noise alone does not fail them. Ratios inside one run are compared,
never seconds of different machines. A floor whose benchmark is not among the results is named, and fails nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.common.paired_ratio import paired_ratio
from bench.common.record import Bench, read
from flegel.errors import FlegelError

SHARE = 0.9
FLOORS = Path(__file__).with_name("floors.json")


def ratios(folder: Path, scale: str) -> dict[str, float]:
    """All named figures of benchmarks at this scale."""
    found: dict[str, float] = {}
    for path in sorted(folder.glob("*.jsonl")):
        found |= loads(path)
    for path in sorted(folder.glob("*.json")):
        try:
            record = read(path)
        except FlegelError:
            found |= kernels(path) | races(path) | barriers(path)
            continue
        if isinstance(record, Bench) and record.scale == scale:
            found |= {f"{record.name}: {key}": value for key, value in record.ratios.items()}
    return found


def kernels(path: Path) -> dict[str, float]:
    """Seconds of each peer over those of the own kernel, from micro/kernels.py."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    contests = raw.get("contests", []) if isinstance(raw, dict) else []
    known = [c for c in contests if isinstance(c, dict) and isinstance(c.get("ratio"), dict)]
    return {f"kernels: {c['title']}: {peer} / flegel": ratio for c in known for peer, ratio in c["ratio"].items()}


def races(path: Path) -> dict[str, float]:
    """Seconds of each model over those of fsp, from figures/sync.py; a lower bound where a run was stopped."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    cases = {k: v["models"] for k, v in raw.items() if k.startswith("race ")} if isinstance(raw, dict) else {}
    return {
        f"{case.strip()}: {model} / fsp": paired_ratio(models, model)[0]
        for case, models in cases.items()
        for model in models
        if model != "fsp" and models.get("fsp", {}).get("reached")
    }


def barriers(path: Path) -> dict[str, float]:
    """The cost of a barrier with few workers over that with many, from micro/barrier_cost.py."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    costs = raw.get("barrier") if isinstance(raw, dict) else None
    known = {int(n): c["median_us"] for n, c in costs.items() if "median_us" in c} if isinstance(costs, dict) else {}
    if len(known) < 2:
        return {}
    few, many = min(known), max(known)
    return {f"barrier: {few} workers / {many} workers": known[few] / known[many]}


def loads(path: Path) -> dict[str, float]:
    """Seconds of a library's own reader over those of workers reading their parts, from micro/data_loading.py."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    known = [line for line in lines if "speed_against_library" in line]
    return {f"load: {line['format']}: library / flegel": line["speed_against_library"] for line in known}


def check(floors: dict[str, float], measured: dict[str, float]) -> tuple[list[str], list[str]]:
    """Lines about what fell, and names of what was not measured."""
    fallen = [
        f"{name}: {measured[name]:.3g}, and was to be at least {floor:.3g}"
        for name, floor in floors.items()
        if name in measured and measured[name] < floor
    ]
    return fallen, [name for name in floors if name not in measured]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--floors", type=Path, default=FLOORS)
    parser.add_argument("--scale", default="small")
    parser.add_argument("--record", action="store_true", help="write new floors from these results")
    options = parser.parse_args()
    measured = ratios(options.results, options.scale)
    if not measured:
        print(f"There are no results at scale {options.scale} in {options.results}.", file=sys.stderr)
        return 2
    if options.record:
        floors = {name: round(SHARE * value, 3) for name, value in sorted(measured.items())}
        options.floors.write_text(json.dumps(floors, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{len(floors)} floors recorded in {options.floors}.")
        return 0
    floors = json.loads(options.floors.read_text(encoding="utf-8"))
    fallen, absent = check(floors, measured)
    for name in absent:
        print(f"not measured: {name}")
    for line in fallen:
        print(f"fallen: {line}")
    print(f"{len(floors) - len(fallen) - len(absent)} of {len(floors)} floors held.")
    return 1 if fallen else 0


if __name__ == "__main__":
    raise SystemExit(main())
