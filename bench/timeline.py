"""Draws where the time went, from the trace of a run: one lane a worker, one picture a model.

    python bench/timeline.py --out docs/img [--straggler 0:4x] [--models bsp,fsp]

Blue is computing, orange the time to respond, grey waiting; a line is an update of θ. `draw` takes the rows of any
trace (`Result.rows`, or `read_trace` of a saved run).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.runtime.local import LocalCluster

LEFT, WIDTH, LANE, TOP = 74, 640, 22, 30
COLOURS = {"computing": "#3b78b8", "responding": "#e08a2c", "waiting": "#dcdcdc"}


def draw(rows: list[dict[str, Any]], title: str, begin: float, end: float) -> str:
    """An SVG of the time from `begin` to `end` seconds."""
    lanes: dict[int, list[Any]] = {}
    for row in rows:
        for span in row["spans"]:
            lanes.setdefault(span[0], []).append(span)
    height = TOP + LANE * len(lanes) + 34
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 16}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<text x="{LEFT}" y="16" font-size="13">{title}</text>',
    ]

    def x(seconds: float) -> float:
        return LEFT + WIDTH * (min(max(seconds, begin), end) - begin) / (end - begin)

    def bar(kind: str, lane: int, start: float, stop: float) -> None:
        if x(stop) - x(start) > 0.05:
            y = TOP + LANE * lane
            out.append(
                f'<rect x="{x(start):.1f}" y="{y}" width="{x(stop) - x(start):.1f}" height="{LANE - 5}" '
                f'fill="{COLOURS[kind]}"/>'
            )

    for lane, worker in enumerate(sorted(lanes)):
        out.append(f'<text x="8" y="{TOP + LANE * lane + 12}">worker {worker}</text>')
        spans = sorted(lanes[worker], key=lambda s: s[1])
        for span, following in zip(spans, [*spans[1:], None], strict=True):
            _, sent, here, _, compute, _, _ = span
            bar("waiting", lane, here, following[1] if following else here)
        for _, sent, here, _, compute, _, _ in spans:
            bar("responding", lane, sent, here)
            slack = max(here - sent - compute, 0.0) / 2
            bar("computing", lane, here - slack - compute, here - slack)
    bottom = TOP + LANE * len(lanes)
    for row in rows:
        if begin <= row["seconds"] <= end:
            out.append(
                f'<line x1="{x(row["seconds"]):.1f}" x2="{x(row["seconds"]):.1f}" y1="{TOP - 4}" y2="{bottom}" '
                'stroke="#222" stroke-width="0.7" stroke-dasharray="3 2"/>'
            )
    for k in range(5):
        at = begin + k * (end - begin) / 4
        out.append(f'<text x="{x(at):.0f}" y="{bottom + 14}" text-anchor="middle">{(at - begin) * 1e3:.0f} ms</text>')
    for k, (kind, colour) in enumerate(COLOURS.items()):
        out.append(f'<rect x="{LEFT + 110 * k}" y="{bottom + 20}" width="10" height="10" fill="{colour}"/>')
        out.append(f'<text x="{LEFT + 110 * k + 14}" y="{bottom + 29}">{kind}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    """Run each model for a moment and draw it."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, default=Path("docs/img"))
    options.add_argument("--straggler", default="3:3x")
    options.add_argument("--models", default="bsp,bsp-mini,ssp,asp,psp,fsp-binary,fsp")
    options.add_argument("--rows", type=int, default=48_000)
    options.add_argument("--window", type=float, default=0.6)
    chosen = options.parse_args()
    rng = np.random.default_rng(0)
    data = rng.normal(size=(chosen.rows, 64)).astype(np.float32)
    chosen.out.mkdir(parents=True, exist_ok=True)
    with LocalCluster(4) as cluster:
        for model in chosen.models.split(","):
            extra = {"batches": 4} if model in ("bsp-mini", "ssp", "asp", "psp") else {}
            result = flegel.run(
                KMeans(k=160), data, cluster=cluster, sync=model, tolerance=0,
                max_seconds=3 * chosen.window + 0.5, straggler=chosen.straggler, **extra,
            )  # fmt: skip
            begin = result.seconds / 2
            text = draw(result.rows, f"{model}, worker 3 three times slower", begin, begin + chosen.window)
            (chosen.out / f"{model}.svg").write_text(text)
            print(f"{model}: utilization {result.utilization:.0%}, {result.iterations} updates")


if __name__ == "__main__":
    main()
