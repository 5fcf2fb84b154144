"""The table of the gauntlet from the records of its units: a line a data set, a column an algorithm. Trains nothing."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

from bench.gauntlet.cells import FAILURES, WITHIN

ORDER = ("error", "silent", "misreported", "stopped", "warned", "refused", "ok")
COLUMNS = ("kmeans", "kmeans-cosine", "gmm", "gmm-full", "gmm-tied", "gmm-spherical", "fcm", "lr", "nmf", "nmf-kl")
NAMES = {
    "kmeans": "k-means", "kmeans-cosine": "k-means cosine", "gmm": "GMM", "gmm-full": "GMM full",
    "gmm-tied": "GMM tied", "gmm-spherical": "GMM spherical", "fcm": "FCM", "lr": "LR", "nmf": "NMF",
    "nmf-kl": "NMF KL",
}  # fmt: skip


def load(path: Path) -> list[dict[str, Any]]:
    """The records of a file, the last one of each unit; a line that was cut off is left out."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            found[record["table"], record["algorithm"]] = record
    return list(found.values())


def counted(records: list[dict[str, Any]]) -> Counter[str]:
    return Counter(cell["verdict"] for record in records for cell in record["cells"].values())


def shown(record: dict[str, Any] | None) -> str:
    """A unit in a cell of the table: how many cells have which verdict, if not all are ok."""
    if record is None:
        return ""
    verdicts = Counter(cell["verdict"] for cell in record["cells"].values())
    if set(verdicts) == {"ok"}:
        return "ok" if record["peer"] is not None else "ok, no peer"
    total = sum(verdicts.values())
    parts = [v if n == total else f"{v} {n}/{total}" for v in ORDER if v != "ok" and (n := verdicts[v])]
    return ", ".join(parts)


def worse_by(record: dict[str, Any], cell: dict[str, Any]) -> float | None:
    """How much worse than the peer, relative; None where there is nothing to compare."""
    if record["peer"] is None or "value" not in cell:
        return None
    sign = -1.0 if record["algorithm"].startswith("gmm") else 1.0
    return sign * (cell["value"] - record["peer"]) / max(abs(record["peer"]), 1e-300)


def summary(records: list[dict[str, Any]], about: dict[str, Any]) -> dict[str, Any]:
    verdicts = counted(records)
    findings = []
    for record in records:
        for name, cell in record["cells"].items():
            if cell["verdict"] in FAILURES:
                gap = worse_by(record, cell)
                findings.append(
                    {"table": record["table"], "algorithm": record["algorithm"], "cell": name,
                     "verdict": cell["verdict"], "worse": None if gap is None else float(f"{gap:.3g}"),
                     "reason": cell["reason"][:120]}
                )  # fmt: skip
    said = Counter(_words(cell) for r in records for cell in r["cells"].values() if cell["verdict"] not in ("ok",))
    figures = {
        "within": WITHIN,
        "seconds": about["seconds"],
        "tables": len({record["table"] for record in records}),
        "units": len(records),
        "cells": sum(verdicts.values()),
        "verdicts": dict(sorted(verdicts.items())),
        "failures": findings[:100],
        "said": [{"cells": n, "words": words} for words, n in said.most_common(25) if words],
    }
    origin = {key: about[key] for key in ("command", "commit", "machine")}
    return {"title": "Tables that nobody prepared, beside other libraries", **origin, "figures": figures}


def _words(cell: dict[str, Any]) -> str:
    if cell["verdict"] in FAILURES:
        return ""
    words = cell["warnings"][0] if cell.get("warnings") else cell["reason"]
    return "".join("#" if c.isdigit() else c for c in words)[:140]


def _models(records: list[dict[str, Any]]) -> str:
    used = list(dict.fromkeys(cell.partition(":")[0] for r in records for cell in r["cells"] if ":" in cell))
    *others, last = (f"`{model}`" for model in used)
    return f"{', '.join(others)} and {last}" if others else last


def wrapped(paragraph: str) -> list[str]:
    return textwrap.wrap(paragraph, 120, break_long_words=False, break_on_hyphens=False)


def page(records: list[dict[str, Any]], about: dict[str, Any]) -> str:
    """docs/results/gauntlet.md."""
    facts = summary(records, about)["figures"]
    verdicts = facts["verdicts"]
    by_unit = {(r["table"], r["algorithm"]): r for r in records}
    tables = list(dict.fromkeys(r["table"] for r in records))
    used = [c for c in COLUMNS if any(r["algorithm"] == c for r in records)]
    lines = [
        "# The gauntlet: tables that nobody prepared",
        "",
        *wrapped(
            f"{facts['tables']} tables, {facts['units']} pairs of table and algorithm, {facts['cells']} training jobs: "
            f"every pair under {_models(records)} with one to four workers, "
            "beside scikit-learn (FCM: scikit-fuzzy) from the same start, or from any start where the problem is "
            "convex (LR)."
        ),
        "",
        *wrapped(
            f"`{about['command']}`, commit {about['commit']}, {about['machine']}, {about['seconds']:.0f} s; summary: "
            "[gauntlet.json](gauntlet.json). In small, and at night: `make test`, `make nightly`."
        ),
        "",
        "| verdict | jobs | meaning |",
        "|---|---|---|",
        f"| ok | {verdicts.get('ok', 0)} | the objective on all rows is within 0.1 % of the peer's or better |",
        f"| warned | {verdicts.get('warned', 0)} | worse, and a warning of the result says why |",
        f"| stopped | {verdicts.get('stopped', 0)} | worse, and the result does not say that it has converged |",
        f"| refused | {verdicts.get('refused', 0)} | a sentence says why such data cannot be trained on |",
        f"| **silent** | {verdicts.get('silent', 0)} | worse, and nothing says so |",
        f"| **misreported** | {verdicts.get('misreported', 0)} | the reported objective is not that of the model |",
        f"| **error** | {verdicts.get('error', 0)} | anything else |",
        "",
        "| table | rows × columns | " + " | ".join(NAMES[c] for c in used) + " |",
        "|---|---|" + "---|" * len(used),
    ]
    for name in tables:
        some = next(r for r in records if r["table"] == name)
        cells = " | ".join(shown(by_unit.get((name, c))) for c in used)
        lines.append(f"| {name} | {some['points']} × {some['columns']} | {cells} |")
    if facts["said"]:
        lines += [
            "",
            "What the jobs said that are not `ok` (digits replaced by #):",
            "",
            "| jobs | words |",
            "|---|---|",
        ]
        lines += [f"| {each['cells']} | {each['words'].replace('|', '/')} |" for each in facts["said"]]
    if facts["failures"]:
        lines += [
            "",
            "Failures:",
            "",
            "| table | algorithm | cell | verdict | worse by | reason |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {f['table']} | {NAMES[f['algorithm']]} | {f['cell']} | {f['verdict']} | "
            f"{_gap(f['worse'])} | {f['reason'].replace('|', '/')} |"
            for f in facts["failures"]
        ]
    return "\n".join(lines) + "\n"


def _gap(worse: float | None) -> str:
    return "" if worse is None else format(worse, ",.0f" if worse >= 100 else ".2g")
