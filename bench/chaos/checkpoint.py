"""Checkpoints under attack: flipped bits, failing and deadly system calls, coordinators that are killed.

    python -m bench.chaos.checkpoint --flips 10000 --system-calls --coordinator-kills 60 --out checkpoint.jsonl

*Flips*: one bit of one file of a folder with three checkpoints; the newest complete one must load and the damage must
be told. *System calls*: a process writes a fourth checkpoint under `strace`, which lets the nth call of each kind fail
(EIO, ENOSPC) or kills the process there, for every n; afterwards a complete checkpoint must load. *Kills*: the
coordinator of a training job gets SIGKILL at a random time; no process may be left, a replacement must train again
within 5 s of its start, and the objective must not be worse than at the last commit.

Each try is a line of JSON. What is in the file already counts, so a run that was broken off can be taken up again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.chaos.result_log import ResultLog
from bench.common import program

CALLS = ("mkdir", "openat", "write", "fsync", "close", "rename", "unlink")
FAULTS = ("error=EIO", "error=ENOSPC", "signal=KILL")
JOBS = (
    ("kmeans", "fsp", "k=8"), ("gmm", "fsp", "k=4"), ("nmf", "fsp", "rank=4"),
    ("kmeans", "bsp", "k=8"), ("gmm", "asp", "k=4"), ("kmeans", "ssp", "k=8"), ("kmeans", "psp", "k=8"),
    ("nmf", "fsp", "rank=4 --set solver=multiplicative"),
)  # fmt: skip
MARK = "/flegel/chaos/mark"
DEADLINE = 240.0  # seconds: beyond that something hangs


# -- flips -------------------------------------------------------------------------------------------------


def flips(count: int, lines: ResultLog, batch: int = 100) -> None:
    from flegel.runtime.checkpoint.reader import read
    from flegel.runtime.checkpoint.store import FolderStore
    from tests.checkpoint.stored_checkpoints import RECORD, check_state, three

    with tempfile.TemporaryDirectory(prefix="flegel-flips-") as scratch:
        folder = Path(scratch) / "job"
        three(FolderStore(folder))
        used = {m.number: {*m.files, m.name} for m in read(FolderStore(folder)).history}
        names = sorted(p.name for p in folder.iterdir() if p.stat().st_size and p.name != "lock")
        for first in range(0, count, batch):
            if lines.done(f"flips {first}"):
                continue
            rng = np.random.default_rng(first)
            loaded = told = 0
            wrong: list[str] = []
            for _ in range(batch):
                name = names[int(rng.integers(len(names)))]
                content = (folder / name).read_bytes()
                at, bit = int(rng.integers(len(content))), int(rng.integers(8))
                (folder / name).write_bytes(content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :])
                try:
                    found = read(FolderStore(folder))
                    if name.endswith(".trace"):
                        assert found.manifest is not None and found.manifest.number == 3
                    else:
                        check_state(found, 1 if name in used[3] else 2)
                    assert found.record == RECORD
                    loaded += 1
                    harmless = not (name in used[3] or name == "job" or name.startswith("commit"))
                    harmless = harmless and not name.endswith(".manifest")
                    assert harmless or found.skipped
                    told += 1
                except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
                    wrong.append(f"{name} byte {at} bit {bit}: {type(error).__name__} {error}"[:200])
                (folder / name).write_bytes(content)
            lines.add(f"flips {first}", kind="flips", flips=batch, loaded=loaded, told=told, wrong=wrong)


# -- system calls ------------------------------------------------------------------------------------------


def write_one(folder: Path) -> None:
    """The child: write the newest checkpoint once more, as the next one."""
    from flegel.machine.checkpoint.events import BeginCheckpoint, SaveCheckpointPart
    from flegel.runtime.checkpoint.reader import read
    from flegel.runtime.checkpoint.store import FolderStore
    from flegel.runtime.checkpoint.writer import Checkpointer

    found = read(FolderStore(folder))
    m = found.manifest
    assert m is not None
    writer = Checkpointer(FolderStore(folder), found.record, found.rows, found)
    workers = tuple(range(len(found.parts)))
    rows = len(found.rows)
    writer.take(
        BeginCheckpoint(m.number + 1, found.state, workers, m.iteration + 1, m.round + 1, m.seconds, m.objective, rows)
    )
    for worker, part in enumerate(found.parts):
        kept = part.kept
        kept.number = m.number + 1
        writer.take(SaveCheckpointPart(worker, kept, part.frames()))
    work = writer.next_checkpoint()
    assert work is not None
    os.access(MARK, os.F_OK)
    try:
        work()
    except OSError as error:
        print(f"told: {error}")
    finally:
        os.access(MARK, os.F_OK)


def child(folder: Path, inject: str | None, log: Path) -> int:
    trace = f"trace={','.join(CALLS)},access,faccessat,faccessat2,mkdirat,renameat,renameat2,unlinkat"
    words = ["strace", "-qq", "-o", str(log), "-e", trace]
    if inject is not None:
        words += ["-e", f"inject={inject}"]
    command = [*words, *program.command("bench.chaos.checkpoint", "--write-one", str(folder))]
    environment = program.environment(PYTHONHASHSEED="0", PYTHONDONTWRITEBYTECODE="1", OPENBLAS_NUM_THREADS="1")
    return subprocess.run(command, env=environment, capture_output=True, timeout=DEADLINE, check=False).returncode


def ordinals(log: Path) -> dict[str, tuple[int, int]]:
    """By system call: how many came before the writing, and how many belong to it."""
    before: dict[str, int] = {}
    inside: dict[str, int] = {}
    marks = 0
    for line in log.read_text(errors="replace").splitlines():
        match = re.match(r"(\w+)\(", line)
        if match is None:
            continue
        if MARK in line:
            marks += 1
        elif marks == 0:
            before[match[1]] = before.get(match[1], 0) + 1
        elif marks == 1:
            inside[match[1]] = inside.get(match[1], 0) + 1
    return {name: (before.get(name, 0), count) for name, count in inside.items()}


def system_calls(lines: ResultLog) -> None:
    from flegel.runtime.checkpoint.reader import read
    from flegel.runtime.checkpoint.store import FolderStore
    from tests.checkpoint.stored_checkpoints import three

    if shutil.which("strace") is None:
        print("strace is not installed; system calls are left out")
        return
    with tempfile.TemporaryDirectory(prefix="flegel-calls-") as scratch:
        base, log = Path(scratch) / "job", Path(scratch) / "log"
        three(FolderStore(base))
        here = Path(scratch) / "copy"
        for _ in range(2):  # the first run may still compile
            shutil.rmtree(here, ignore_errors=True)
            shutil.copytree(base, here)
            child(here, None, log)
        for call, (before, count) in sorted(ordinals(log).items()):
            for fault in FAULTS:
                for nth in range(1, count + 1):
                    name = f"{call} {nth} {fault}"
                    if lines.done(name):
                        continue
                    shutil.rmtree(here, ignore_errors=True)
                    shutil.copytree(base, here)
                    code = child(here, f"{call}:{fault}:when={before + nth}", log)
                    found = read(FolderStore(here))
                    number = found.manifest.number if found.manifest else None
                    whole = number in (3, 4) and not found.skipped and len(found.parts) == 2
                    hit = "INJECTED" in log.read_text(errors="replace") or code in (-9, 137)
                    lines.add(name, kind="system call", hit=hit, exit=code, loaded=number, ok=whole)


# -- kills -------------------------------------------------------------------------------------------------

REPLACEMENT = """
import json, sys
from flegel.runtime.processes import fork_server as nest
place, iteration, level, down = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4] == "down"
told, rows = 0, []
def watch(seen):
    global told
    if seen.iteration > (rows[-1].iteration if rows else iteration):
        rows.append(seen)
    if rows and not told:
        told = 1
        print(json.dumps({"iteration": rows[0].iteration, "objective": rows[0].objective}), flush=True)
    good = rows
    if level is not None:
        edge = 1e-9 * abs(level)
        known = [r for r in rows if r.objective is not None]
        good = [r for r in known if (r.objective <= level + edge if down else r.objective >= level - edge)]
    if good or rows and rows[-1].seconds - rows[0].seconds > 10:
        print(json.dumps({"level_again": good[0].iteration - rows[0].iteration if good else None,
                          "level_again_s": good[0].seconds - rows[0].seconds if good else None}), flush=True)
        raise Interrupted("enough", 0)
