"""Ranks that are killed, frozen and replaced, and that leave and rejoin, while they train: equal weights, every index
once, goodput.

    python -m bench.chaos.healing --ranks 4 --seconds 120 --every 30 --out runs/healing.json

Ranks of `flegel.torch.join` train a network on generated data, epoch after epoch. At moments drawn from the seed, which
is drawn itself where none is given, one of them is killed (another process takes its place), frozen (it is woken up
once it must have been excluded, and rejoins) or told to leave at a barrier and to rejoin. Faults may overlap: any rank
that is not frozen may be the next one, also one that is joining, as long as two others have trained for a while. Each
rank writes a digest of its weights and the samples of all ranks after every barrier, and each batch that it trained
with the barrier to which it belongs.

It must hold: weights of the same barrier are equal on all ranks; of every finished epoch each index was trained exactly
once, counting the batches whose barrier was committed; no two barriers are further apart than `--limit` seconds (5);
a rank that was frozen while others passed barriers takes part in no later one under its old identity; after the last
fault as many ranks train as at the beginning.
Goodput is samples a second of the whole run over those of all stretches without a fault of the same run. Exits with 1
where something fails. Every length and number is an option: 32 ranks for 30 minutes take a larger machine.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import os
import random
import secrets
import signal
import socket
import statistics
import sys
import tempfile
import time
import traceback
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COLUMNS, BATCH = 32, 16
FREEZES = (1.5, 3.0)  # seconds of a freeze, in units of the silence after which a rank is excluded
SETTLED_SECONDS = 5.0  # after its last fault or its start, in which a rank may have no state of the training yet
START_SECONDS = 180.0  # until all ranks train, at the beginning and after the last fault: a process starts slowly
LAST_LINES = 200  # of a rank's log, with a barrier among them: an interval has fewer batches
POSTPONED_SECONDS = 0.1  # until it is asked again whether enough ranks train for another fault


def train(folder: Path, number: int, address: str, ranks: int, options: argparse.Namespace) -> None:
    """One rank, until the file `stop` appears; `number` names its process."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from flegel.torch import FlexibleDDP, FlexibleSampler, LocalStepsDDP, RankExcluded, TrainingEnded, join

    torch.set_num_threads(1)
    torch.manual_seed(0)
    join(address, ranks=ranks, silence=options.silence)
    features = torch.randn(options.samples, COLUMNS)
    data = TensorDataset(features, features[:, :1], torch.arange(options.samples))
    sampler = FlexibleSampler(data)
    net = torch.nn.Sequential(
        torch.nn.Linear(COLUMNS, options.width), torch.nn.Tanh(), torch.nn.Linear(options.width, 1)
    )
    if options.local_steps:
        model: FlexibleDDP = LocalStepsDDP(net, local_steps=options.local_steps, compress=options.compress)
    else:
        model = FlexibleDDP(net, interval=options.interval, compress=options.compress)
    optimizer = model.optimizer(torch.optim.Adam(model.parameters(), lr=0.001))
    scheduler = model.scheduler(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999))
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=options.workers)
    life, stopping = 0, False
    leaving: list[int] = []
    signal.signal(signal.SIGUSR1, lambda *_: leaving.append(1))
    while not stopping:
        life += 1
        try:
            with (folder / f"rank-{number}-{life}").open("w", buffering=1) as log:
                stopping = epochs(folder, model, sampler, loader, optimizer, scheduler, options, log, leaving)
            if not stopping:
                leaving.clear()
                model.close()
                time.sleep(options.away)
        except RankExcluded as error:
            print(f"process {number}: {error}", file=sys.stderr, flush=True)
        except TrainingEnded:
            break
    model.close()


