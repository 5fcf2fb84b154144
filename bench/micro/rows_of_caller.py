"""How workers get rows out of the memory of another process: fresh memory, ranges of rows read through the kernel.

    python -m bench.micro.rows_of_caller [--processes 16] [--rows 11000000] [--json FILE]

So many processes at once, each with its part of rows of 28 float32 columns; milliseconds of the one that takes longest.
*fresh memory*: pages of several kinds, written once. *read*: `process_vm_readv` by blocks of so many rows out of an
array that no process inherits (after a fork, each read would make a copy of the page first). *gathered*: rows in random
order out of memory of one's own, and laid out in tiles. Asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flegel.core.row_windows import RowWindow, RowWindows
from flegel.core.shard import TILE, pack_tiles
from flegel.runtime.transport.process_memory import LentArray, ProcessArray
from flegel.runtime.transport.shared_memory import shareable

COLUMNS, WINDOW = 28, 18_688
BLOCKS = (16, 64, 256, 2048)

Prepare, Work = Callable[[int], Any], Callable[[int, Any], object]


def together(count: int, prepare: Prepare, work: Work) -> float:
    """Milliseconds of the slowest of `count` forks that begin at the same moment, when all are prepared."""
    gate = np.frombuffer(mmap.mmap(-1, 8 * (count + 1)), np.int64)
    pipes = []
    for index in range(count):
        end, begin = os.pipe()
        if not os.fork():
            made = prepare(index)
            gate[1 + index] = 1
            while not gate[0]:
                pass
            began = time.perf_counter()
            work(index, made)
            os.write(begin, b"%f" % (time.perf_counter() - began))
            os._exit(0)
        os.close(begin)
        pipes.append(end)
    while gate[1:].sum() < count:
        time.sleep(0.001)
    gate[0] = 1
    seconds = [float(os.read(end, 100) or "nan") for end in pipes]
    for end in pipes:
        os.close(end)
        os.wait()
    return max(seconds) * 1e3


def lender(rows: int) -> tuple[dict[str, Any], int]:
    """A process with an array of its own: its description, and the descriptor that ends it when closed."""
    told, tell = os.pipe()
    end, stop = os.pipe()
    if not os.fork():
        os.close(stop)
        held = LentArray(np.random.default_rng(0).random((rows, COLUMNS), np.float32))
        os.write(tell, json.dumps(held.describe()).encode())
        os.read(end, 1)
        os._exit(0)
    os.close(tell)
    os.close(end)
    return json.loads(os.read(told, 4096)), stop


def fresh_memory(count: int, points: int) -> dict[str, float]:
    """Of the size of a part: written once, page by page."""

    def small(_: int, __: None) -> None:
        memory = mmap.mmap(-1, points * COLUMNS * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        np.frombuffer(memory, np.float32)[:] = 1

    def huge(_: int, __: None) -> None:
        np.empty((points, COLUMNS), np.float32)[:] = 1  # NumPy asks for huge pages

    def shared(_: int, __: None) -> None:
        shareable((points, COLUMNS), np.float32)[:] = 1

    kinds: dict[str, Work] = {"private, 4 KiB pages": small, "private, huge pages": huge, "shared": shared}
    return {name: together(count, lambda _: None, work) for name, work in kinds.items()}


def reads(count: int, points: int, described: dict[str, Any]) -> dict[str, float]:
    """Milliseconds by rows of a block; blocks are drawn at random from all rows."""
    found = {}
    for block in BLOCKS:

        def prepare(index: int, block: int = block) -> tuple[ProcessArray, list[Any], np.ndarray]:
            order = np.random.default_rng(1).permutation(count * points // block)[index::count] * block
            ranges, some = np.stack([order, order + block], axis=1), max(WINDOW // block, 1)
            parts = [ranges[at : at + some] for at in range(0, len(ranges), some)]
            return ProcessArray(described), parts, np.ones((some * block, COLUMNS), np.float32)

        def work(_: int, made: tuple[ProcessArray, list[Any], np.ndarray], block: int = block) -> None:
            array, parts, into = made
            for ranges in parts:
                array.read(ranges, into[: len(ranges) * block])

        found[f"{block} rows"] = together(count, prepare, work)
    return found


def gathers(count: int, points: int) -> dict[str, float]:
    """Rows of an array that all forks inherit, in random order."""
    rows = np.random.default_rng(0).random((count * points, COLUMNS), np.float32)
    rows.flags.writeable = False

    def order(index: int) -> np.ndarray:
        return np.random.default_rng(1).permutation(len(rows))[index::count].copy()

    def taken(_: int, numbers: np.ndarray) -> None:
        np.take(rows, numbers, axis=0)

    def tiled(_: int, numbers: np.ndarray) -> None:
        pack_tiles(RowWindows((len(numbers), COLUMNS), rows.dtype, lambda: iter([RowWindow(rows, numbers)])))

    tiled(0, np.arange(TILE))
    return {"into rows": together(count, order, taken), "into tiles, checked": together(count, order, tiled)}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--rows", type=int, default=11_000_000)
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args(arguments)
    count = options.processes
    points = options.rows // count // max(BLOCKS) * max(BLOCKS)
    found = {"fresh memory": fresh_memory(count, points)}
    described, stop = lender(count * points)
    found["read from another process"] = reads(count, points, described)
    os.close(stop)
    os.wait()
    found["gathered from memory"] = gathers(count, points)
    for title, figures in found.items():
        print(f"{title}: " + ", ".join(f"{name} {value:.1f} ms" for name, value in figures.items()), flush=True)
    if options.json:
        report = {"processes": count, "rows": count * points, "milliseconds": found}
        options.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
