"""One task of `bench.thirty` in a process of its own: trains both sides in turn, prints a record as JSON.

    python -m bench.thirty.measure kmeans-skin 10

Each side trains once before it is timed: compilation and the start of workers do not count. Then both train in turn,
with the seeds 0, 1, …; on every second one the peer is first.
"""

from __future__ import annotations

import json
import statistics
import time
import warnings
from typing import Any

import numpy as np

from bench.common.program import words_of
from bench.thirty.tasks import WITHIN, Task, estimators, gap, known, value


def timed(task: Task, rows: Any, model: Any) -> tuple[float, float]:
    """Seconds, and what the model is worth."""
    began = time.perf_counter()
    model.fit(rows.features, rows.labels) if task.algorithm == "lr" else model.fit(rows.features)
    took = time.perf_counter() - began
    return took, value(task, rows, model)


def record(task: Task, seeds: range) -> dict[str, Any]:
    """The figures of one line."""
    rows = task.table()
    facts: dict[str, Any] = {"task": task.name, "absent": rows is None}
    if rows is None:
        return facts
    if task.algorithm == "lr":
        rows = rows._replace(labels=np.unique(rows.labels, return_inverse=True)[1])
    for model in estimators(task, seeds[0]):
        timed(task, rows, model)
    sides: tuple[list[tuple[float, float]], list[tuple[float, float]]] = [], []
    for seed in seeds:
        pair = list(zip(sides, estimators(task, seed), strict=True))
        for found, model in pair[:: -1 if seed % 2 else 1]:
            found.append(timed(task, rows, model))
    ours, theirs = ([reached for _, reached in side] for side in sides)
    apart = gap(task, statistics.median(ours), statistics.median(theirs))
    ratio = statistics.median(peer / own for (own, _), (peer, _) in zip(*sides, strict=True))
    return facts | {
        "origin": rows.origin,
        "rows": int(rows.features.shape[0]),
        "columns": int(rows.features.shape[1]),
        "settings": task.settings,
        "ours": float(f"{statistics.median(ours):.7g}"),
        "theirs": float(f"{statistics.median(theirs):.7g}"),
        "gap": float(f"{apart:.3g}"),
        "worst_gap": float(f"{gap(task, max(ours), max(theirs)):.3g}"),
        "as_good": apart <= WITHIN[task.algorithm],
        "ours_s": round(statistics.median(took for took, _ in sides[0]), 4),
        "theirs_s": round(statistics.median(took for took, _ in sides[1]), 4),
        "ratio": round(ratio, 2),
    }


def main() -> None:
    name, seeds = words_of(__doc__, "task", "seeds")
    warnings.simplefilter("ignore")
    first, _, last = seeds.rpartition("-")
    print(json.dumps(record(known(name), range(int(first or 0), int(last) + (1 if first else 0)))))


if __name__ == "__main__":
    main()
