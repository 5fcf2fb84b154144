"""Which constants of the balance and interval rules matter? Each is switched off in turn, on virtual time.

    python -m bench.micro.ablation --out ablation.json --page ablation.md

Balance: whole simulated jobs (`bench/common/ablation_balance.py`). Interval: `MultiStage` on a model of training
(`bench/common/ablation_interval.py`).
A figure is the median over seeds of the time to the target over that of the unchanged rules, and for balance the
change of the final spread of passes. Reads no clock: the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.common.ablation_balance import SCENARIOS, Outcome, Scenario, run_job
from bench.common.ablation_interval import MODELS, SWITCHED_OFF, seconds_to_target
from bench.common.program import commit
from flegel.configuration.balance import SPARING, BalanceSettings

Rules = tuple[BalanceSettings, BalanceSettings]
SEEDS = range(3)
INTERVAL_SEEDS = range(9)
TIME, SPREAD = 0.03, 0.3  # smallest change of time (share) and of the spread (passes) that counts

OFF: dict[str, dict[str, float]] = {
    "epsilon = 0": {"epsilon": 0.0},
    "split_passes × 1000: split = T where T is known": {"split_passes": 3000.0},
    "split_move_times = 0": {"split_move_times": 0.0},
    "replan_passes = 0": {"replan_passes": 0.0},
    "group_tolerance = 0": {"group_tolerance": 0.0},
    "error_multiple = 0": {"error_multiple": 0.0},
    "short_memory = long_memory": {"short_memory": 0.98},
    "long_memory = short_memory": {"long_memory": 0.9},
    "min_payoff = 1": {"min_payoff": 1.0},
    "guessed_time_share = 1": {"guessed_time_share": 1.0},
    "uncertain_error = 0": {"uncertain_error": 1e-12},
    "uncertain_error = ∞": {"uncertain_error": float("inf")},
    "outlier_factor = ∞": {"outlier_factor": float("inf")},
    "max_plan_age = ∞": {"max_plan_age": float("inf")},
}
"""Fields of both presets and the values that switch their rules off."""


def balance_variants() -> dict[str, Rules]:
    default = BalanceSettings()
    found = {"unchanged": (default, SPARING)}
    for name, values in OFF.items():
        found[name] = replace(default, **values), replace(SPARING, **values)
    found["straggler_factor = 0 (never SPARING)"] = default, default
    found["straggler_factor = ∞ (always SPARING)"] = SPARING, SPARING
    for name, value in vars(default).items():
        if value != getattr(SPARING, name):
            found[f"SPARING.{name} = {value:g}, the default's"] = default, replace(SPARING, **{name: value})
    return found


def needed(rules: Rules, scenario: Scenario, unchanged: Rules) -> bool:
    """Variants of `SPARING` alone matter only where it may be used."""
    return rules[0] != unchanged[0] or not scenario.slow or scenario.sparing


def compare(base: list[Outcome], other: list[Outcome]) -> dict[str, float]:
    return {
        "time": round(statistics.median(b.seconds / a.seconds for a, b in zip(base, other, strict=True)), 4),
        "spread": round(statistics.median(b.spread - a.spread for a, b in zip(base, other, strict=True)), 3),
    }


def balance(log: Any = print) -> dict[str, Any]:
    variants = balance_variants()
    unchanged = variants.pop("unchanged")
    found: dict[str, Any] = {"unchanged": {}, "off": {}, **{name: {} for name in variants}}
    for scenario in SCENARIOS:
        base = [run_job(scenario, seed, unchanged) for seed in SEEDS]
        found["unchanged"][scenario.name] = {
            "seconds": round(statistics.median(o.seconds for o in base), 4),
            "spread": round(statistics.median(o.spread for o in base), 3),
            "moves": statistics.median(o.moves for o in base),
        }
        found["off"][scenario.name] = compare(base, [run_job(scenario, seed, None) for seed in SEEDS])
        for name, rules in variants.items():
            if needed(rules, scenario, unchanged):
                found[name][scenario.name] = compare(base, [run_job(scenario, seed, rules) for seed in SEEDS])
        log(scenario.name, found["unchanged"][scenario.name], found["off"][scenario.name], flush=True)
    return found


def interval(log: Any = print) -> dict[str, Any]:
    """Ratio of the time to the target, median over seeds, for each setting that is switched off and each model."""
    found: dict[str, Any] = {}
    base = {m.name: [seconds_to_target(m, seed) for seed in INTERVAL_SEEDS] for m in MODELS}
    for name, changes in SWITCHED_OFF.items():
        ratios = {}
        for model in MODELS:
            times = [seconds_to_target(model, seed, changes) for seed in INTERVAL_SEEDS]
            ratios[model.name] = round(
                statistics.median(b / a for a, b in zip(base[model.name], times, strict=True)), 4
            )
        found[name] = ratios
        log(name, ratios, flush=True)
    return found


# -- the page ----------------------------------------------------------------------------------------------


def effect(cells: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Largest changes over the scenarios, for the worse and for the better, and whether one for the worse counts."""
    worst = max(cells, key=lambda s: cells[s]["time"])
    wider = max(cells, key=lambda s: cells[s]["spread"])
    times, spreads = [c["time"] for c in cells.values()], [c["spread"] for c in cells.values()]
    counts = max(times) > 1 + TIME or max(spreads) > SPREAD
    return {
        "worst": worst, "time": max(times), "best_time": min(times), "wider": wider, "spread": max(spreads),
        "counts": counts,
    }  # fmt: skip


def page_tables(figures: dict[str, Any]) -> str:
    lines = ["| switched off | largest time ratio | in | smallest | largest spread change | in | kept |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name, cells in figures["balance"].items():
        if name != "unchanged" and cells:
            e = effect(cells)
            lines.append(
                f"| {name} | {e['time']:.3f} | {e['worst']} | {e['best_time']:.3f} | {e['spread']:+.2f} | {e['wider']} "
                f"| {'yes' if e['counts'] else 'no'} |"
            )
    lines += ["", "| edit | largest time ratio | in | smallest | kept |", "|---|---|---|---|---|"]
    for name, ratios in figures["interval"].items():
        worst = max(ratios, key=lambda m: ratios[m])
        counts = ratios[worst] > 1 + TIME
        low = min(ratios.values())
        lines.append(f"| {name} | {ratios[worst]:.3f} | {worst} | {low:.3f} | {'yes' if counts else 'no'} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="summary (JSON)")
    parser.add_argument("--page", type=Path, help="tables (Markdown)")
    parser.add_argument("--machine", default="virtual time: the same on every machine")
    parser.add_argument("--only", choices=("balance", "interval"))
    options = parser.parse_args()
    figures: dict[str, Any] = {"balance": {}, "interval": {}}
    if options.only != "balance":
        figures["interval"] = interval()
    if options.only != "interval":
        figures["balance"] = balance()
    summary = {
        "title": "Time to the target and spread of passes with each constant of balance and interval switched off",
        "command": "python -m bench.micro.ablation --out docs/results/ablation.json",
        "commit": commit(),
        "machine": options.machine,
        "figures": figures,
    }
    if options.out:
        options.out.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(page_tables(figures))
    if options.page:
        options.page.write_text(page_tables(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
