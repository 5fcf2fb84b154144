"""A folder through which groups train, damaged on purpose while they do: every group ends, and says what is true.

    python -m bench.chaos.sites --times 20 --out runs/sites.jsonl

Two groups, k-means with k = 3, plain and with keys. While they run, objects of their bucket are damaged at random
moments:

    flip        single bits of an object are inverted
    truncate    an object is cut off
    delete      an object is removed
    swap        two objects change places
    irregular   a pipe, or 3 GiB of zeros, in the place of an object
    foreign     files that no group wrote, under names that groups use
    replay      what an object held earlier is put back in its place
    lies        a third site that is whole in form and sends what cannot be: numbers that are not finite or as large as
                can be, negative visits, more visits than can be counted, a θ that is not finite (plain only: with keys
                it is a stranger, whose objects are refused)

Each run is judged: `hang` where a group had not ended after `LONGEST` seconds; `wrong` where a group ended with a raw
error, with an exit code that is none of Flegel's, with more memory than `MEMORY`, or where the objective that it prints
is not that of its θ over all rows of the groups that it names (1e-9); `other-θ` where two groups that say that they
ended with one result have different θ; `undamaged` where they ended too soon; else `ok`. Appends one JSON line per run;
started again, it goes on where that file ends. Exit code 1 where a run is not ok. Needs `cryptography` for keys;
without it those runs are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import flegel
import flegel.runtime.group.session  # before processes are forked
from bench.chaos.result_log import ResultLog
from flegel.algorithms.kmeans import KMeans
from flegel.errors import DecodeError, FlegelError
from flegel.machine.group.records import (
    Contribution,
    MemberBeat,
    RoundResult,
    contribution_key,
    decode,
    digest_of,
    encode,
)
from flegel.results.result import Result, exit_code
from flegel.runtime.group.keys import PlainObjects, RefusedObject

KINDS = ("flip", "truncate", "delete", "swap", "irregular", "foreign", "replay", "lies")
MODES = ("plain", "keyed")
GROUPS = ("lyon", "paris")
ROWS = 1500  # of each group
TIMEOUT = 2.0  # seconds of silence, the least that is allowed
LONGEST = 150.0  # seconds: twenty times the silence limit for groups that never come, 20 s for a bucket, a busy machine
MEMORY = 1 << 30  # bytes of a group's process: objects of 3 GiB are never read
NEAR = 1e-9
STRANGE = ("members/stranger", "starts/stranger", "starts/notes.txt", "rounds/1/stranger.1f", "rounds/1/notes", "notes",
           "rounds/x/result", "ends/stranger", "current.old")  # fmt: skip


def rows_of(group: str, seed: int) -> Any:
    """Three clusters that touch; each group has the larger part of one."""
    rng = np.random.default_rng([seed, GROUPS.index(group)])
    centres = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    which = rng.choice(3, ROWS, p=[0.6, 0.2, 0.2] if group == GROUPS[0] else [0.2, 0.2, 0.6])
    return centres[which] + rng.normal(size=(ROWS, 2))


def one_group(group: str, folder: Path, seed: int, keyed: bool) -> None:
    """A process: trains, and writes down how it ended."""
    log = os.open(folder / f"{group}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1), os.dup2(log, 2)
    line: dict[str, Any] = {}
    try:
        result = flegel.run(
            KMeans(k=3), rows_of(group, seed), workers=1, processes=False, seed=seed, group=group, sync="bsp",
            bucket=str(folder / "bucket"), groups=len(GROUPS), every="1", group_timeout=TIMEOUT,
            group_key=str(folder / "keys" / f"{group}.json") if keyed else "",
        )  # fmt: skip
        line = _line(result)
    except FlegelError as error:
        line = {"exit": int(error.exit_code), "said": str(error)}
    except BaseException:  # noqa: BLE001 - a raw error is what this looks for
        line = {"exit": -1, "said": traceback.format_exc()[-800:]}
    line["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    (folder / f"{group}.json").write_text(json.dumps(line))
    os._exit(0)


def _line(result: Result) -> dict[str, Any]:
    return {
        "exit": int(exit_code(result.outcome)), "said": result.reason, "outcome": result.outcome,
        "objective": result.objective, "theta": np.asarray(result.parameter.centroids, float).tolist(),
        "objective_of": result.sites["objective_of"], "groups": result.sites["groups"],
        "agreed_in": result.sites["agreed_in"],
    }  # fmt: skip


# -- damage ------------------------------------------------------------------------------------------------


def objects(bucket: Path) -> list[Path]:
    found = []
    for path in bucket.rglob("*"):
        with contextlib.suppress(OSError):
            if not path.name.startswith(".") and path.is_file() and not path.is_symlink():
                found.append(path)
    return sorted(found)


def damage(kind: str, bucket: Path, rng: random.Random) -> str:
    """What was done; empty where nothing could be."""
    held = objects(bucket)
    if kind == "foreign":
        path = bucket / rng.choice(STRANGE)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(rng.choice([0, 1, 40, 5000])))
        return str(path.relative_to(bucket))
    if kind == "lies":
        return lie(bucket, rng)
    if len(held) < 2:
        return ""
    if kind == "replay":
        return replay(bucket, held, rng)
    rounds = [path for path in held if path.parent.parent.name == "rounds" or path.name == "current"]
    path = rng.choice(rounds if rounds and rng.random() < 0.6 else held)
    with contextlib.suppress(FileNotFoundError):  # groups remove and replace objects meanwhile
        _damage_one(kind, path, held, rng)
    return str(path.relative_to(bucket))


_seen: dict[Path, list[bytes]] = {}
"""What objects have held, the oldest first."""


def replay(bucket: Path, held: list[Path], rng: random.Random) -> str:
    """Note what all objects hold, and put an earlier content of one back; empty where none has changed yet."""
    older = []
    for path in held:
        with contextlib.suppress(FileNotFoundError):
            content, known = path.read_bytes(), _seen.setdefault(path, [])
            if content not in known:
                known.append(content)
            older += [(path, one) for one in known if one != content]
    if not older:
        return ""
    path, content = rng.choice(older)
    path.write_bytes(content)
    return str(path.relative_to(bucket))


LIES: tuple[dict[str, Any], ...] = (
    {"value": math.nan}, {"value": math.inf}, {"value": 1e308}, {"value": -1e200}, {"visits": -1e6},
    {"visits": math.nan}, {"visits": 1e300}, {"points": -5}, {"value": math.nan, "of": "result"},
)  # fmt: skip


def lie(bucket: Path, rng: random.Random) -> str:
    """One more beat of a site that is not there, and what it says to have contributed, as a copy of a contribution of
    another one with other numbers; empty before there is one."""
    sent = [path for path in objects(bucket) if path.parent.parent.name == "rounds" and path.name != "result"]
    if not sent:
        return ""
    model, said, seal = rng.choice(sent), rng.choice(LIES), PlainObjects()
    try:
        header, arrays = decode(seal.open(str(model.relative_to(bucket)), model.read_bytes()), Contribution)
    except (FileNotFoundError, RefusedObject, DecodeError):
        return ""
    key = contribution_key(header.round, "liar", 1)
    changes = {name: said[name] for name in ("visits", "points") if name in said}
    lies = msgspec.structs.replace(header, group="liar", life=1, **changes)
    values = [np.full_like(a, said["value"]) if "value" in said and a.dtype.kind == "f" else a for a in arrays]
    content, visits = encode(lies, values), float(changes.get("visits", lies.visits))
    beat = MemberBeat("liar", 1, time.monotonic_ns(), "training", header.round, key, digest_of(content), header.round,
                      visits, package=header.package)  # fmt: skip
    places = {key: content, "members/liar": encode(beat)}
    if said.get("of") == "result":  # of the open round, before the other groups write it
        result = RoundResult(header.round + 1, (), fields=len(values), by="liar", package=header.package)
        places = {f"rounds/{header.round + 1}/result": encode(result, values)}
    for name, one in places.items():
        place = bucket / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(seal.seal(name, one))
    return f"{said} in {key}"


def _damage_one(kind: str, path: Path, held: list[Path], rng: random.Random) -> None:
    if kind == "flip":
        content = bytearray(path.read_bytes())
        for _ in range(rng.randint(1, 3) if content else 0):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
    elif kind == "truncate":
        os.truncate(path, rng.randrange(max(path.stat().st_size, 1)))
    elif kind == "delete":
        path.unlink()
    elif kind == "swap":
        other = rng.choice([p for p in held if p != path])
        one, two = path.read_bytes(), other.read_bytes()
        path.write_bytes(two)
        other.write_bytes(one)
    elif rng.random() < 0.5:
        path.unlink()
        os.mkfifo(path)
    else:
        os.truncate(path, 3 << 30)


# -- one run -----------------------------------------------------------------------------------------------


def run_one(kind: str, mode: str, number: int) -> dict[str, Any]:
    seed = number * 100 + KINDS.index(kind) * 10 + MODES.index(mode)
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="flegel-sites-") as name:
        folder = Path(name)
        if mode == "keyed":
            from flegel.runtime.group.keys import make_key_files

            make_key_files(folder / "keys", list(GROUPS), encrypt=bool(number % 2))
        began = time.monotonic()
        context = multiprocessing.get_context("fork")
        started = [context.Process(target=one_group, args=(group, folder, seed, mode == "keyed")) for group in GROUPS]
        for process in started:
            process.start()
        done = damage_while(started, kind, folder / "bucket", rng, began)
        for process in started:
            process.join(max(began + LONGEST - time.monotonic(), 0.1))
        hung = [g for g, process in zip(GROUPS, started, strict=True) if process.is_alive()]
        for process in started:
            process.kill()
            process.join()
        seconds = time.monotonic() - began
        lines = {g: json.loads(p.read_text()) for g in GROUPS if (p := folder / f"{g}.json").exists()}
        logs = {g: (folder / f"{g}.log").read_text(errors="replace")[-3000:] for g in GROUPS}
    verdict, why = judge(lines, logs, hung, seed, done)
    ends = [(g, lines[g]["exit"], lines[g].get("outcome", "")) for g in GROUPS if g in lines]
    return {"verdict": verdict, "why": why, "damaged": done, "ends": ends, "seconds": round(seconds, 1)}


def damage_while(started: list[Any], kind: str, bucket: Path, rng: random.Random, began: float) -> list[str]:
    """A few damages at random moments, from the first object on."""
    first = bucket if rng.random() < 0.4 else bucket / "rounds"  # before θ(0) is made, or in the rounds
    wanted, done = rng.randint(1, 6), list[str]()
    _seen.clear()
    while len(done) < wanted and any(p.is_alive() for p in started) and time.monotonic() - began < LONGEST:
        if first.is_dir() and (what := damage(kind, bucket, rng)):
            done.append(what)
            time.sleep(0.8 * rng.random())
        else:
            time.sleep(0.01)
    return done


def judge(lines: dict[str, Any], logs: dict[str, str], hung: list[str], seed: int, done: list[str]) -> tuple[str, str]:
    if hung:
        return "hang", f"{', '.join(hung)} did not end; {' | '.join(log[-300:] for log in logs.values())}"
    for group in GROUPS:
        line = lines.get(group)
        if line is None:
            return "wrong", f"{group} ended without a word: {logs[group][-500:]}"
        if line["exit"] not in (0, 1, 2, 3) or "Traceback" in logs[group]:
            return "wrong", f"{group}: a raw error: {line['said']} {logs[group][-500:]}"
        if line["memory"] > MEMORY:
            return "wrong", f"{group} took {line['memory']:,} bytes"
        if "theta" in line:
            rows = np.concatenate([rows_of(name, seed) for name in line["objective_of"]])
            apart = rows[:, None, :] - np.array(line["theta"])[None]
            wanted = float((apart**2).sum(axis=2).min(axis=1).sum())
            if not abs(wanted - line["objective"]) <= NEAR * wanted:
                return "wrong", f"{group} prints {line['objective']}, and its θ has {wanted}: {line['said']}"
    agreed = [line for line in lines.values() if line.get("agreed_in")]
    together = len(agreed) == 2 and agreed[0]["agreed_in"] == agreed[1]["agreed_in"]
    if together and not np.allclose(agreed[0]["theta"], agreed[1]["theta"], rtol=NEAR, atol=1e-12):
        return "other-θ", f"{agreed[0]['theta']} and {agreed[1]['theta']}"
    return ("ok", "") if done else ("undamaged", "")


def summary(log: ResultLog) -> dict[str, Any]:
    cells: dict[str, Counter[str]] = {}
    for row in log.rows:
        cell = cells.setdefault(" ".join(row["name"].split()[:2]), Counter())
        cell[row["verdict"]] += 1
        cell["both converged"] += [end[2] for end in row["ends"]] == ["converged"] * 2
    return {
        "runs": len(log.rows), "verdicts": dict(Counter(row["verdict"] for row in log.rows)),
        "slowest_s": max((row["seconds"] for row in log.rows), default=0.0),
        "ends": dict(Counter(f"exit {end[1]} {end[2]}".strip() for row in log.rows for end in row["ends"])),
        "cells": {name: dict(cell) for name, cell in sorted(cells.items())},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20, help="runs of each kind and mode")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--out", type=Path, default=Path("sites.jsonl"), help="JSON lines; appended to")
    given = parser.parse_args()
    log = ResultLog(given.out)
    modes = given.modes.split(",")
    if "keyed" in modes and importlib.util.find_spec("cryptography") is None:
        print("keyed runs are left out: pip install cryptography", file=sys.stderr)
        modes.remove("keyed")
    for number in range(given.times):
        for kind in given.kinds.split(","):
            for mode in modes:
                name = f"{kind} {mode} {number}"
                if not log.done(name) and (kind, mode) != ("lies", "keyed"):
                    log.add(name, **run_one(kind, mode, number))
    print(json.dumps(summary(log), indent=1))
    if any(row["verdict"] not in ("ok", "undamaged") for row in log.rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