with nest.prepared():
    from flegel.errors import Interrupted
    from flegel.runtime.job.resume import replace
    try:
        replace(place, watch=watch)
    except Interrupted:
        pass
"""


def children_seconds() -> float:
    """Processor time of all processes that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def make_data(scratch: Path) -> None:
    rng = np.random.default_rng(0)
    means = rng.normal(scale=1.5, size=(8, 8))
    rows = means[rng.integers(8, size=200_000)] + rng.normal(size=(200_000, 8))
    np.save(scratch / "rows.npy", rows)
    np.save(scratch / "positive.npy", np.abs(rows))


def coordinator_kills(count: int, lines: ResultLog) -> None:
    with tempfile.TemporaryDirectory(prefix="flegel-kills-") as text:
        scratch = Path(text)
        make_data(scratch)
        for turn in range(count):
            name = f"kill {turn}"
            if lines.done(name):
                continue
            algorithm, sync, setting = JOBS[turn % len(JOBS)]
            place = scratch / f"job-{turn}"
            figures = one_kill(scratch, place, algorithm, sync, setting, np.random.default_rng(turn))
            lines.add(name, kind="kill", algorithm=algorithm, sync=sync, setting=setting, **figures)
            shutil.rmtree(place, ignore_errors=True)


def one_kill(
    scratch: Path, place: Path, algorithm: str, sync: str, setting: str, rng: np.random.Generator
) -> dict[str, Any]:
    from flegel.runtime.checkpoint.reader import read
    from flegel.runtime.checkpoint.store import FolderStore
    from flegel.runtime.job.find_algorithm import find_algorithm

    data = "positive.npy" if algorithm == "nmf" else "rows.npy"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}  # as it is installed
    words = (
        f"submit {algorithm} --data {data} --set {setting} --workers 2 --sync {sync} --tolerance 0 --max-seconds 120 "
        f"--no-save --checkpoint {place} --checkpoint-every 1s"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "flegel.cli.main", *words.split()],
        cwd=scratch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env=environment,
    )  # fmt: skip
    deadline = time.monotonic() + DEADLINE
    while not list(place.glob("commit-*")):
        if time.monotonic() > deadline or process.poll() is not None:
            raise SystemExit(f"the job did not begin to train (exit code {process.poll()})")
        time.sleep(0.02)
    time.sleep(float(rng.uniform(0.0, 3.0)))
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    killed = time.monotonic()
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=DEADLINE)
    gone = time.monotonic() - killed
    found = read(FolderStore(place))
    commit, manifest = found.commit, found.manifest
    assert commit is not None
    way = "up" if find_algorithm(algorithm).learning.maximize else "down"
    spent = children_seconds()
    began = time.monotonic()
    second = subprocess.Popen(
        [sys.executable, "-c", REPLACEMENT, str(place), str(commit.iteration), json.dumps(commit.objective), way],
        cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment,
    )  # fmt: skip
    assert second.stdout is not None and second.stderr is not None
    line = second.stdout.readline()
    resumed = time.monotonic() - began
    load = os.getloadavg()[0]
    later = second.stdout.readline()
    try:
        second.wait(DEADLINE)
    except subprocess.TimeoutExpired:
        os.killpg(second.pid, signal.SIGKILL)
    trouble = second.stderr.read()
    after = json.loads(line) if line.startswith("{") else {}
    again = json.loads(later) if later.startswith("{") else {}
    value, before = after.get("objective"), commit.objective
    worse = None if value is None or before is None else (value - before) / abs(before)
    if worse is not None and find_algorithm(algorithm).learning.maximize:
        worse = -worse
    return {
        "orphans": len(alive),
        "workers_gone_s": round(gone, 3),
        "commit": commit.iteration,
        "checkpoint": manifest.iteration if manifest else None,
        "skipped": found.skipped,
        "resumed_s": round(resumed, 3),
        "load": round(load, 1),
        "processor_s": round(children_seconds() - spent, 2),
        "objective_at_commit": before,
        "objective_after": value,
        "worse_by": worse,
        **again,
        "trouble": trouble[-300:],
    }


