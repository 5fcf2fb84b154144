"""Is a GPU faster to the same objective than all cores, and does it train with them?

Fig. 16b: a GPU worker beside processors, with and without migration and own clocks, against the GPU alone and
against processors alone (`--workers 5` is the paper's one GPU and four processors): k-means, to within 0.1 %
of the GPU's objective, and the small CNN, to a test accuracy. And how Flegel on the processor's cores stands against
Lloyd's algorithm in PyTorch and CuPy on a GPU: k-means from the same start to the same objective, with and without the
time that it takes to bring the rows to the device.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from bench.common import suite
from bench.common.record import Table
from bench.figures import networks, peers

FIGURE = "Fig. 16b"
NEEDS = ("device:gpu", "algorithm:kmeans")
ROWS = {"smoke": 100_000, "laptop": 2_000_000, "small": 11_000_000, "paper": 11_000_000}
ACCURACY = 0.82  # of the small CNN on test images


def main() -> None:
    options = suite.arguments(__doc__, peers.EXTRA)
    with suite.Suite(__file__, __doc__, options) as bench:
        _mixed(bench, "kmeans", networks.mixed_kmeans)
        _mixed(bench, "cnn", networks.mixed_cnn)
        for size in peers.SIZES[bench.scale][:2] if bench.chosen("kmeans") else ():
            peers.compare_libraries(
                bench, peers.KMEANS._replace(rows={bench.scale: size}), bench.left(), "gpu", options.within or 0.0
            )


def _mixed(bench: suite.Suite, name: str, races: Callable[[argparse.Namespace], Iterator[dict[str, Any]]]) -> None:
    """Crews with and without the GPU, on the same target."""
    title = f"{name}: a GPU beside processors"
    if not bench.chosen(name) or not bench.has(f"algorithm:{name}", for_=title) or bench.over(title):
        return
    given = argparse.Namespace(
        rows=ROWS[bench.scale] if name == "kmeans" else None, workers=bench.workers, device="cuda:0", images=None,
        seconds=min(suite.LIMIT[bench.scale], bench.left() / 5), tested=2_000, target=ACCURACY,
    )  # fmt: skip
    table = Table(title=title, columns=["workers", "model", "seconds to target", "rows on the GPU", "updates"], rows=[])
    times: dict[tuple[str, str], float] = {}
    for line in races(given):
        reached, who = line["time_to_target"], (line["crew"], line["sync"])
        seen = f"{reached:.2f}" if reached is not None else f"> {line['seconds']:.2f}"
        share = f"{line['share_of_worker_0']:.0%}" if "processors" not in line["crew"] else "–"
        table.rows.append([*who, seen, share, str(line["updates"])])
        times[who] = reached if reached is not None else line["seconds"]
        bench.table(table)
        bench.save()
    mixed = times.pop(("mixed", "fsp"), 0.0)
    for (crew, sync), seconds in times.items() if mixed else ():
        bench.record.ratios[f"{name}: {crew}, {sync} / mixed, fsp"] = round(seconds / mixed, 4)


if __name__ == "__main__":
    main()
