"""The page of performance by commit: a table of the last ones, curves of all, a JSON summary. Measures nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flegel.errors import UsageError
from flegel.report.charts import ChartCurve, curves

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
SHOWN = 8  # commits in the table


def write_page(records: list[dict[str, Any]], folder: Path = RESULTS) -> None:
    """`history.md`, `history.json` and `history.svg` of the processor that has the most records."""
    counts = [record["processor"] for record in records]
    processor = max(sorted(set(counts)), key=counts.count)
    same = [record for record in records if record["processor"] == processor]
    clean = [record["commit"] for record in same if not record["commit"].endswith("+")]
    if not clean:
        raise UsageError(f"No record of {processor} is of a commit: all were measured with files that differ from one.")
    names = sorted({name for record in same for name in record["ratios"]})
    (folder / "history.svg").write_text(picture(same, names), encoding="utf-8")
    summary = {
        "title": "Processor time of scikit-learn over that of Flegel, by commit",
        "command": "python -m bench.history measure --keep; python -m bench.history page",
        "commit": clean[-1],
        "machine": f"{processor}, one thread",
        "figures": {f"{at} {record['commit']}": record["ratios"] for at, record in enumerate(same)},
    }
    (folder / "history.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    (folder / "history.md").write_text(page(same, names, processor), encoding="utf-8")


def picture(records: list[dict[str, Any]], names: list[str]) -> str:
    lines = [
        ChartCurve(name, [(at, r["ratios"][name]) for at, r in enumerate(records, 1) if name in r["ratios"]], colour)
        for colour, name in enumerate(names)
    ]
    canvas = curves(lines, 760, "record", "scikit-learn / Flegel, processor time", log_y=True, marks=True)
    canvas.origin = "bench/history.jsonl"
    return canvas.svg(standalone=True)


def page(records: list[dict[str, Any]], names: list[str], processor: str) -> str:
    shown = records[-SHOWN:]
    head = [
        "| measure | " + " | ".join(f"`{_named(r['commit'])}`" for r in shown) + " |",
        "|---" * (len(shown) + 1) + "|",
    ]
    rows = [f"| {name} | " + " | ".join(_figure(r["ratios"].get(name)) for r in shown) + " |" for name in names]
    return "\n".join(
        [*INTRODUCTION, "", f"Records of {processor}.", "", *head, *rows, "", "![Curves](history.svg)", ""]
    )


def _named(commit: str) -> str:
    """Short, with the mark of a changed tree."""
    return commit[:8] + ("+" if commit.endswith("+") else "")


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


INTRODUCTION = """\
# Performance by commit

Did a change make something slower? The processor time of scikit-learn over that of Flegel for the same work, one thread
each, the two in turn, the least of several calls: above 1 Flegel is ahead. Whole calls: passes of k-means from a given
start under `bsp`, for each pass; k-means++ with one pass; jobs of 1,000 rows with defaults.
`python -m bench.history check` fails where a ratio is more than 10 % below the median of the last five records of the
same processor, also with the least times of three measurements. Summary: [history.json](history.json); written by
`python -m bench.history page`.

A record belongs to the commit that was measured from begin to end. One of a tree whose code differed from its commit
(also by files that were not added) has a + and is compared with nothing; where the tree changed meanwhile, nothing is
kept.

## Noise or change

Time that other programs take does not count. What they do to caches, and to a core that two threads share, does: it
makes both sides slower, Flegel and scikit-learn in turn, and the least of several calls on each side is of the quietest
moment. On a busy machine:

- A change shows again when it is measured again, alone: `python -m bench.history check --only "small job, LR"`. Noise
  comes in another measure, or not at all.
- A change shows where its code runs. Several measures that share no code, such as passes and starts, that fall
  together are noise, or a change of the processor.
- Measure the commit before in a working copy of its own, on the same machine (`git worktree add ../before HEAD~1`, then
  `python -m bench.history check` there). Where it is red as well, this commit is not the cause.
- More calls find a quieter moment: `--rounds 30`.

Records of a busy machine are low and hide slowdowns. At a load of 19 on two cores, with a quarter added to the time, a
barrier was red (0.214 instead of the recorded 0.292; 0.352 with nothing added), a pass was green (1.489 instead of
1.547; 1.677 with nothing added), and so was a small job (0.255 instead of 0.269; 0.270 with nothing added: noise was
as large). Keep records of an idle machine.
""".splitlines()