def epochs(
    folder: Path,
    model: Any,
    sampler: Any,
    loader: Any,
    optimizer: Any,
    scheduler: Any,
    options: Any,
    log: Any,
    leaving: list[int],
) -> bool:
    """From the epoch of the others on; true once the file `stop` has been seen by all ranks at one barrier, false at
    the first barrier after this rank was told to leave."""
    import torch

    first = model.begin(sampler)
    print(json.dumps(["begin", time.time(), model.barriers, model.healer.log.own]), file=log)
    for epoch in range(first, 1_000_000):
        sampler.set_epoch(epoch)
        for inputs, target, indices in loader:
            print(json.dumps(["batch", time.time(), model.barriers, indices.tolist()]), file=log)
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), target)
            if options.pause:
                time.sleep(options.pause)
            loss.backward()
            optimizer.step()
            scheduler.step()
            if model.stepped:
                digest = zlib.crc32(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
                line = ["barrier", time.time(), model.barriers, digest, model.samples_seen, epoch, model.ranks]
                print(json.dumps(line), file=log)
                if model.should_stop(seconds=0.0 if (folder / "stop").exists() else None):
                    return True
                if leaving:
                    return False
    return True


@dataclass
class Processes:
    """Ranks of this run, forked: torch is imported once."""

    folder: Path
    address: str
    options: argparse.Namespace
    running: dict[int, int] = field(default_factory=dict)
    """Process id to the number of the rank's process."""
    started: int = 0

    def start(self) -> int:
        """Another rank; its process id."""
        self.started += 1
        number, pid = self.started, os.fork()
        if pid:
            self.running[pid] = number
            return pid
        code = 1
        os.dup2(os.open(self.folder / f"errors-{number}", os.O_WRONLY | os.O_CREAT), 2)
        try:
            train(self.folder, number, self.address, self.options.ranks, self.options)
            code = 0
        except BaseException:  # noqa: BLE001 - printed, and ends this rank only
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def wait(self, seconds: float) -> dict[int, int]:
        """Exit codes by the number of the process, of all that end within this time; others are killed (-9)."""
        codes, limit = {}, time.time() + seconds
        while self.running and time.time() < limit:
            for pid in list(self.running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[self.running.pop(pid)] = os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        for pid, number in self.running.items():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            codes[number] = -9
        self.running = {}
        return codes

    def end(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        del self.running[pid]


def serve(port: int) -> int:
    """The store, in a process of its own."""
    pid = os.fork()
    if pid:
        return pid
    from flegel.torch.flexible.store import serve as run

    run("127.0.0.1", port)
    os._exit(0)


def faults(processes: Processes, options: argparse.Namespace, draw: random.Random) -> list[dict[str, Any]]:
    """At moments drawn over the whole time, which begins once all ranks train; what was done, and when. What ends a
    fault has a moment as well, so faults may overlap."""
    limit = time.time() + START_SECONDS
    while (
        time.time() < limit and sum(log.stat().st_size > 0 for log in processes.folder.glob("rank-*")) < options.ranks
    ):
        time.sleep(POSTPONED_SECONDS)
    began = time.time()
    number = int(max(options.seconds - 5.0, 0.0) / options.every)
    kinds = [options.kinds[i % len(options.kinds)] for i in range(number)]
    draw.shuffle(kinds)
    moments = sorted(draw.uniform(0.5 * options.every, options.seconds - 5.0) for _ in kinds)
    due: list[tuple[float, int, str, int]] = [
        (began + at, i, kind, 0) for i, (at, kind) in enumerate(zip(moments, kinds, strict=True))
    ]
    heapq.heapify(due)
    done: list[dict[str, Any]] = []
    frozen: dict[int, dict[str, Any]] = {}
    disturbed: dict[int, float] = dict.fromkeys(processes.running, began - SETTLED_SECONDS)
    while due:
        at, order, kind, pid = heapq.heappop(due)
        time.sleep(max(0.0, at - time.time()))
        now = time.time()
        if kind == "replace":
            disturbed[processes.start()] = now
        elif kind == "wake":
            os.kill(pid, signal.SIGCONT)
            frozen.pop(pid)["woken"] = disturbed[pid] = now
        else:
            pid = draw.choice(sorted(set(processes.running) - set(frozen)))
            others = set(processes.running) - set(frozen) - {pid}
            if sum(disturbed[one] <= now - SETTLED_SECONDS for one in others) < 2:
                heapq.heappush(due, (now + POSTPONED_SECONDS, order, kind, 0))
                continue
            disturbed[pid] = now
            done.append({"kind": kind, "process": processes.running[pid], "at": now})
            if kind == "kill":
                processes.end(pid)
                heapq.heappush(due, (now + options.away, order, "replace", 0))
            elif kind == "freeze":
                os.kill(pid, signal.SIGSTOP)
                frozen[pid] = done[-1]
                heapq.heappush(due, (now + draw.uniform(*FREEZES) * options.silence, order, "wake", pid))
            else:
                os.kill(pid, signal.SIGUSR1)
    time.sleep(max(0.0, began + options.seconds - time.time()))
    limit = time.time() + START_SECONDS
    while time.time() < limit and _training(processes.folder) < options.ranks:
        time.sleep(POSTPONED_SECONDS)
    return done


def _training(folder: Path) -> int:
    """Ranks at the latest barrier."""
    lines = [json.loads(text) for log in folder.glob("rank-*") for text in _whole_lines(log)[-LAST_LINES:]]
    return int(max(([line[1], line[6]] for line in lines if line[0] == "barrier"), default=[0.0, 0])[1])


def examine(folder: Path, done: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """What the ranks wrote."""
    digests: dict[int, set[int]] = {}
    times: dict[int, float] = {}
    samples: dict[int, int] = {}
    epochs: dict[int, int] = {}
    ranks: dict[int, int] = {}
    logs = sorted(folder.glob("rank-*"))
    lives = [[json.loads(text) for text in _whole_lines(log)] for log in logs]
    processes = [int(log.name.split("-")[1]) for log in logs]
    for kind, at, barrier, *rest in (line for life in lives for line in life):
        if kind == "barrier":
            digest, samples[barrier], epochs[barrier], ranks[barrier] = rest
            digests.setdefault(barrier, set()).add(digest)
            times[barrier] = min(times.get(barrier, at), at)
    order = sorted(times)
    if len(order) < 3:
        return {
            "barriers": len(order),
            "ranks_at_end": 0,
            "longest_gap_s": float("inf"),
            "unequal_barriers": 0,
            "unclear_barriers": 0,
            "lost_samples": 0,
            "repeated_samples": 0,
            "not_fenced": 0,
        }
    gaps = [times[b] - times[a] for a, b in itertools.pairwise(order)]
    ended = max(epochs.values())
    trained, unclear = committed(lives, samples, epochs)
    lost = {epoch: options.samples - len(set(seen)) for epoch, seen in trained.items() if epoch < ended}
    again = {epoch: len(seen) - len(set(seen)) for epoch, seen in trained.items() if epoch < ended}
    rates = [(samples[order[i + 1]] - samples[order[i]]) / max(gap, 1e-9) for i, gap in enumerate(gaps)]
    usual = statistics.median(gaps)
    recoveries: dict[str, list[float]] = {}
    for one in done:
        after = [
            gap
            for i, gap in enumerate(gaps)
            if times[order[i]] <= one["at"] + 1.5 * options.silence + 0.5 and times[order[i + 1]] >= one["at"]
        ]
        recoveries.setdefault(one["kind"], []).append(round(max(after, default=0.0), 2))
    complete = [
        next(
            (times[b] - one["at"] for b in order if times[b] > _away_until(one, options) and ranks[b] == options.ranks),
            None,
        )
        for one in done
    ]
    quiet = _quiet_rate(order, times, samples, done, options)
    whole = (samples[order[-1]] - samples[order[0]]) / (times[order[-1]] - times[order[0]])
    return {
        "barriers": len(order), "epochs": ended, "samples": samples[order[-1]], "usual_gap_s": round(usual, 4),
        "longest_gap_s": round(max(gaps), 2), "ranks_at_end": _ranks_at_end(order, times, ranks, done, options),
        "recoveries_s": recoveries,
        "recovery_median_s": {kind: round(statistics.median(found), 2) for kind, found in recoveries.items()},
        "recovery_worst_s": {kind: max(found) for kind, found in recoveries.items()},
        "seconds_until_all_ranks_train": [at and round(at, 1) for at in complete],
        "not_fenced": not_fenced(lives, processes, done),
        "unequal_barriers": sum(len(found) > 1 for found in digests.values()),
        "unclear_barriers": unclear, "lost_samples": sum(lost.values()), "repeated_samples": sum(again.values()),
        "samples_per_s": round(whole), "samples_per_s_without_faults": quiet and round(quiet),
        "goodput": quiet and round(whole / quiet, 4),
        "median_rate": round(statistics.median(rates)),
    }  # fmt: skip


def _ranks_at_end(order: list[int], times: Any, ranks: dict[int, int], done: Any, options: Any) -> int:
    """The most that trained together after the last fault: a busy machine may hold one up in the very last moment."""
    last = max((_away_until(one, options) for one in done), default=0.0)
    return max((ranks[b] for b in order if times[b] > last), default=ranks[order[-1]])


def _away_until(fault: dict[str, Any], options: argparse.Namespace) -> float:
    """Before this moment the rank of a fault cannot take part again."""
    return float(fault.get("woken", fault["at"] + options.away))


def not_fenced(lives: list[list[Any]], processes: list[int], done: list[dict[str, Any]]) -> int:
    """Freezes after which a rank passed barriers as if nothing had happened, although others had passed one without it.
    Of barriers before the freeze it may have sent its part, and write of them when it is woken."""

    def without(fault: dict[str, Any], own: set[int]) -> set[int]:
        """Barriers that others passed while it was frozen, and that it never did."""
        return {
            number
            for life, process in zip(lives, processes, strict=True)
            if process != fault["process"]
            for kind, at, number, *_ in life
            if kind == "barrier" and fault["at"] < at < fault["woken"]
        } - own

    found = 0
    for one in done:
        for life, process in zip(lives, processes, strict=True):
            if "woken" in one and process == one["process"] and life and life[0][1] < one["at"]:
                own = {number for kind, _, number, *_ in life if kind == "barrier"}
                found += max(own, default=0) > min(without(one, own), default=math.inf)
    return found


def _whole_lines(log: Path) -> list[str]:
    """Without the last one of a process that was killed while it wrote."""
    text = log.read_text()
    return text[: text.rfind("\n") + 1].splitlines()


def committed(lives: Any, samples: dict[int, int], epochs: dict[int, int]) -> tuple[dict[int, list[int]], int]:
    """Indices of each epoch whose barrier was passed, and barriers whose samples do not add up.

    A rank that was lost at a barrier is in it or not: its samples fill what the others leave of the barrier's number,
    or they do not."""
    trained: dict[int, list[int]] = {}
    unclear = 0
    batches: list[dict[int, list[int]]] = []
    passed: list[set[int]] = []
    for life in lives:
        batches.append({})
        passed.append({number for kind, _, number, *_ in life if kind == "barrier"})
        for kind, _, number, *rest in life:
            if kind == "batch":
                batches[-1].setdefault(number + 1, []).extend(rest[0])
    for barrier, total in samples.items():
        mine = [(one[barrier], barrier in known) for one, known in zip(batches, passed, strict=True) if barrier in one]
        sure = [i for one, known in mine if known for i in one]
        open_ = [one for one, known in mine if not known]
        missing = total - samples.get(barrier - 1, 0) - len(sure)
        fits = [
            chosen
            for count in range(len(open_) + 1)
            for chosen in itertools.combinations(open_, count)
            if sum(map(len, chosen)) == missing
        ]
        unclear += barrier > 1 and not fits
        trained.setdefault(epochs[barrier], []).extend(sure + [i for one in (fits[0] if fits else ()) for i in one])
    return trained, unclear


def _quiet_rate(
    order: list[int], times: dict[int, float], samples: dict[int, int], done: Any, options: Any
) -> float | None:
    """Samples a second in all stretches from `--settled` seconds after a fault to the next one."""
    marks = [times[order[0]], *(one["at"] for one in done), times[order[-1]]]
    made, seconds = 0, 0.0
    for start, end in itertools.pairwise(marks):
        inside = [b for b in order if start + options.settled <= times[b] <= end]
        if len(inside) > 1:
            made += samples[inside[-1]] - samples[inside[0]]
            seconds += times[inside[-1]] - times[inside[0]]
    return made / seconds if seconds else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--every", type=float, default=30.0, help="mean seconds between two faults")
    parser.add_argument("--kinds", nargs="+", choices=["kill", "freeze", "rejoin"], default=["kill", "freeze"])
    parser.add_argument("--silence", type=float, default=1.0)
    parser.add_argument(
        "--away", type=float, default=0.5, help="seconds until a killed rank is replaced, or one that left rejoins"
    )
    parser.add_argument("--settled", type=float, default=8.0, help="seconds after a fault that are not called quiet")
    parser.add_argument("--samples", type=int, default=20_000, help="of an epoch")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--pause", type=float, default=0.004, help="seconds that a batch takes beside its computation")
    parser.add_argument("--interval", type=float, default=0.1)
    parser.add_argument("--local-steps", type=int, default=0, help="between barriers; 0: gradients are exchanged")
    parser.add_argument("--compress", choices=["none", "int8"], default="none", help="of messages with 4,096 values")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--limit", type=float, default=5.0, help="longest time between two barriers, seconds")
    parser.add_argument("--seed", type=int, help="of faults; drawn where none is given")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    # Forked ranks would import these one by one.
    import torch._dynamo  # noqa: F401

    from flegel.torch import FlexibleDDP, LocalStepsDDP  # noqa: F401

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = serve(port)
        processes = Processes(folder, f"tcp://127.0.0.1:{port}", options)
        try:
            for _ in range(options.ranks):
                processes.start()
            done = faults(processes, options, random.Random(options.seed))
            (folder / "stop").write_text("")
            codes = processes.wait(120.0)
            failed = [number for number, code in codes.items() if code > 0]
            errors = {number: (folder / f"errors-{number}").read_text()[-2000:] for number in failed}
            if not any(folder.glob("rank-*")):
                print(json.dumps(errors, indent=1))
                return 1
            found = examine(folder, done, options)
        finally:
            processes.wait(0.0)
            os.kill(store, signal.SIGKILL)
            os.waitpid(store, 0)
    found |= {
        "seed": options.seed,
        "faults": len(done),
        "hung": sum(code == -9 for code in codes.values()),
        "errors": errors,
    }
    bad = [
        k
        for k in (
            "unequal_barriers",
            "unclear_barriers",
            "lost_samples",
            "repeated_samples",
            "not_fenced",
            "hung",
            "errors",
        )
        if found[k]
    ]
    bad += ["longest_gap_s"] if found["longest_gap_s"] > options.limit else []
    bad += ["ranks_at_end"] if found["ranks_at_end"] != options.ranks else []
    print(json.dumps(found, indent=1))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"options": vars(options) | {"out": str(options.out)}, **found}, indent=1))
    if bad:
        print("failed: " + ", ".join(bad), file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
