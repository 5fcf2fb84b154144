"""How many workers can one coordinator serve? Real coordinator, real sockets, workers that are played.

    python -m bench.micro.coordinator_load                            the curve: 16 to 4,096 workers, θ of 1 kB to 64 MB
    python -m bench.micro.coordinator_load --one 1024 --theta 10kB    one point of it, with figures in detail
    python -m bench.micro.coordinator_load --one 1024 --dry           the same without sockets: processor time alone
    python -m bench.micro.coordinator_load --draw BEFORE.json AFTER.json --out PICTURE.svg

Each point runs in a process of its own: the real coordinator machine, driver, cluster class and wire against simulated
workers (common/simulated_workers.py) in a second process, each with its own connection and identity. All reports of a
round are sent at once, which is the worst case, or spread over --spread seconds. Measured: the time from the last
report (taken by the kernel) until the last worker has the new θ, processor time of the coordinator per worker and
barrier, peak memory, and the share of the machine that other programs used meanwhile; where that share is large,
only processor time is meaningful. A lost, doubled or changed message, or an inexact sum, is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from bench.common import program
from bench.common.coordinator_chart import barrier_chart
from bench.common.in_memory_cluster import InMemoryCluster
from bench.common.remote_cluster import SubprocessLauncher
from bench.common.simulated_workers import Part, Played, statistics
from flegel.algorithm import Algorithm
from flegel.core.parallel_sums import add_fields
from flegel.errors import UsageError
from flegel.job import AlgorithmRef, Criteria, SyncSpec
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.messages import LoadShard, TreeLayout
from flegel.params.local import LocalStore
from flegel.runtime.job.driver import drive
from flegel.runtime.processes import worker_cluster
from flegel.runtime.processes.endpoints import LocalEndpoint
from flegel.runtime.worker.process import WorkerConfig
from flegel.sync import make_policy

UNITS = {"kB": 1_000, "MB": 1_000_000, "B": 1}
NUMBERS = (16, 64, 256, 512, 1024, 2048, 4096)
SIZES = ("1kB", "10kB", "100kB", "1MB", "8MB", "64MB")
WARM_UP = 3
MOST_MEMORY = 6e9
"""Bytes that a point of the curve may need, all processes together; larger ones are left out and named."""


class Sums(NamedTuple):
    sums: Any
    counts: Any


class Load_(Algorithm):
    """Statistics of any size; θ depends on all of them."""

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        fresh = np.array(oldParameter)
        used = min(fresh.size, aggregator.sums.size)
        np.multiply(aggregator.sums[:used], 1.0 / aggregator.counts[0], out=fresh[:used])
        return fresh


class Role:
    """A worker's process, which is its player's. As with forked workers, `poll` makes no system call."""

    def __init__(self, player: subprocess.Popen[bytes]) -> None:
        self._player = player

    def poll(self) -> int | None:
        return self._player.returncode

    def __getattr__(self, name: str) -> Any:
        return getattr(self._player, name)


class PlayedCluster(worker_cluster.WorkerCluster):
    """The real cluster with players in place of worker processes."""

    def __init__(self, workers: int, players: int, **part: Any) -> None:
        worker_cluster.MAX_WORKERS = max(worker_cluster.MAX_WORKERS, workers)
        super().__init__(workers, LocalEndpoint(), SubprocessLauncher(self._play))
        self._cuts = [workers * i // players for i in range(players + 1)]
        self._part = part
        self.players: list[subprocess.Popen[bytes]] = []

    def _play(self, config: WorkerConfig) -> Role:
        worker = config.worker
        if worker in self._cuts:
            player = subprocess.Popen(
                program.command("bench.common.simulated_workers"), env=program.environment(),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            assert player.stdin is not None
            last = self._cuts[self._cuts.index(worker) + 1]
            part = Part(config.address, config.token, worker, last, **self._part)
            player.stdin.write(msgspec.json.encode(part) + b"\n")
            player.stdin.flush()
            self.players.append(player)
        return Role(self.players[-1])


def bytes_of(text: str) -> int:
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * factor)
    raise UsageError(f"{text!r} is not a size; write 10kB or 64MB.")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """One point of the curve, in this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    workers = options.one
    theta, size = bytes_of(options.theta), bytes_of(options.aggregator or options.theta)
    machine = coordinator(workers, options.barriers, theta, size)
    if options.dry:
        return {**_dry(machine, workers, size), "workers": workers, "theta": theta, "aggregator": size}
    base, busy = _memory("VmRSS"), _busy()
    profile = _profiler(options.profile)
    with PlayedCluster(
        workers, options.players, aggregator=size, think=options.think, spread=options.spread
    ) as cluster:
        thread, process = time.thread_time(), time.process_time()
        if profile:
            profile.enable()
        drive(machine, cluster)
        if profile:
            profile.disable()
        thread, process = time.thread_time() - thread, time.process_time() - process
        peak = _memory("VmHWM")
        cluster.close()
        lines = [p.stdout.read() for p in cluster.players if p.stdout]
        others = _others(busy, _busy())
    if profile:
        _show(profile)
    played = [msgspec.json.decode(line, type=Played) for line in lines]
    errors = [e for p in played for e in p.errors]
    if any(len(p.sent) != machine.iteration for p in played):
        errors.append(f"{machine.iteration} rounds were folded in, {[len(p.sent) for p in played]} were reported")
    _check(machine, errors, workers)
    return {**_figures(played), **_per_message(thread, process, workers, machine.iteration), **{
        "workers": workers, "theta": theta, "aggregator": size, "spread": options.spread,
        "memory_mb": peak / 1e6, "base_mb": base / 1e6, "others": others,
    }}  # fmt: skip


