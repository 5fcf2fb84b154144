"""One rival, or Flegel, in a process of its own: `python run.py CONFIG.json`.

Writes what it measured to the file named in the configuration. The clock stands still while an objective is computed.
End to end is everything else, from the start of the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

BEGAN = time.monotonic()


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


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(config["threads"])
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # threads that spin while they wait are slow on a busy machine
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import numpy as np

    from rivals.objectives import OBJECTIVES

    objective, maximize = OBJECTIVES[config["algorithm"]]
    folder = Path(config["folder"])
    clock = Clock()
    X = np.load(folder / "X.npy")
    y = np.load(folder / "y.npy") if (folder / "y.npy").exists() else None

    def good(value: float) -> bool:
        return bool(value >= config["target"] if maximize else value <= config["target"])

    if config["who"] == "flegel":
        found = flegel(config, X, y, clock)
    else:
        with np.load(folder / "start.npz") as stored:
            start = {k: stored[k] for k in stored.files}
        found = rival(config, X, y, start, clock, lambda model: objective(X, y, model), good)
    ended = time.monotonic()
    value = objective(X, y, found.pop("model"))
    found |= {
        "objective": value,
        "reached": good(value),
        "seconds": clock.training,
        "end_to_end": ended - BEGAN - clock.looking,
    }
    Path(config["result"]).write_text(json.dumps(found))


def flegel(config: dict[str, Any], X: Any, y: Any, clock: Clock) -> dict[str, Any]:
    from flegel.api import resolve, run

    algorithm = type(resolve(config["algorithm"]))(**config["settings"])
    result = run(
        algorithm, (X, y) if y is not None else X, workers=config["threads"], sync="fsp", target=config["target"],
        tolerance=0, max_seconds=config["limit"], seed=config["seed"],
    )  # fmt: skip
    clock.training = result.seconds
    return {"model": result.parameters, "note": result.reason}


def rival(
    config: dict[str, Any], X: Any, y: Any, start: Any, clock: Clock, objective: Any, good: Any
) -> dict[str, Any]:
    from rivals.trainers import RIVALS, Task

    made = RIVALS[config["algorithm"]][config["who"]](Task(X, y, start, config["threads"]))
    try:
        if made.whole:
            return _whole(config, made, clock, objective, good)
        steps = 0
        while clock.training < config["limit"]:
            clock.train(made.step)
            steps += 1
            if good(clock.look(lambda: objective(made.model()))):
                break
        return {"model": made.model(), "note": f"{steps / made.steps_a_pass:g} passes"}
    finally:
        clock.look(made.close)


def _whole(config: dict[str, Any], made: Any, clock: Clock, objective: Any, good: Any) -> dict[str, Any]:
    """Tries rounds until the target is reached; only the last try counts."""
    rounds = max(1, config["rounds"] - 1)
    while True:
        clock.looking += clock.training
        clock.training = 0.0
        clock.train(made.fit, rounds)
        reached = good(clock.look(lambda: objective(made.model())))
        if reached or clock.training > config["limit"] or rounds >= 64 * config["rounds"]:
            return {"model": made.model(), "note": f"{rounds} rounds"}
        rounds += 1 if rounds < config["rounds"] + 3 else rounds // 4 + 1


if __name__ == "__main__":
    main()
