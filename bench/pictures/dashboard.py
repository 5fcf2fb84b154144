"""The picture of the dashboard in the README: a straggler under bsp and under fsp, in a real Chromium.

    python -m bench.pictures.dashboard [--out docs/img/dashboard.png] [--workers 8] [--seconds 5]

Trains k-means twice on workers whose speed is set by waiting (worker 0 is eight times slower than the others), so that
the picture is the same on a small machine; saves both runs as one page, overlays them and takes the screenshot. Needs
Chromium and playwright.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.dashboard.hub import Hub
from flegel.dashboard.saved_runs import read_run

LARGEST = 200_000  # bytes of a picture in the repository
SIZE = (1280, 1010)


def train(folder: Path, workers: int, seconds: float) -> list[Path]:
    rng = np.random.default_rng(0)
    centres = rng.normal(scale=3.0, size=(10, 28))
    rows = (centres[rng.integers(10, size=12_500 * workers)] + rng.normal(size=(12_500 * workers, 28))).astype(
        "float32"
    )
    slow = f"0:32ms/1000,1-{workers - 1}:4ms/1000"
    found = []
    with flegel.LocalCluster(workers) as cluster:
        for sync in ("bsp", "fsp"):
            flegel.run(
                KMeans(k=10), rows, workers=workers, sync=sync, straggler=slow, tolerance=0, max_seconds=seconds,
                cluster=cluster, out=folder / f"straggler-{sync}",
            )  # fmt: skip
            found.append(folder / f"straggler-{sync}")
    return found


def screenshot(link: str, out: Path) -> None:
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or sys.exit("there is no chromium; apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
        tab.goto(link)
        tab.click("#overlay")
        tab.wait_for_timeout(1500)
        tab.locator("#timelines canvas").first.hover(position={"x": 700, "y": 60})
        tab.wait_for_timeout(300)
        tab.screenshot(path=str(out))
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/img/dashboard.png"))
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        from flegel.dashboard.server import DashboardServer  # needs the extra dashboard, which --help does not

        hub = Hub()
        histories = [read_run(path) for path in train(Path(folder), options.workers, options.seconds)]
        for history in histories:
            history.about["title"] = Path(history.run).name
            hub.add(history)
        server = DashboardServer(hub, None, ("127.0.0.1", 0))
        screenshot(server.link, options.out)
        server.close()
    size = options.out.stat().st_size
    print(f"{options.out}: {size} bytes")
    if size > LARGEST:
        sys.exit(f"more than {LARGEST} bytes")


if __name__ == "__main__":
    main()
