"""A cluster that works for a while with a kill a minute: does it grow, does it lose anything, does it leave anything?

    python bench/chaos/soak.py [--minutes 20] [--jobs 200] [--out FILE]

Short jobs are submitted evenly over the time. Once a minute something dies: a worker, a coordinator, a slave (which is
started again) or the master (likewise). Memory and open files of the daemons are written down every ten seconds; growth
is measured from the end of the warm-up, a quarter of the time; daemons that were started again count from their start.
Resumable: a run that was broken off is begun anew, but its lines stay.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

import psutil
from lines import Lines, quantile
from town import Town

from flegel.algorithms.kmeans import KMeans


def measure(town: Town) -> dict[str, tuple[int, float, int]]:
    """Of each daemon: its number, resident MB, open files."""
    assert town.master is not None
    found = {}
    for name, process in {"master": town.master, **town.slaves}.items():
        seen = psutil.Process(process.pid)
        found[name] = (process.pid, seen.memory_info().rss / 1e6, seen.num_fds())
    return found


def kill_something(town: Town, what: str, rng: random.Random) -> str:
    if what == "master":
        town.kill_master()
        time.sleep(rng.uniform(0, 2))
        town.start_master()
    elif what == "slave":
        name = rng.choice(sorted(town.slaves))
        town.kill_slave(name)
        time.sleep(rng.uniform(0, 2))
        town.start_slave(name)
        return name
    else:
        found = town.processes()
        if found:
            victim = rng.choice(found)
            try:
                victim.kill()
            except psutil.NoSuchProcess:
                return "nothing"
    return what


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("chaos/soak.jsonl"))
    parser.add_argument("--daemons-live", action="store_true", help="kill processes of jobs only, to measure growth")
    options = parser.parse_args()
    lines = Lines(options.out)
    rng = random.Random(len(lines.rows))
    run = f"run {sum(r['name'].startswith('end of') for r in lines.rows)}"
    with tempfile.TemporaryDirectory() as folder, Town(Path(folder)) as town, town.client() as client:
        began = time.monotonic()
        seconds = options.minutes * 60
        submitted: list[str] = []
        samples: list[tuple[float, dict[str, tuple[int, float, int]]]] = []
        next_kill, next_sample, kills = 60.0, 0.0, 0
        turn = ["process"] if options.daemons_live else ["process", "slave", "process", "master"]
        while (now := time.monotonic() - began) < seconds:
            if len(submitted) < options.jobs * now / seconds:
                number = len(submitted)
                submitted.append(
                    town.submit(
                        KMeans(k=2, init="first"), "blobs:500", client, workers=1, max_iterations=3,
                        ticket=f"soak-ticket-{number}",
                    )
                )  # fmt: skip
            if now >= next_kill:
                next_kill += 60.0
                what = kill_something(town, turn[kills % len(turn)], rng)
                kills += 1
                lines.add(f"{run} kill {kills}", what=what, at=round(now, 1))
            if now >= next_sample:
                next_sample += 10.0
                samples.append((now, measure(town)))
                lines.add(f"{run} sample", at=round(now, 1), daemons={k: v[1:] for k, v in samples[-1][1].items()})
            time.sleep(0.2)
        states = [town.wait(client, job, seconds=300).state for job in submitted]
        time.sleep(2)
        last = measure(town)
        town.no_orphans()
        growth, files = {}, {}
        for name, (pid, memory, fds) in last.items():
            first = next(
                ((t, s[name]) for t, s in samples if s[name][0] == pid and t >= min(seconds / 4, 300)), None
            )  # fmt: skip
            if first is not None:
                hours = (time.monotonic() - began - first[0]) / 3600
                growth[name] = round((memory - first[1][1]) / hours, 2)
                files[name] = fds - first[1][2]
        slave_folders = [str(p) for name in town.slaves for p in (town.folder / name / "jobs").glob("*")]
        views = client.jobs()
        lines.add(
            f"end of {run}", minutes=options.minutes, jobs=len(submitted), listed=len(views), kills=kills,
            done=states.count("done"), failed=states.count("failed"),
            growth_mb_per_hour=growth, files_more=files, left_on_slaves=len(slave_folders),
            wait_p50=round(quantile([(v.ended or 0) - v.submitted for v in views], 0.5), 1),
        )  # fmt: skip


if __name__ == "__main__":
    main()
