"""Where the time of a barrier goes when θ is large: k-means, one worker's report, one process, processor time.

    python -m bench.micro.large_theta [--shapes 1024x384,4096x768] [--changed 1,0.1,0.01] [--repeats 3]

Milliseconds of each step, for parts of the clusters that changed since the last barrier: the worker finds rows of its
statistics that changed and copies them into a buffer; the coordinator adds them, makes θ and the objective, and copies
θ into a buffer of its host; the worker makes θ ready for its kernel. For workers on other hosts, in place of the
buffer: rows of θ that changed are found, and put into the worker's copy; and the bytes that one of them is sent, beside
those of all of θ. Beside these steps, and not part of their sum, the same of all rows, as it is where nothing is known
of what changed: θ and objective, and the search for rows of θ. Asserts nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.kmeans.kmeans import Centroids, KMeansSums
from flegel.algorithms.kmeans.wide import WideKernel
from flegel.core.changed_rows import changed_rows
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag
from flegel.params.hooks import call_hook
from flegel.params.ledger import Ledger
from flegel.params.parameter_changes import HeldParameter, ParameterChanges
from flegel.params.parameter_update import new_parameter
from flegel.params.row_updates import RowUpdates
from flegel.runtime.transport.codec import PackedArrays

Array = np.ndarray[Any, np.dtype[Any]]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of a processor, and the result."""
    began = time.process_time()
    result = work()
    return 1e3 * (time.process_time() - began), result


class Barrier(NamedTuple):
    """Milliseconds of each step of one barrier, and the bytes of θ that a worker on another host is sent."""

    steps: dict[str, float]
    sent: int
    whole: int
    of_all_rows: dict[str, float]
    """Milliseconds of steps that look at all of θ."""


def barrier(k: int, columns: int, changed: float, rng: np.random.Generator) -> Barrier:
    """One barrier."""
    algorithm = KMeans(k=k)
    total = KMeansSums(rng.normal(size=(k, columns)), np.full(k, 9.0), np.full(k, 9.0 * columns))
    theta = Centroids(total.sums / total.counts[:, None], np.zeros(columns), np.empty((0, columns)), np.full(k, 1 / k))
    theta = theta._replace(points=np.array([9.0 * k, 9.0 * k, 1.0, 0.0]))  # every point has been visited
    ledger = Ledger(algorithm, KMeansSums(np.zeros((k, columns)), np.zeros(k), np.zeros(k)))
    ledger.commit(0, total)
    ledger.update_accounts()
    ledger.take_changed_rows()
    updates = RowUpdates(algorithm, theta, ledger.total)
    theta = updates.update(partial(call_hook, algorithm, "a barrier"), ledger.total, theta, None, "").parameter
    before = updates.made(theta)
    kernel = WideKernel(k)
    rows = rng.normal(size=(256, columns)).astype(np.float32)
    shard = make_shard(rows, None, np.full((256, 1), -1, np.int32), "rows")
    flag = new_flag()
    flag[0] = 1
    kernel(shard, theta, total, 0, 256, 0, flag)  # code is compiled
    which = rng.choice(k, max(int(changed * k), 1), replace=False)
    report = KMeansSums(np.zeros((k, columns)), np.zeros(k), np.zeros(k))
    report.sums[which], report.counts[which] = rng.normal(size=(len(which), columns)), 1.0
    report.squares[which] = columns
    steps: dict[str, float] = {}
    steps["find changed rows"], few = timed(lambda: changed_rows(report))
    packed = PackedArrays(few.arrays() if few is not None else tuple(report))
    room = np.ones(packed.nbytes, np.uint8)
    steps["write the report"], _ = timed(lambda: packed.write(room))
    steps["add it"], _ = timed(lambda: ledger.commit_all([0], [few if few is not None else report]))
    call, rows = partial(call_hook, algorithm, "a barrier"), ledger.take_changed_rows()
    steps["θ and objective"], made = timed(lambda: updates.update(call, ledger.total, theta, rows, ""))
    new, of_all_rows = made.parameter, {}
    whole = timed(lambda: new_parameter(algorithm, call, ledger.total, theta, ""))
    of_all_rows["θ and objective"], same = whole
    assert same.objective == made.objective and np.array_equal(same.parameter.centroids, new.centroids)
    order = PackedArrays(tuple(map(np.asarray, new)))
    place = np.ones(order.nbytes, np.uint8)
    steps["write θ"], _ = timed(lambda: order.write(place))
    changes, held = ParameterChanges(), HeldParameter()
    compared = ParameterChanges()
    for one in (changes, compared):
        first = one.order(0, 1, tuple(map(np.asarray, theta)), before)
        one.reported(0, 1)
    held.take(first.version, first.since, tuple(first.arrays))
    steps["find rows of θ"], sent = timed(lambda: changes.order(0, 2, order.arrays, updates.made(new)))
    of_all_rows["find rows of θ"], _ = timed(lambda: compared.order(0, 2, order.arrays))
    steps["renew the copy"], _ = timed(lambda: held.take(sent.version, sent.since, tuple(sent.arrays)))
    steps["make θ ready"], _ = timed(lambda: kernel(shard, new, total, 0, 256, 0, flag))
    return Barrier(steps, sum(a.nbytes for a in sent.arrays), sum(a.nbytes for a in order.arrays), of_all_rows)


def main() -> None:
    """Print a table for each shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="1024x384,4096x768", help="clusters and columns")
    parser.add_argument("--changed", default="1,0.1,0.01", help="parts of the clusters that changed")
    parser.add_argument("--repeats", type=int, default=3, help="medians of so many barriers")
    args = parser.parse_args()
    for shape in args.shapes.split(","):
        k, columns = map(int, shape.split("x"))
        print(f"k={k:,}, {columns:,} columns: θ has {8e-6 * k * columns:.1f} MB")
        for changed in map(float, args.changed.split(",")):
            found = [barrier(k, columns, changed, np.random.default_rng(seed)) for seed in range(args.repeats)]
            steps = {name: statistics.median(one.steps[name] for one in found) for name in found[0].steps}
            whole = {name: statistics.median(one.of_all_rows[name] for one in found) for name in found[0].of_all_rows}
            words = ", ".join(f"{name} {ms:.2f}" for name, ms in steps.items())
            print(f"  {changed:g} of the clusters changed: {sum(steps.values()):.1f} ms: {words}", flush=True)
            words = ", ".join(f"{name} {ms:.2f}" for name, ms in whole.items())
            before = sum(whole.get(name, ms) for name, ms in steps.items())
            print(f"    of all rows: {before:.1f} ms: {words}")
            print(f"    θ to a worker on another host: {found[0].sent:,} of {found[0].whole:,} bytes", flush=True)


if __name__ == "__main__":
    main()
