"""Sites by the thousand: groups and a bucket under faults on virtual time, one world for each kind and seed.

    python -m bench.sites.simulate --seeds 2000                   2,000 of each kind
    python -m bench.sites.simulate --seeds 2000 --kind quorum     of one kind
    python -m bench.sites.simulate --seeds 2000 --drawn           seeds that nobody has run before
    python -m bench.sites.simulate --kind quorum --seed 4711      one, with its scenario

Kinds: `faults` (groups are killed, frozen and join late; the store is stale, slow, away, and lies about failures),
`damaged` (somebody alters objects as well), `ending` (every group ends), `quorum` (of groups of very unequal speed,
with liars in half of the seeds), `fragments` (θ is exchanged in parts, with a quorum and liars in half of the seeds),
`rounded` (the same, and changes and results are rounded).
A seed that breaks a law (`laws.py`) is named; the same seed gives the same course. Exit code 1 where one was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench.sites.laws import BrokenLaw
from bench.sites.world import (
    SiteScenario,
    SiteWorld,
    draw_damaged,
    draw_ending,
    draw_fragments,
    draw_quorum,
    draw_rounded,
    draw_scenario,
)

KINDS: dict[str, Callable[[int], SiteScenario]] = {
    "faults": draw_scenario, "damaged": draw_damaged, "ending": draw_ending, "quorum": draw_quorum,
    "fragments": draw_fragments, "rounded": draw_rounded,
}  # fmt: skip
PIECE_SEEDS = 20  # that a process takes at once: some ten seconds
COUNTED = ("seeds", "results", "store calls", "kills", "freezes", "late joins", "objects damaged", "liars")


def broken_law(scenario: SiteScenario, seed: int, sums: Counter[str] | None = None) -> str:
    """Which law this world breaks; empty where none. `sums`: what happened in it is added."""
    world = SiteWorld(seed, scenario)
    try:
        world.run()
    except BrokenLaw as broken:
        return str(broken)
    except (KeyError, AssertionError, ValueError) as wrong:
        return repr(wrong)
    if sums is not None:
        sums.update(
            {
                "seeds": 1,
                "results": len(world.laws.results),
                "store calls": world.bucket.calls,
                "kills": len(scenario.kills),
                "freezes": len(scenario.freezes),
                "late joins": sum(at > 0.0 for at in scenario.joins),
                "objects damaged": len(scenario.damages),
                "liars": int(bool(scenario.lie)),
            }
        )
    return ""


def first_broken(kind: str, seeds: Iterable[int]) -> str:
    """The first seed that breaks a law, and how; empty where none does."""
    draw = KINDS[kind]
    return next((f"seed {seed}: {why}" for seed in seeds if (why := broken_law(draw(seed), seed))), "")


def some(kind: str, first: int, last: int) -> tuple[Counter[str], dict[str, str]]:
    """What happened in these seeds, in sum, and which broke a law."""
    sums: Counter[str] = Counter()
    found = {f"{kind} {seed}": broken_law(KINDS[kind](seed), seed, sums) for seed in range(first, last)}
    return sums, {name: why for name, why in found.items() if why}


def many(options: argparse.Namespace) -> int:
    first_seed = secrets.randbelow(1 << 31) if options.drawn else options.start
    kinds, until = options.kind or list(KINDS), first_seed + options.seeds
    print(f"seeds {first_seed} to {until - 1}", flush=True)
    pieces = [
        (kind, first, min(first + PIECE_SEEDS, until))
        for first in range(first_seed, until, PIECE_SEEDS)
        for kind in kinds
    ]
    sums: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    broken: dict[str, str] = {}
    began = time.monotonic()
    with ProcessPoolExecutor(options.processes) as pool:
        for (kind, _, _), (more, wrong) in zip(pieces, pool.map(some, *zip(*pieces, strict=True)), strict=True):
            sums[kind].update(more)
            broken |= wrong
            for name, why in wrong.items():
                print(f"BROKEN {name}: {why}", flush=True)
                print(f"  replay: python -m bench.sites.simulate --kind {name.replace(' ', ' --seed ')}", flush=True)
            if options.summary:  # after each piece, so that what was done stays when it is interrupted
                counts = {each: {name: counted[name] for name in COUNTED} for each, counted in sums.items()}
                figures = {"first seed": first_seed, **counts, "broken": broken}
                options.summary.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for kind, counted in sums.items():
        print(f"{kind}: " + ", ".join(f"{counted[name]:,} {name}" for name in COUNTED))
    print(f"{len(broken)} broke a law; {time.monotonic() - began:.0f} s with {options.processes} processes")
    return 1 if broken else 0


def one(options: argparse.Namespace) -> int:
    failed = 0
    for kind in options.kind or list(KINDS):
        scenario = KINDS[kind](options.seed)
        why = broken_law(scenario, options.seed)
        print(scenario)
        print(f"{kind} {options.seed} {'breaks a law: ' + why if why else 'holds'}")
        failed |= bool(why)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=250, help="how many of each kind")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--drawn", action="store_true", help="the first one is drawn now, and told")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument(
        "--kind", choices=list(KINDS), action="append", help="only this kind; may be given several times"
    )
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--summary", type=Path, help="where to write the counts, as JSON")
    options = parser.parse_args()
    if options.seeds < 1 or options.processes < 1:
        parser.error("--seeds and --processes must be at least 1.")
    sys.exit(many(options) if options.seed is None else one(options))


if __name__ == "__main__":
    main()
