"""Results of chaos runs as JSON lines: an interrupted run continues where it stopped. Judges nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class ResultLog:
    """One JSON object a line, those of an earlier run included; `name` identifies a try."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.read_text().splitlines() if path.exists() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in whole if line.endswith("}")]
        self._names = {row["name"] for row in self.rows}

    def done(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str, **figures: Any) -> None:
        row = {"name": name, **figures}
        self.rows.append(row)
        self._names.add(name)
        with self.path.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")
