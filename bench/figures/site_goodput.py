"""What part of their time do 1,000 sites with a million workers train to some purpose, when workers fail?

    python -m bench.figures.site_goodput --summary site-goodput.json

Virtual time. Workers fail independently; a failure stops what must wait for that worker for the seconds of a recovery.
Synchronous training stops as a whole. A site stops alone, and loses what it has done since its last contribution; when
a round ends is decided by the real quorum and grace window (flegel/machine/group/quorum.py). Goodput is the time whose
work is in a result, of all time of all sites. The recovery time is the one with which synchronous training of all
workers has 27 %, as Decoupled DiLoCo says of it: so both are compared under one rate of failures. Seeds are drawn.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from flegel.machine.group.quorum import GraceWindow

YEAR = 365.0 * 86400.0
SYNCHRONOUS = 0.27  # goodput of synchronous data parallelism, in the abstract of the comparison
INTERVAL = 60.0  # seconds that a site trains between a result and its next contribution
RESULT_SECONDS = 2.0  # from the decision to end a round until its result is everywhere
SENDING_SECONDS = 3.0
SPREAD = 0.1  # of the logarithm of a site's time for an interval
LOOK = 0.5  # seconds between two decisions of a round that has its quorum
QUORUM = 0.5  # of the sites


def recovery_seconds(workers: int, mean_seconds_between_failures: float) -> float:
    """With which synchronous training has the goodput above: 1 / (1 + recovery × failures a second)."""
    return (1.0 / SYNCHRONOUS - 1.0) * mean_seconds_between_failures / workers


def synchronous(workers: int, between_failures: float, recovery: float, rng: np.random.Generator) -> float:
    """A failure of any worker stops all of them."""
    up = rng.exponential(between_failures / workers, 20_000)
    return float(up.sum() / (up.sum() + recovery * len(up)))


class Sites:
    """When each site contributes, and what a contribution holds."""

    def __init__(self, count: int, between_failures: float, recovery: float, rng: np.random.Generator) -> None:
        """`between_failures`: of a site."""
        self.count, self._between, self._recovery, self._rng = count, between_failures, recovery, rng
        self._fails = rng.exponential(between_failures, count)
        self.since, self.sent_at, self.arrives = np.zeros(count), np.zeros(count), np.zeros(count)

    def train(self, site: int, begins: float, since: float) -> None:
        """The next contribution of a site: an interval after `begins`, with all that it did after `since`."""
        takes = INTERVAL * float(np.exp(SPREAD * self._rng.normal()))
        sent = begins + takes
        while self._fails[site] < sent:
            since = max(float(self._fails[site]), begins) + self._recovery
            sent = since + takes
            self._fails[site] = since + self._rng.exponential(self._between)
        self.since[site], self.sent_at[site], self.arrives[site] = since, sent, sent + SENDING_SECONDS


def round_end(sites: Sites, window: GraceWindow, opened: float, quorum: float) -> float:
    """When the round ends; contributions that arrive later are part of a later one."""
    window.opened(opened)
    order = np.argsort(sites.arrives)
    needed, now, there = max(int(np.ceil(quorum * sites.count)), 1), opened, 0
    while True:
        while there < sites.count and sites.arrives[order[there]] <= now:
            site = int(order[there])
            window.arrived(str(site), sites.sent_at[site] - sites.since[site], max(float(sites.arrives[site]), opened))
            there += 1
        late = [str(site) for site in order[there:]]
        decided = window.decide(there, needed, late, now)
        if decided.ends:
            window.closed(late, now)
            return now
        following = float(sites.arrives[order[max(there, needed - 1)]])
        now = max(min(following, decided.look_at), now + LOOK) if there >= needed else max(following, opened)


def groups(
    count: int, between_failures: float, recovery: float, quorum: float, waits: bool, rounds: int,
    rng: np.random.Generator,
) -> dict[str, float]:  # fmt: skip
    """Goodput, seconds of a round, and how many rounds late contributions were. `waits`: a site trains on only when it
    has the result of what it sent."""
    sites, window = Sites(count, between_failures, recovery, rng), GraceWindow(None, RESULT_SECONDS)
    for site in range(count):
        sites.train(site, 0.0, 0.0)
    opened, useful, lengths, late = 0.0, 0.0, list[float](), list[float]()
    for _ in range(rounds):
        end = round_end(sites, window, opened, quorum)
        counted = np.flatnonzero(sites.arrives <= end)
        useful += float((sites.sent_at[counted] - sites.since[counted]).sum())
        late.append(1.0 - len(counted) / count)
        result = end + RESULT_SECONDS
        for site in counted:
            sites.train(int(site), result, result if waits else float(sites.sent_at[site]))
        lengths.append(result - opened)
        opened = result
    return {
        "goodput": round(useful / (count * opened), 4),
        "round_seconds": round(float(np.median(lengths)), 1),
        "late_share": round(float(np.mean(late)), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--summary", type=Path)
    options = parser.parse_args()
    between, began, lines = YEAR, time.perf_counter(), list[dict[str, Any]]()
    recovery = recovery_seconds(options.workers, between)
    seeds = [int(seed) for seed in np.random.SeedSequence().generate_state(options.seeds)]
    for count in (8, 64, 1000):
        for factor in (1.0, 10.0):
            each = between / factor * count / options.workers
            ways = {"all, waiting": (1.0, True), "all": (1.0, False), "quorum, waiting": (QUORUM, True),
                    "quorum": (QUORUM, False)}  # fmt: skip
            for name, (quorum, waits) in ways.items():
                found = [
                    groups(count, each, recovery, quorum, waits, options.rounds, np.random.default_rng(seed))
                    for seed in seeds
                ]
                one = [
                    synchronous(options.workers, between / factor, recovery, np.random.default_rng(s)) for s in seeds
                ]
                line = {"sites": count, "failures": factor, "way": name, "synchronous": round(float(np.mean(one)), 4)}
                lines.append({**line, **{key: round(float(np.mean([f[key] for f in found])), 4) for key in found[0]}})
                print(json.dumps(lines[-1]), flush=True)
    figures = {"recovery_seconds": round(recovery, 1), "seeds": seeds, "workers": options.workers, "lines": lines,
               "rounds": options.rounds, "seconds": round(time.perf_counter() - began, 1)}  # fmt: skip
    if options.summary:
        options.summary.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
