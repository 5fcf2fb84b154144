"""Groups of a job as processes of their own, for benchmarks: start them, wait, and read what each has found.

    python -m bench.common.site_runs CONFIG.json

runs one group. `train` starts one process for each configuration, in a network namespace where one is given,
`train_in_this_process` a thread. Never decides anything about training.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.program import command, environment, words_of

PATIENCE = 600.0
Line = dict[str, Any]


def make_algorithm(name: str, settings: dict[str, Any]) -> Any:
    if name == "lenet":
        from bench.common.network_runs import KeptLeNet

        return KeptLeNet(**settings)
    from flegel.algorithms.gmm import GMM
    from flegel.algorithms.kmeans import KMeans

    return {"kmeans": KMeans, "gmm": GMM}[name](**settings)


@contextmanager
def timed_rounds() -> Iterator[None]:
    """Groups of this process say in their results when each round began and ended."""
    from flegel.machine.group.exchange import GroupExchange
    from flegel.runtime.group.session import GroupSession

    summary = GroupSession.summary

    def with_times(self: GroupSession, exchange: GroupExchange) -> dict[str, Any]:
        assert self.link is not None
        return {**summary(self, exchange), "times": list(self.link.rounds)}

    GroupSession.summary = with_times  # type: ignore[method-assign]
    try:
        yield
    finally:
        GroupSession.summary = summary  # type: ignore[method-assign]


def run_one(config: Line) -> None:
    """One group; its result goes to the file that the configuration names, θ beside it."""
    import flegel

    algorithm = make_algorithm(config["algorithm"], config["settings"])
    with np.load(config["data"]) as held:
        part = slice(config["at"], None, config["groups"]) if config["mixed"] else slice(*config["rows"])
        rows, labels = held["rows"][part], held["labels"][part] if "labels" in held else None
        test = (held["test"], held["test_labels"]) if "test" in held else None
    result = flegel.run(
        algorithm, rows if labels is None else (rows, labels), group=f"site{config['at']}", bucket=config["bucket"],
        groups=config["groups"], every=config["every"], **config["options"],
    )  # fmt: skip
    line = {
        "objective": result.objective, "iterations": result.iterations, "seconds": result.seconds,
        "reason": result.reason, "outcome": result.outcome, "sites": result.sites,
        "rows": [[row["seconds"], row["iteration"]] for row in result.rows],
    }  # fmt: skip
    if test is not None:
        line["accuracy"] = float(algorithm.evaluate(*test, result.parameter).metrics["accuracy"])
        line["curve"] = _curve(algorithm, result, test, config["curve"]) if config["at"] == 0 else []
    np.savez(Path(config["out"]).with_suffix(".npz"), *[np.asarray(a) for a in result.parameter])
    Path(config["out"]).write_text(json.dumps(line), encoding="utf-8")


def _curve(algorithm: Any, result: Any, test: tuple[Any, Any], points: int) -> list[tuple[float, float]]:
    """Seconds and test accuracy at about so many moments, from weights that were kept."""
    from bench.common.kept_weights import kept

    seconds = {row["iteration"]: row["seconds"] for row in result.rows}
    weights_kept = kept()
    last, found = len(weights_kept) - 1, []
    for at in sorted({round(i * last / max(points - 1, 1)) for i in range(points)}) if last >= 0 else []:
        _, step, weights, buffers = weights_kept[at]
        theta = result.parameter._replace(weights=weights, buffers=buffers)
        accuracy = algorithm.evaluate(*test, theta).metrics["accuracy"]
        found.append((round(float(seconds.get(step, result.seconds)), 2), round(float(accuracy), 4)))
    return found


def train(folder: Path, configs: Sequence[Line], before: Sequence[Sequence[str]] = (), **more: str) -> list[Line]:
    """All groups at the same time; `before`: words in front of each command, `more`: environment."""
    started = []
    for number, config in enumerate(configs):
        path = folder / f"config{number}.json"
        config = {**config, "out": str(folder / f"result{number}.json")}
        path.write_text(json.dumps(config), encoding="utf-8")
        words = [*(before[number] if before else ()), *command("bench.common.site_runs", str(path))]
        log = (folder / f"site{number}.log").open("wb")
        started.append((config, subprocess.Popen(words, env=environment(**more), stdout=log, stderr=log), log))
    until = time.monotonic() + PATIENCE
    try:
        for _, process, _ in started:
            process.wait(max(until - time.monotonic(), 0.1))
    finally:
        for _, process, log in started:
            process.kill()
            process.wait()
            log.close()
    for number, (_, process, _) in enumerate(started):
        if process.returncode:
            said = (folder / f"site{number}.log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"group {number} ended with {process.returncode}: {said}")
    return [json.loads(Path(config["out"]).read_text()) for config, _, _ in started]


def train_in_this_process(folder: Path, configs: Sequence[Line]) -> list[Line]:
    """All groups at the same time in this process, and their workers too: nothing is imported or compiled anew."""
    paths = [folder / f"result{number}.json" for number in range(len(configs))]

    def one(config: Line, path: Path) -> None:
        run_one({**config, "options": {**config["options"], "processes": False}, "out": str(path)})

    with timed_rounds(), ThreadPoolExecutor(len(configs)) as threads:
        for ended in [threads.submit(one, *each) for each in zip(configs, paths, strict=True)]:
            ended.result(PATIENCE)
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def exchange_seconds(lines: Sequence[Line]) -> list[float]:
    """Of each round that all groups took part in: from the last contribution until everybody had the result."""
    seen: dict[int, list[tuple[float, float]]] = {}
    for line in lines:
        for round_, offered, applied in line["sites"]["times"]:
            seen.setdefault(round_, []).append((offered, applied))
    whole = [times for _, times in sorted(seen.items()) if len(times) == len(lines)]
    return [max(applied for _, applied in times) - max(offered for offered, _ in times) for times in whole]


if __name__ == "__main__":
    with timed_rounds():
        run_one(json.loads(Path(words_of(__doc__, "config")[0]).read_text(encoding="utf-8")))
