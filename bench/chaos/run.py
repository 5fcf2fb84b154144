"""The whole chaos suite, one fault after the other; takes about an hour on two cores and may be interrupted.

    python -m bench.chaos.run --out chaos            # everything; what is done already is not done again
    python -m bench.chaos.run --out chaos --only worker-kills,master
    python -m bench.chaos.run --out chaos --part 0.1 # a tenth of every count

Each step is a script beside this one, which appends lines of JSON to a file in the folder. The report, `report.md`
there, says for each fault what is promised, what was run and what the step said in its last line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from bench.common import program


class Step(NamedTuple):
    """One fault. `counts` are scaled by --part."""

    name: str
    promise: str
    script: str
    counts: dict[str, int]
    fixed: tuple[str, ...] = ()
    out: str = "--out"


STEPS = [
    Step("simulated", "30 % dropped, 30 % doubled, reordered; deaths: same final state", "simulate", {"--seeds": 1000},
         out="--book"),
    Step("freezes", "any process SIGSTOP up to 20 s, links cut: no job lost, no attempt wasted", "freezes",
         {"--cells": 40, "--partitions": 20}),
    Step("partitions", "master and slaves in network namespaces, cut off up to 60 s: no job lost or doubled",
         "environment.partitions", {"--cells": 20}),
    Step("pressure", "control groups, disks that fill and empty: causes are named, daemons go on",
         "environment.pressure", {}),
    Step("object-store", "S3 that goes away: training goes on, and can be resumed", "environment.object_store",
         {"--cells": 4}),
    Step("random-faults", "a random fault every 20 s: all jobs done, right, nothing left", "soak",
         {"--minutes": 30, "--jobs": 50}, ("--random",)),
    Step("worker-kills", "worker SIGKILL: resumes within 5 s (p99), no hang, no orphan", "worker", {"--kills": 300}),
    Step("worker-stops", "worker SIGSTOP 1–10 s: the zombie is fenced, no stale change is applied", "worker",
         {"--stops": 60}),
    Step("coordinator-kills", "coordinator SIGKILL: goes on from the last commit within 5 s", "checkpoint",
         {"--coordinator-kills": 60}),
    Step("flips", "bit flips: the newest complete checkpoint loads, damage is told", "checkpoint", {"--flips": 10_000}),
    Step("system-calls", "EIO, ENOSPC, death at every system call of a writer", "checkpoint", {}, ("--system-calls",)),
    Step("master", "master SIGKILL at random and at every write of its journal: no job lost or doubled", "master",
         {"--kills": 60}),
    Step("poison", "poisonous user code: FAILED with the cause, neighbours unharmed, no orphan", "poison", {}),
    Step("intruder", "unknown keys, plain clients, forged identities, wrong roles, replays: nobody gets in", "intruder",
         {"--tries": 10_000}),
    Step("decoder", "hostile bytes: only DecodeError, ≤ 100 MB, ≤ 200 ms per MiB", "decoder",
         {"--inputs": 10_000_000}),
    Step("slow-peer", "a stopped peer: sent = acknowledged + pending, bounded memory", "slow_peer",
         {"--messages": 1_000_000}, out=""),
    Step("soak", "a kill a minute and 200 jobs: no growth, no leaked descriptor", "soak",
         {"--minutes": 20, "--jobs": 200}),
]  # fmt: skip


def command(step: Step, folder: Path, part: float) -> list[str]:
    said = program.command(f"bench.chaos.{step.script}", *step.fixed)
    for name, count in step.counts.items():
        said += [name, str(max(int(count * part), 1))]
    return [*said, step.out, str(folder / f"{step.name}.jsonl")] if step.out else said


def last_words(lines: list[str]) -> str:
    """The last line; all of it where that is the end of a JSON object over several, or the last of an indented list."""
    lines = [line for line in lines if line.strip()]
    start = len(lines) - 1
    while start > 0 and (lines[start].startswith((" ", "}")) or lines[start] == "]"):
        start -= 1
    return " ".join(line.strip() for line in lines[max(start, 0) :])


def carry_out(step: Step, folder: Path, part: float) -> dict[str, object]:
    """Run it, show what it says, keep its last words."""
    order = command(step, folder, part)
    print(f"== {step.name}: {step.promise}", flush=True)
    began, load = time.time(), os.getloadavg()[0]
    said: list[str] = []
    with subprocess.Popen(order, stdout=subprocess.PIPE, text=True, env=program.environment()) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print("  ", line, end="", flush=True)
            said.append(line.rstrip())
    return {
        "name": step.name,
        "command": " ".join(["python", f"bench/chaos/{step.script}.py", *order[2:]]),
        "code": process.returncode,
        "said": last_words(said),
        "seconds": round(time.time() - began, 1),
        "load": round(load, 1),
        "part": part,
    }


def report(done: dict[str, dict[str, object]]) -> str:
    lines = [
        "# Chaos",
        "",
        "| fault and promise | run | said | exit | seconds | load before |",
        "|---|---|---|---|---|---|",
    ]
    for step in STEPS:
        found = done.get(step.name)
        if found is None:
            lines.append(f"| {step.promise} | not run | | | | |")
            continue
        said = str(found["said"]).replace("|", "\\|")[:400]
        what = ", ".join(
            f"{n.strip('-')} {max(int(c * float(str(found['part']))), 1):,}" for n, c in step.counts.items()
        )
        row = [step.promise, what or "all", said, found["code"], found["seconds"], found["load"]]
        lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("chaos"), help="folder of lines and report")
    parser.add_argument("--only", default="", help=f"names with commas between; all by default: {', '.join(names)}")
    parser.add_argument("--part", type=float, default=1.0, help="of every count, for a shorter run")
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name] or names
    if unknown := sorted(set(wanted) - set(names)):
        parser.error(f"no step is called {unknown[0]!r}; there are {', '.join(names)}")
    if not 0 < options.part <= 1:
        parser.error("--part must be more than 0 and at most 1")
    options.out.mkdir(parents=True, exist_ok=True)
    book = options.out / "done.json"
    done = json.loads(book.read_text()) if book.exists() else {}
    for step in STEPS:
        before = done.get(step.name)
        if step.name not in wanted or (before and before["code"] == 0 and before["part"] >= options.part):
            continue
        done[step.name] = carry_out(step, options.out, options.part)
        book.write_text(json.dumps(done, indent=1))
        (options.out / "report.md").write_text(report(done))
    print(report(done))
    sys.exit(any(done[name]["code"] for name in wanted if name in done))


if __name__ == "__main__":
    main()
