"""Ranks that are killed, frozen and replaced while they train: goodput, equal weights, every index once.

    python -m bench.chaos.healing --ranks 4 --seconds 120 --every 30 --out runs/healing.json

Ranks of `flegel.torch.join` train a network on generated data, epoch after epoch. Every `--every` seconds, at a moment
drawn from the seed, one of them is killed (another process takes its place) or frozen (it is woken up after it was
excluded, and rejoins). Each rank writes a digest of its weights and the samples of all ranks after every barrier, and
each batch that it trained with the barrier to which it belongs.

It must hold: weights of the same barrier are equal on all ranks; of every finished epoch each index was trained exactly
once, counting the batches whose barrier was committed; no two barriers are further apart than `--limit` seconds (5).
Goodput is samples a second of the whole run over those of the longest stretch without a fault of the same run. Exits
with 1 where something fails. Every length and number is an option: 32 ranks for 30 minutes take a larger machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
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
        model: FlexibleDDP = LocalStepsDDP(net, local_steps=options.local_steps)
    else:
        model = FlexibleDDP(net, interval=options.interval)
    optimizer = model.optimizer(torch.optim.Adam(model.parameters(), lr=0.001))
    scheduler = model.scheduler(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999))
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=options.workers)
    life, stopping = 0, False
    while not stopping:
        life += 1
        try:
            with (folder / f"rank-{number}-{life}").open("w", buffering=1) as log:
                stopping = epochs(folder, model, sampler, loader, optimizer, scheduler, options, log)
        except RankExcluded as error:
            print(f"process {number}: {error}", file=sys.stderr, flush=True)
        except TrainingEnded:
            break
    model.close()


def epochs(
    folder: Path, model: Any, sampler: Any, loader: Any, optimizer: Any, scheduler: Any, options: Any, log: Any
) -> bool:
    """From the epoch of the others on; true once the file `stop` has been seen by all ranks at one barrier."""
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
                line = ["barrier", time.time(), model.barriers, digest, model.samples_seen, epoch]
                print(json.dumps(line), file=log)
                if model.should_stop(seconds=0.0 if (folder / "stop").exists() else None):
                    return True
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

    def start(self) -> None:
        self.started += 1
        number, pid = self.started, os.fork()
        if pid:
            self.running[pid] = number
            return
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
    """One at a time until the time is over; what was done, and when."""
    done, began = [], time.time()
    due = began + options.every
    while due < began + options.seconds - 5.0:
        time.sleep(max(0.0, due + draw.uniform(-0.2, 0.2) * options.every - time.time()))
        due += options.every
        pid = draw.choice(sorted(processes.running))
        kind = options.kinds[len(done) % len(options.kinds)]
        done.append({"kind": kind, "process": processes.running[pid], "at": time.time()})
        if kind == "kill":
            processes.end(pid)
            time.sleep(options.away)
            processes.start()
        else:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(max(options.away, 2.0 * options.silence))
            os.kill(pid, signal.SIGCONT)
    time.sleep(max(0.0, began + options.seconds - time.time()))
    return done


def examine(folder: Path, done: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """What the ranks wrote."""
    digests: dict[int, set[int]] = {}
    times: dict[int, float] = {}
    samples: dict[int, int] = {}
    epochs: dict[int, int] = {}
    lives = [[json.loads(text) for text in _whole_lines(log)] for log in sorted(folder.glob("rank-*"))]
    for kind, at, barrier, *rest in (line for life in lives for line in life):
        if kind == "barrier":
            digest, samples[barrier], epochs[barrier] = rest
            digests.setdefault(barrier, set()).add(digest)
            times[barrier] = min(times.get(barrier, at), at)
    order = sorted(times)
    if len(order) < 3:
        return {
            "barriers": len(order),
            "longest_gap_s": float("inf"),
            "unequal_barriers": 0,
            "unclear_barriers": 0,
            "lost_samples": 0,
            "repeated_samples": 0,
        }
    gaps = [times[b] - times[a] for a, b in itertools.pairwise(order)]
    ended = max(epochs.values())
    trained, unclear = committed(lives, samples, epochs)
    lost = {epoch: options.samples - len(set(seen)) for epoch, seen in trained.items() if epoch < ended}
    again = {epoch: len(seen) - len(set(seen)) for epoch, seen in trained.items() if epoch < ended}
    rates = [(samples[order[i + 1]] - samples[order[i]]) / max(gap, 1e-9) for i, gap in enumerate(gaps)]
    usual = statistics.median(gaps)
    recoveries = []
    for one in done:
        after = [
            gap
            for i, gap in enumerate(gaps)
            if times[order[i]] <= one["at"] + 1.5 * options.silence + 0.5 and times[order[i + 1]] >= one["at"]
        ]
        recoveries.append(round(max(after, default=0.0), 2))
    quiet = _quiet_rate(order, times, samples, done, options)
    whole = (samples[order[-1]] - samples[order[0]]) / (times[order[-1]] - times[order[0]])
    return {
        "barriers": len(order), "epochs": ended, "samples": samples[order[-1]], "usual_gap_s": round(usual, 4),
        "longest_gap_s": round(max(gaps), 2), "recoveries_s": recoveries,
        "unequal_barriers": sum(len(found) > 1 for found in digests.values()),
        "unclear_barriers": unclear, "lost_samples": sum(lost.values()), "repeated_samples": sum(again.values()),
        "samples_per_s": round(whole), "samples_per_s_without_faults": quiet and round(quiet),
        "goodput": quiet and round(whole / quiet, 4),
        "median_rate": round(statistics.median(rates)),
    }  # fmt: skip


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
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two faults")
    parser.add_argument("--kinds", nargs="+", choices=["kill", "freeze"], default=["kill", "freeze"])
    parser.add_argument("--silence", type=float, default=1.0)
    parser.add_argument("--away", type=float, default=0.5, help="seconds until a killed rank is replaced")
    parser.add_argument("--settled", type=float, default=8.0, help="seconds after a fault that are not called quiet")
    parser.add_argument("--samples", type=int, default=20_000, help="of an epoch")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--pause", type=float, default=0.004, help="seconds that a batch takes beside its computation")
    parser.add_argument("--interval", type=float, default=0.1)
    parser.add_argument("--local-steps", type=int, default=0, help="between barriers; 0: gradients are exchanged")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--limit", type=float, default=5.0, help="longest time between two barriers, seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import torch._dynamo  # noqa: F401 - forked ranks would import it one by one

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
            codes = processes.wait(30.0)
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
    found |= {"faults": len(done), "hung": sum(code == -9 for code in codes.values()), "errors": errors}
    bad = [
        k
        for k in ("unequal_barriers", "unclear_barriers", "lost_samples", "repeated_samples", "hung", "errors")
        if found[k]
    ]
    bad += ["longest_gap_s"] if found["longest_gap_s"] > options.limit else []
    print(json.dumps(found, indent=1))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"options": vars(options) | {"out": str(options.out)}, **found}, indent=1))
    if bad:
        print("failed: " + ", ".join(bad), file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
