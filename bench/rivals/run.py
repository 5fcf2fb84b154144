"""One rival, or Flegel, in a process of its own: `python -m bench.rivals.run CONFIG.json`.

Writes what it measured to the file named in the configuration, again after every look. The clock stands still while
an objective is computed.
End to end is everything else, from the start of the process.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from bench.common.program import words_of

BEGAN = time.monotonic()
FEW = 1_000_000  # rows that are always looked at as a whole
SLACK = 0.001  # of the target: so much a tenth of the rows may differ from all, once it is known by how much they do


class Clock:
    """Seconds of training, and of looking at the objective."""

    def __init__(self) -> None:
        self.training = self.looking = 0.0

    def train(self, work: Any, *args: Any) -> Any:
        began = time.monotonic()
        found = work(*args)
        self.training += time.monotonic() - began
        return found

    def look(self, work: Any, *args: Any) -> Any:
        began = time.monotonic()
        found = work(*args)
        self.looking += time.monotonic() - began
        return found


class Told:
    """What is known so far, in a file: whoever is ended before the target leaves an honest lower bound."""

    def __init__(self, config: dict[str, Any], clock: Clock, maximize: bool) -> None:
        self.config, self.clock, self.maximize = config, clock, maximize
        self.path = Path(config["result"])
        self.curve: list[tuple[float, float]] = []
        self.moved = 0.0
        self.factor: float | None = None
        """The objective of all rows over that of the first tenth, as found at the first look."""

    def good(self, value: float) -> bool:
        return bool(value >= self.config["target"] if self.maximize else value <= self.config["target"])

    def write(self, value: float | None, note: str) -> None:
        if value is not None:
            self.curve.append((self.clock.training, value))
        found = {
            "objective": value,
            "reached": value is not None and self.good(value),
            "seconds": self.clock.training,
            "end_to_end": time.monotonic() - BEGAN - self.clock.looking,
            "moved": self.moved,
            "note": note,
            "curve": self.curve,
        }
        scratch = self.path.with_suffix(".part")
        scratch.write_text(json.dumps(found))
        scratch.replace(self.path)


def main() -> None:
    config = json.loads(Path(words_of(__doc__, "config")[0]).read_text())
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(config["threads"])
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # threads that spin while they wait are slow on a busy machine
    import numpy as np

    from bench.rivals.objectives import OBJECTIVES

    objective, maximize = OBJECTIVES[config["algorithm"]]
    folder = Path(config["folder"])
    clock = Clock()
    told = Told(config, clock, maximize)
    y = np.load(folder / "y.npy") if (folder / "y.npy").exists() else None
    if config["who"] == "flegel":
        flegel(config, folder / "X.npy", y, clock, told, lambda model: objective(np.load(folder / "X.npy"), y, model))
    else:
        X = np.load(folder / "X.npy")
        with np.load(folder / "start.npz") as stored:
            start = {k: stored[k] for k in stored.files}
        rival(config, X, y, start, clock, told, lambda model: objective(X, y, model))


def flegel(config: dict[str, Any], rows: Path, y: Any, clock: Clock, told: Told, objective: Any) -> None:
    """Workers read their own parts of the file; rows with labels beside them come as arrays."""
    import numpy as np

    from flegel.api.jobs import resolve, run

    algorithm = type(resolve(config["algorithm"]))(**config["settings"])
    data = (np.load(rows), y) if y is not None else str(rows)
    result = run(
        algorithm, data, workers=config["threads"], sync="fsp", target=config["target"], tolerance=0,
        max_seconds=config["limit"], seed=config["seed"],
    )  # fmt: skip
    clock.training = result.seconds
    told.write(clock.look(objective, result.parameters), result.reason)


def rival(config: dict[str, Any], X: Any, y: Any, start: Any, clock: Clock, told: Told, objective: Any) -> None:
    from bench.rivals.registry import FIELDS
    from bench.rivals.trainers import Task

    made = FIELDS[config["field"]][config["who"]](Task(X, y, start, config["threads"]))
    told.moved = made.moved
    told.write(None, "did nothing yet")
    try:
        (_whole if made.whole else _steps)(config, made, clock, told, objective)
    finally:
        clock.look(made.close)


def _steps(config: dict[str, Any], made: Any, clock: Clock, told: Told, objective: Any) -> None:
    while clock.training < config["limit"]:
        clock.train(made.step)
        if not clock.look(lambda: near(config, made, told, objective)):
            told.write(None, made.told())
            continue
        value = clock.look(lambda: objective(made.model()))
        told.write(value, made.told())
        if told.good(value):
            return


def near(config: dict[str, Any], made: Any, told: Told, objective: Any) -> bool:
    """Whether it is worth looking at all rows: of many rows, the first tenth says how far it still is."""
    from bench.rivals.objectives import OBJECTIVES

    X, y = made.task.X, made.task.y
    if len(X) < FEW:
        return True
    some = slice(0, len(X) // 10)
    found = OBJECTIVES[config["algorithm"]][0](X[some], None if y is None else y[some], made.model())
    if told.factor is None:
        told.factor = objective(made.model()) / found
    found *= told.factor
    slack = SLACK * abs(config["target"])
    return told.good(found + slack if told.maximize else found - slack)


def _whole(config: dict[str, Any], made: Any, clock: Clock, told: Told, objective: Any) -> None:
    """Tries rounds until the target is reached; only the last try counts."""
    rounds = max(1, config["rounds"] - 1)
    while True:
        clock.looking += clock.training
        clock.training = 0.0
        clock.train(made.fit, rounds)
        value = clock.look(lambda: objective(made.model()))
        told.write(value, f"{rounds} rounds")
        if told.good(value) or clock.training > config["limit"] or rounds >= 64 * config["rounds"]:
            return
        rounds += 1 if rounds < config["rounds"] + 3 else rounds // 4 + 1


if __name__ == "__main__":
    main()
