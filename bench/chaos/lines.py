"""What the chaos runs share: results as JSON lines, so that a run that was broken off goes on where it stopped."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "cluster"), str(ROOT)]


class Lines:
    """One JSON object a line; `name` says which try it was."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.read_text().splitlines() if path.exists() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in whole if line.endswith("}")]

    def done(self, name: str) -> bool:
        return any(row["name"] == name for row in self.rows)

    def add(self, name: str, **figures: Any) -> None:
        row = {"name": name, **figures}
        self.rows.append(row)
        with self.path.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")
