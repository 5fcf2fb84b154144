"""What became of each column of a table, as lines for people. Decides nothing, reads nothing."""

from __future__ import annotations

from pathlib import Path

from flegel.datasets.tables.columns import RawTable
from flegel.datasets.tables.treatment import ColumnTreatment, Treatment
from flegel.wording import option

MOST_LINES = 40  # of a report about columns
WORDS = {
    "number": "number",
    "boolean": "boolean",
    "date": "date",
    "onehot": "one-hot",
    "ordinal": "ordinal",
    "drop": "–",
    "label": "label",
}


def column_report(table: RawTable, how: Treatment, read: int, kept: int) -> list[str]:
    """A heading, one line for each column (plain numbers beside each other share one), and remarks."""
    name = Path(table.origin).name if "/" in table.origin else table.origin
    lost = f"; {read - kept:,} row{'s' * (read - kept > 1)} left out" if kept < read else ""
    stored = ", stored sparse" if how.sparse else ""
    lines = [f"{name}: {kept:,} rows, {len(table.names)} columns → {how.width:,} features{stored}{lost}"]
    rows = [*_rows(how.columns)]
    wide = min(28, max(len(first) for first, _ in rows))
    lines += [f"  {first:<{wide}}  {second}" for first, second in rows[:MOST_LINES]]
    if len(rows) > MOST_LINES:
        lines.append(f"  … and {len(rows) - MOST_LINES} more lines; the model has all of them in model.json")
    return [*lines, *table.remarks]


def ratings_report(table: RawTable, columns: list[str | int], users: int, items: int, ratings: int) -> list[str]:
    """One line: what was taken for ratings, and how to say otherwise."""
    name = Path(table.origin).name if "/" in table.origin else table.origin
    left = len(table.names) - len(columns)
    rest = f", {left} more left out" if left else ""
    return [
        f"{name}: {ratings:,} ratings of {items:,} items by {users:,} users, a row each (user, item and rating are "
        f"columns {', '.join(map(str, columns))}{rest}; {option('columns')} names others, "
        f"{option('format', 'table')} takes all as they are)",
        *table.remarks,
    ]


def plain_report(
    name: str, rows: int, columns: int, names: list[str] | None, sparse: bool, classes: list[str] | None
) -> list[str]:
    """The same for a table of plain numbers."""
    stored = ", sparse" if sparse else ""
    lines = [f"{Path(name).name}: {rows:,} rows of {columns:,} plain numbers{stored}"]
    if names:
        lines.append(f"  {', '.join(names[:12])}{', …' if len(names) > 12 else ''}")
    return [*lines, *([f"  label, {len(classes)} classes: {', '.join(classes[:6])}"] if classes else [])]


def _rows(columns: list[ColumnTreatment]) -> list[tuple[str, str]]:
    """One line for each column that needs a word; neighbouring plain numbers share one line."""
    found: list[tuple[str, str]] = []
    run: list[str] = []

    def end_run() -> None:
        if run:
            shown = run[0] if len(run) == 1 else f"{run[0]} … {run[-1]}"
            found.append((shown, "number" if len(run) == 1 else f"{len(run)} numbers"))
            run.clear()

    for column in columns:
        if column.use == "number" and not column.note:
            run.append(column.name)
            continue
        end_run()
        text = column.note if column.use in ("drop", "label") else f"{WORDS[column.use]}: {column.note}".rstrip(": ")
        found.append((column.name, text))
    end_run()
    return found