def coordinator(workers: int, barriers: int, theta: int, size: int) -> Coordinator:
    sums, counts = statistics(size)
    zero = Sums(np.zeros(sums), np.zeros(counts))
    algorithm = Load_()
    form = TreeLayout("array", ())
    loads = {
        w: LoadShard(AlgorithmRef("x", {}), {}, w, workers, 0, form, TreeLayout("Sums", Sums._fields))
        for w in range(workers)
    }
    return Coordinator(
        algorithm, make_policy(SyncSpec("bsp")), Criteria(max_iterations=barriers + WARM_UP, tolerance=0),
        LocalStore(algorithm, np.zeros(max(theta // 8, 1)), zero, add_fields), loads,
    )  # fmt: skip


def _dry(machine: Coordinator, workers: int, size: int) -> dict[str, float]:
    """Without sockets: processor time alone."""
    cluster = InMemoryCluster(workers, size)
    drive(machine, cluster)
    _check(machine, [], workers)
    best, median = np.percentile(cluster.rounds[WARM_UP:-1], [0, 50]) * 1e6 / workers
    return {"best_us": float(best), "median_us": float(median)}


def _figures(played: list[Played]) -> dict[str, float]:
    """From the last report sent to the last θ received, over all players."""
    sent = np.array([p.sent for p in played]).max(axis=0)
    got = np.array([p.got for p in played]).max(axis=0)
    took = (got[1:] - sent[: len(got) - 1])[WARM_UP:] * 1e3
    median, p90 = np.percentile(took, [50, 90])
    return {"median_ms": float(median), "p90_ms": float(p90), "best_ms": float(took.min()), "barriers": len(took)}


def _per_message(thread: float, process: float, workers: int, barriers: int) -> dict[str, float]:
    each = 1e6 / (workers * barriers)
    return {"thread_us": thread * each, "io_us": (process - thread) * each}


def _check(machine: Coordinator, errors: list[str], workers: int) -> None:
    rounds, total = machine.iteration, machine.store.statistics
    if not (total.counts == rounds * workers).all() or not (total.sums == rounds * workers * (workers + 1) / 2).all():
        errors = [*errors, "the sums are not those of every report once"]
    if errors:
        raise SystemExit(f"{len(errors)} errors; the first: {errors[0]}")


def _memory(field: str) -> float:
    """Bytes, from /proc."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return float(line.split()[1]) * 1024
    return 0.0


def _busy() -> tuple[float, float, float]:
    """Seconds since the machine and this process began: of all processors, in use, and in use by us and our players."""
    ticks = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    each, own = os.sysconf("SC_CLK_TCK"), os.times()
    return sum(ticks) / each, (sum(ticks) - ticks[3] - ticks[4]) / each, sum(own[:4])


def _others(before: tuple[float, float, float], after: tuple[float, float, float]) -> float:
    """The share of all processors that other programs had between two looks."""
    whole, used, own = (b - a for a, b in zip(before, after, strict=True))
    return max(0.0, used - own) / max(whole, 1e-9)


def _profiler(wanted: bool) -> Any:
    if not wanted:
        return None
    import cProfile

    return cProfile.Profile()


def _show(profile: Any) -> None:
    import pstats

    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(30)


# -- the curve ---------------------------------------------------------------------------------------------


def points(numbers: list[int], sizes: list[str], deep: str) -> list[tuple[int, str]]:
    """Every number of workers with the size that is promised for; every size with as many as memory allows."""
    found = [(n, deep) for n in numbers]
    found += [(n, s) for s in sizes for n in numbers if s != deep and n in (16, 64, 256, 1024)]
    return found


def need(workers: int, size: int) -> float:
    """Bytes: held report, account, players' θ and report in flight, for each worker."""
    return workers * size * 5.0


def curve(options: argparse.Namespace) -> None:
    numbers = [int(n) for n in options.workers.split(",")]
    rows = []
    print(f"{'workers':>8} {'θ':>7} {'barrier':>12} {'p90':>9} {'thread':>9} {'I/O':>8} {'memory':>9} {'others':>7}")
    for workers, size in points(numbers, options.sizes.split(","), options.deep):
        if need(workers, bytes_of(size)) > MOST_MEMORY:
            print(f"{workers:8} {size:>7}   left out: needs about {need(workers, bytes_of(size)) / 1e9:.0f} GB")
            continue
        barriers = max(6, min(options.barriers, int(3e9 / (workers * bytes_of(size)))))
        command = program.command(
            "bench.micro.coordinator_load", "--one", str(workers), "--theta", size, "--barriers", str(barriers),
            "--think", str(options.think), "--spread", str(options.spread), "--players", str(options.players), "--json",
        )  # fmt: skip
        done = subprocess.run(
            command, env=program.environment(), capture_output=True, text=True, timeout=900, check=False
        )
        if done.returncode:
            raise SystemExit(f"{workers} workers with θ of {size}: {done.stderr.strip().splitlines()[-1]}")
        row = json.loads(done.stdout)
        rows.append(row)
        print(_line(row, size), flush=True)
        if not options.out:
            continue
        found = {"cores": os.cpu_count(), "machine": platform.machine(), "players": options.players, "rows": rows}
        options.out.write_text(json.dumps(found, indent=1) + "\n")


def draw(before: Path, after: Path, out: Path | None, size: str) -> None:
    if out is None:
        raise UsageError("Say where the picture should go: --out PICTURE.svg.")
    old, new = (json.loads(path.read_text()) for path in (before, after))
    origin = f"{after.name} against {before.name}, {new['cores']} cores ({new['machine']})"
    out.write_text(barrier_chart(old["rows"], new["rows"], bytes_of(size), origin) + "\n")


def _line(row: dict[str, Any], size: str) -> str:
    if "best_us" in row:
        return f"{row['workers']:8} {size:>7}   {row['best_us']:.1f} µs at best, {row['median_us']:.1f} µs (median)"
    return (
        f"{row['workers']:8} {size:>7} {row['median_ms']:9.2f} ms {row['p90_ms']:6.1f} ms "
        f"{row['thread_us']:6.1f} µs {row['io_us']:5.1f} µs {row['memory_mb']:6.0f} MB "
        f"{row['others']:6.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default=",".join(map(str, NUMBERS)), help="numbers of workers, commas between")
    parser.add_argument("--sizes", default=",".join(SIZES), help="sizes of θ and of the statistics, commas between")
    parser.add_argument("--deep", default="10kB", help="the size that is measured with every number of workers")
    parser.add_argument("--barriers", type=int, default=60)
    parser.add_argument("--think", type=float, default=0.05, help="seconds between θ and the reports")
    parser.add_argument("--spread", type=float, default=0.0, help="seconds over which reports are strewn")
    parser.add_argument("--players", type=int, default=1, help="processes that play the workers")
    parser.add_argument("--draw", type=Path, nargs=2, metavar="JSON", help="draw two curves, the older one first")
    parser.add_argument("--out", type=Path, help="write the figures as JSON (with --draw: the picture)")
    parser.add_argument("--one", type=int, help="measure this number of workers only")
    parser.add_argument("--theta", default="10kB", help="with --one: bytes of θ")
    parser.add_argument("--aggregator", help="with --one: bytes of the statistics, if not those of θ")
    parser.add_argument("--dry", action="store_true", help="with --one: without sockets, processor time alone")
    parser.add_argument("--profile", action="store_true", help="with --one: where the coordinator's thread computes")
    parser.add_argument("--json", action="store_true", help="with --one: print JSON")
    try:
        act(parser.parse_args())
    except UsageError as error:
        raise SystemExit(str(error)) from None


def act(options: argparse.Namespace) -> None:
    if options.draw:
        draw(*options.draw, options.out, options.deep)
    elif not options.one:
        curve(options)
    else:
        found = measure(options)
        print(json.dumps(found) if options.json else _line(found, options.theta))


if __name__ == "__main__":
    main()
