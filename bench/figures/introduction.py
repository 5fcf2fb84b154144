"""What do a second job on the machine, and the loss of a worker, cost a job with barriers?

The FSP paper's introduction: k-means on HIGGS with sixteen workers takes 1,050 s instead of 122 beside another job of
one worker, and up to half as long again where a worker is revoked and its replacement takes a minute to start. Here:
the same job alone, beside a second real job of one worker and of a quarter as many workers, and with one worker killed
in the middle, replaced and not, under bsp and fsp; medians of `--repeat` runs.
"""

from __future__ import annotations

import math
import os
import signal
import statistics
from typing import Any

import flegel
from bench.common import suite
from bench.common.record import Table
from bench.common.second_job import second_job, workers_beside
from flegel.algorithms.kmeans import KMeans

FIGURE = "Introduction"
NEEDS = ("sync:fsp", "algorithm:kmeans")
MODELS = ("bsp", "fsp")
ROWS = {"smoke": 8_000, "laptop": 250_000, "small": 8_000_000, "paper": 11_000_000}
CASE = suite.SWEEP._replace(settings={"k": 200}, rows=ROWS)
"""Four times the clusters of the other figures: a job of a fraction of a second is over before a replacement starts."""
PAPER = {"beside one worker": "8.6 (122 s, then 1,050 s)", "a worker is revoked": "up to 1.5"}
MOST_TIMES_LONGER = 20.0
"""A disturbed run is ended when it has taken so many times as long as the undisturbed one."""


class Revoke(flegel.Callback):
    """Kills one worker when half of the usual time has passed."""

    def __init__(self, cluster: flegel.LocalCluster, worker: int, after: float) -> None:
        self._cluster, self._worker, self._after = cluster, worker, after
        self.killed = False

    def after_barrier(self, snapshot: Any) -> None:
        process = self._cluster.registry.processes.get(self._worker)
        if not self.killed and process is not None and snapshot.seconds >= self._after:
            self.killed = True
            os.kill(process.pid, signal.SIGKILL)


class Disturbed:
    """Runs of one job to one target, alone and disturbed."""

    def __init__(self, bench: suite.Suite, target: float) -> None:
        self.bench, self.target = bench, target
        self.alone: dict[str, float] = {}
        self.rows: list[list[str]] = []

    def run(self, sync: str, seconds: float, revoked_after: float | None = None, replace: bool = True) -> float | None:
        """Seconds to the target, the median of several runs; None where one did not reach it, NaN where no worker was
        killed before the end."""
        times = []
        for _ in range(self.bench.repeat):
            one = self._once(sync, seconds, revoked_after, replace)
            if one is None or math.isnan(one):
                return one
            times.append(one)
        return statistics.median(times)

    def _once(self, sync: str, seconds: float, revoked_after: float | None, replace: bool) -> float | None:
        if revoked_after is None:
            return self._train(sync, seconds, self.bench.cluster(self.bench.workers), [], replace)
        with flegel.LocalCluster(self.bench.workers) as cluster:
            revoke = Revoke(cluster, self.bench.workers - 1, revoked_after)
            found = self._train(sync, seconds, cluster, [revoke], replace)
        return found if revoke.killed else math.nan

    def _train(
        self, sync: str, seconds: float, cluster: flegel.LocalCluster, callbacks: list[Revoke], replace: bool
    ) -> float | None:
        result = flegel.run(
            KMeans(**CASE.settings), self.bench.data(CASE), cluster=cluster, workers=self.bench.workers,
            sync=sync, target=self.target, tolerance=0.0, max_seconds=seconds, seed=self.bench.options.seed,
            callbacks=callbacks, replace=replace, progress=False,
        )  # fmt: skip
        reached = result.objective is not None and result.objective <= self.target
        return float(result.seconds) if reached else None

    def tell(self, sync: str, how: str, paper: str, found: float | None, limit: float) -> None:
        """A row, and a sentence where there is a ratio."""
        alone = self.alone[sync]
        if found is not None and math.isnan(found):
            self.bench.skip(f"{how}: {sync}", "the job ended before the worker was to be killed")
            return
        times = f"{found / alone:.2f}" if found else f"> {limit / alone:.2f}"
        self.rows.append([how, sync, f"{alone:.2f}", f"{found:.2f}" if found else "–", times, PAPER.get(paper, "–")])
        self.bench.answer_time(
            f"{how}: {sync} took {times} times as long as alone ({alone:.2f} s).",
            f"{how}: {sync} reached the target" + (" of the job alone." if found else " only after the limit of time."),
        )
        if found:
            self.bench.record.ratios[f"{how}: {sync} / alone"] = round(found / alone, 4)
        columns = ["disturbed by", "model", "alone, s", "disturbed, s", "times as long", "in the paper"]
        self.bench.table(Table(title="K-means on HIGGS, disturbed (introduction)", columns=columns, rows=self.rows))
        self.bench.save()


def main() -> None:
    options = suite.arguments(__doc__)
    with suite.Suite(__file__, __doc__, options) as bench:
        bench.expect(1)
        found = bench.compare(CASE, ",".join(MODELS), "", title=f"{CASE.name}, alone")
        if found is None:
            return
        jobs = Disturbed(bench, found.target)
        longest = suite.LIMIT[bench.scale]
        for sync in MODELS:
            alone = jobs.run(sync, longest)
            if alone is None:
                bench.skip(f"{sync}, disturbed", "it does not reach the target in its time")
                continue
            jobs.alone[sync] = alone
        beside = {"beside one worker": 1}
        if workers_beside(bench.workers) > 1:
            beside["beside a quarter as many workers"] = workers_beside(bench.workers)
        for how, workers in beside.items():
            if bench.over(how):
                return
            with second_job(workers):
                for sync, alone in jobs.alone.items():
                    limit = min(longest, MOST_TIMES_LONGER * alone)
                    jobs.tell(sync, how, how, jobs.run(sync, limit), limit)
        for replace in (True,) if bench.scale == "smoke" else (True, False):
            how = f"a worker is revoked, {'replaced' if replace else 'its points go to the others'}"
            for sync, alone in jobs.alone.items():
                if bench.over(how):
                    return
                limit = min(longest, MOST_TIMES_LONGER * alone + 10.0)
                when = 0.0 if bench.scale == "smoke" else alone / 2
                jobs.tell(sync, how, "a worker is revoked", jobs.run(sync, limit, when, replace), limit)


if __name__ == "__main__":
    main()