def summary(lines: ResultLog) -> dict[str, Any]:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for row in lines.rows:
        by_kind.setdefault(row["kind"], []).append(row)
    told: dict[str, Any] = {}
    if found := by_kind.get("flips"):
        told["flips"] = {key: sum(r[key] for r in found) for key in ("flips", "loaded", "told")}
    if found := by_kind.get("system call"):
        told["system calls"] = {
            "tried": len(found),
            "hit": sum(r["hit"] for r in found),
            "ok": sum(r["ok"] for r in found),
        }
    if found := by_kind.get("kill"):
        times = sorted(r["resumed_s"] for r in found)
        judged = [r["worse_by"] for r in found if r["worse_by"] is not None]
        told["kills"] = {
            "tried": len(found),
            "resumed_s": {
                "median": times[len(times) // 2],
                "p99": times[int(0.99 * (len(times) - 1))],
                "max": times[-1],
            },
            "within_5_s": sum(t <= 5.0 for t in times),
            "judged": len(judged),
            "worse": sum(w > 1e-9 for w in judged),
            "at_the_level_after_s": max((r.get("level_again_s") or 0.0 for r in found), default=0.0),
            "orphans": sum(r["orphans"] for r in found),
            "failed": sum(bool(r["trouble"]) and r["objective_after"] is None for r in found),
        }
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=0, help="single bits to flip")
    parser.add_argument("--system-calls", action="store_true", help="let each system call of a writer fail")
    parser.add_argument("--coordinator-kills", type=int, default=0, help="jobs whose coordinator is killed")
    parser.add_argument("--out", type=Path, default=Path("checkpoint.jsonl"), help="JSON lines; appended to")
    parser.add_argument("--write-one", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write_one is not None:
        write_one(given.write_one)
        return
    lines = ResultLog(given.out)
    if given.flips:
        flips(given.flips, lines)
    if given.system_calls:
        system_calls(lines)
    if given.coordinator_kills:
        coordinator_kills(given.coordinator_kills, lines)
    print(json.dumps(summary(lines), indent=1))


if __name__ == "__main__":
    main()
