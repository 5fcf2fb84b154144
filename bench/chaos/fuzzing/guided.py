"""The targets of `bench.chaos.fuzz` under libFuzzer, by atheris: guided by the branches and comparisons of the package.

    python -m bench.chaos.fuzzing.guided --seconds 30 --out guided.json      every target for so long
    python -m bench.chaos.fuzzing.guided --target journal --seconds 600      one of them

atheris has no wheel for aarch64; there `CLANG_BIN=$(which clang) pip install atheris` builds it with Debian's `clang`
and `libclang-rt-14-dev`. Each target runs in a process of its own; inputs that reach something new stay in `--corpus`.
An input may take 120 s by the clock here; slow ones are found by `bench.chaos.fuzz`, which counts processor time. Exit
code 1 where something was found.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

STUCK = 120
"""Seconds by the clock for one input."""
MEMORY_MIB = 4096
READERS = (
    "flegel.loading", "flegel.datasets", "flegel.runtime.checkpoint", "flegel.runtime.transport",
    "flegel.results.prediction",
    "flegel.runtime.job.result_store", "flegel.machine.checkpoint", "flegel.cluster.master", "flegel.cluster.transport",
    "flegel.machine.group", "flegel.machine.migration", "flegel.runtime.group", "flegel.runtime.job.resume",
    "flegel.loading.class_source", "flegel.compare", "flegel.report", "flegel.dashboard", "flegel.sim.replay",
)  # fmt: skip
"""What is instrumented: everything that reads foreign bytes, except code that numba compiles."""
LONGEST = 1 << 18
"""Bytes of an input."""


def work(name: str, corpus: Path, arguments: list[str]) -> None:
    """In a process of its own: libFuzzer's loop, which ends it."""
    import atheris

    with atheris.instrument_imports(include=["flegel"], exclude=others()):
        from bench.chaos.fuzzing.targets import targets

        os.environ["FLEGEL_MEMORY"] = "64M"
        folder = Path(tempfile.mkdtemp(dir=corpus.parent))  # stays: libFuzzer ends this process
        made = {target.name: target for target in targets(folder)}
    target = made[name]
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)

    def mutate(data: bytes, longest: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return bytes(atheris.Mutate(data, longest))
        return target.change(data, rng, target.seeds)[:longest]

    atheris.Setup([sys.argv[0], *arguments, str(corpus)], target.run, custom_mutator=mutate)
    atheris.Fuzz()


def others() -> list[str]:
    """Modules that are not instrumented."""
    root, found = Path(__file__).parents[3], []
    for path in (each for part in ("flegel", "algorithms", "datasets") for each in (root / part).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts if parts[0] == "flegel" else ("flegel", *parts)).removesuffix(".__init__")
        if not name.startswith(READERS) or "numba" in path.read_text():
            found.append(name)
    return found


def names() -> list[str]:
    from bench.chaos.fuzzing.targets import remove, scratch, targets

    folder = scratch()
    try:
        return [target.name for target in targets(folder)]
    finally:
        remove(folder)


def fuzz(name: str, seconds: int, corpus: Path) -> dict[str, Any]:
    """One target; what libFuzzer says at the end."""
    corpus.mkdir(parents=True, exist_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as place:
        limits = [f"-timeout={STUCK}", f"-rss_limit_mb={MEMORY_MIB}", f"-max_len={LONGEST}"]
        arguments = [f"-max_total_time={seconds}", *limits, f"-artifact_prefix={place}/"]
        command = [sys.executable, "-m", "bench.chaos.fuzzing.guided", "--work", name, str(corpus), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        found = [path.read_bytes() for path in Path(place).iterdir()]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    progress = re.findall(r"#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+)", done.stderr)
    inputs, covered, features = map(int, progress[-1]) if progress else (0, 0, 0)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "target": name, "inputs": inputs, "edges": covered, "features": features, "processor_s": round(spent, 1),
        "code": done.returncode, "found": [base64.b64encode(each).decode()[:4096] for each in found],
        "tail": done.stderr[-2000:] if done.returncode else "",
    }  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=30, help="for each target")
    parser.add_argument("--target")
    parser.add_argument("--corpus", type=Path, help="where inputs are kept; nowhere by default")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        base = given.corpus or Path(scratch)
        for name in [given.target] if given.target else names():
            rows.append(fuzz(name, given.seconds, base / name.replace("/", "-").replace(" ", "-")))
            print(json.dumps({key: value for key, value in rows[-1].items() if key != "tail"}), flush=True)
    broken = [row for row in rows if row["code"]]
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
    for row in broken:
        print(row["target"], row["tail"], file=sys.stderr)
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
