"""The page of the thirty tasks, from the records of single tasks. Trains nothing."""

from __future__ import annotations

import textwrap
from typing import Any

from bench.thirty.tasks import WITHIN

GOAL_RATIO = 1.0
GOAL_FAST = 0.9  # part of the tasks that should reach this ratio


def summary(records: list[dict[str, Any]], about: dict[str, Any]) -> dict[str, Any]:
    """docs/results/thirty.json."""
    present = [record for record in records if not record["absent"] and "failed" not in record]
    figures = {
        "within": WITHIN,
        "seeds": about["seeds"],
        "seconds": about["seconds"],
        "tasks": len(present),
        "as_good": sum(record["as_good"] for record in present),
        "as_fast": sum(record["ratio"] >= GOAL_RATIO for record in present),
        "records": records,
    }
    origin = {key: about[key] for key in ("command", "commit", "machine")}
    return {"title": "Thirty tasks beside scikit-learn, default settings", **origin, "figures": figures}


def shown(record: dict[str, Any]) -> str:
    """One line, as it is printed when the task is done."""
    if "failed" in record:
        return f"{record['task']:26} failed: {record['failed']}"
    if record["absent"]:
        return f"{record['task']:26} absent: no file of this table"
    return (
        f"{record['task']:26} {record['rows']:6} × {record['columns']:<5} ours {record['ours']:<14.7g} "
        f"scikit-learn {record['theirs']:<14.7g} gap {record['gap']:+.1e} worst {record['worst_gap']:+.1e} "
        f"{'' if record['as_good'] else 'WORSE '}  {record['ours_s']:.3f} s, {record['theirs_s']:.3f} s, "
        f"ratio {record['ratio']:.2f}{'' if record['ratio'] >= GOAL_RATIO else ' SLOWER'}"
    )


def page(whole: dict[str, Any]) -> str:
    """docs/results/thirty.md."""
    facts = whole["figures"]
    lines = ["# Thirty tasks beside scikit-learn", ""]
    lines += _wrapped(
        "What a newcomer tries: tables as they come, k-means, mixtures, logistic regression and factorizations, with "
        "the default settings of both sides (`flegel.sklearn` and scikit-learn's own estimators), on the same rows and "
        "two cores. One function computes for both what training minimizes: the sum of squared distances, minus the "
        "mean log-likelihood, the mean loss with its penalty, half the squared error. The gap is that of the medians "
        f"of {facts['seeds']} seeds, relative (of a log-likelihood: to at least 1); positive where Flegel is worse. "
        "The worst gap compares the worst seeds of both. Times are medians; a ratio is the median over the seeds of "
        "scikit-learn's time over Flegel's, trained in turn. Each side trains once before: compilation does not count."
    )
    good = ", ".join(f"{name} {bound:g}" for name, bound in facts["within"].items())
    lines += ["", *_wrapped(
        f"As good, within {good}: {facts['as_good']} of {facts['tasks']}. Ratio of {GOAL_RATIO:g} or more: "
        f"{facts['as_fast']} of {facts['tasks']}. Goals: all, and 27 of 30."
    )]  # fmt: skip
    lines += [
        "",
        *_wrapped(
            f"`{whole['command']}`, commit {whole['commit']}, {whole['machine']}, {facts['seconds']:.0f} s; summary: "
            "[thirty.json](thirty.json). A look-alike is generated in the shape of a table whose file is absent."
        ),
        *_apart(facts["records"]),
    ]
    lines += ["", "| task | rows × columns | origin | Flegel | scikit-learn | gap | worst gap | Flegel, s | "
        "scikit-learn, s | ratio |", "|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for record in facts["records"]:
        lines.append(_row(record))
    return "\n".join(lines) + "\n"


def _apart(records: list[dict[str, Any]]) -> list[str]:
    """Which rows come from another run."""
    told = [(record["task"], record["apart"]) for record in records if "apart" in record]
    lines = (f"`{task}` is of a later run: `{a['command']}`, commit {a['commit']}, {a['machine']}." for task, a in told)
    return ["", *_wrapped(" ".join(lines))] if told else []


def _row(record: dict[str, Any]) -> str:
    if "failed" in record:
        return f"| {record['task']} |  |  | failed: {record['failed'].replace('|', '/')} |  |  |  |  |  |  |"
    if record["absent"]:
        return f"| {record['task']} |  | absent |  |  |  |  |  |  |  |"
    gap, ratio = _percent(record["gap"]), f"{record['ratio']:.2f}"
    cells = [
        record["task"],
        f"{record['rows']:,} × {record['columns']:,}",
        record["origin"],
        _number(record["ours"]),
        _number(record["theirs"]),
        gap if record["as_good"] else f"**{gap}**",
        _percent(record["worst_gap"]),
        f"{record['ours_s']:.3f}",
        f"{record['theirs_s']:.3f}",
        ratio if record["ratio"] >= GOAL_RATIO else f"**{ratio}**",
    ]
    return "| " + " | ".join(cells) + " |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4f}"


def _percent(gap: float) -> str:
    return f"{100.0 * gap:+.3f} %"


def _wrapped(paragraph: str) -> list[str]:
    return textwrap.wrap(paragraph, 120, break_long_words=False, break_on_hyphens=False)
