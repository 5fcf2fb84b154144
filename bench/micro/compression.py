"""Would another compressor make objects of groups smaller? Statistics and changes of θ, as they are written in a round.

    python -m bench.micro.compression --images FOLDER --out compression.json        (pip install zstandard)

The n-th bytes of all numbers stand together, and each of these planes is compressed where that saves something: today
with zlib at its fastest level. The same planes with zstd at levels 1, 3 and 19, zlib at level 9, and the array as it is
with zstd: bytes, and milliseconds of processor time to pack and to unpack all arrays. Every form is lossless, so it
changes no accuracy. Statistics are of drawn rows; changes of θ are those of a network of one hidden layer (784, 64,
10) after one pass over 3,000 images in steps of 16.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flegel.machine.group.byte_planes import planes_of
from flegel.machine.group.wire import packed, shortened

Pack = Callable[[bytes], bytes]
IMAGES, STEP, RATE, HIDDEN = 3000, 16, 0.1, 64


def statistics(rng: np.random.Generator) -> dict[str, list[np.ndarray]]:
    """Of one group of 3,000 rows with 20 columns and 20 clusters."""
    rows, which = rng.normal(size=(3000, 20)), rng.integers(20, size=3000)
    found = {}
    for name, values in (
        ("k-means, whole numbers", np.rint(40 * rows)), ("k-means, float32 rows", rows.astype(np.float32)),
        ("k-means, float64 rows", rows),
    ):  # fmt: skip
        wide = values.astype(np.float64)
        sums = np.array([wide[which == k].sum(axis=0) for k in range(20)])
        found[name] = [np.bincount(which, minlength=20).astype(np.float64), sums, np.square(wide).sum(keepdims=True)]
    shares = rng.dirichlet(np.full(20, 0.1), size=3000)
    row, column = np.tril_indices(20)  # GMM keeps lower triangles
    squares = np.einsum("nk,ni,nj->kij", shares, rows, rows, optimize=True)[:, row, column]
    found["GMM, full covariances"] = [shares.sum(axis=0), shares.T @ rows, squares]
    found["FCM"] = [(shares**2).sum(axis=0), (shares**2).T @ rows]
    return found


def images(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    with gzip.open(folder / "train-images-idx3-ubyte.gz") as file:
        rows = np.frombuffer(file.read(16 + IMAGES * 784), np.uint8, offset=16).reshape(IMAGES, 784)
    with gzip.open(folder / "train-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(8 + IMAGES), np.uint8, offset=8)
    return (rows / 255.0).astype(np.float32), labels


def change(rows: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """θ before a pass and after it, in float32."""
    shapes = ((784, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,))
    theta = [(rng.normal(size=s) / np.sqrt(s[0]) * (len(s) > 1)).astype(np.float32) for s in shapes]
    before = [field.copy() for field in theta]
    order = rng.permutation(len(rows))
    for at in range(0, len(order), STEP):
        x, y = rows[order[at : at + STEP]], labels[order[at : at + STEP]]
        hidden = np.maximum(x @ theta[0] + theta[1], 0.0)
        scores = hidden @ theta[2] + theta[3]
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        shares[np.arange(len(y)), y] -= 1.0
        back = (shares @ theta[2].T) * (hidden > 0)
        for field, step in zip(theta, (x.T @ back, back.sum(0), hidden.T @ shares, shares.sum(0)), strict=True):
            field -= np.float32(RATE / len(y)) * step
    return before, theta


def forms(folder: Path, rng: np.random.Generator) -> dict[str, list[np.ndarray]]:
    before, after = change(*images(folder), rng)
    changes = [new.astype(np.float64) - old for new, old in zip(after, before, strict=True)]
    found = {f"change of θ, {wire}": packed(wire, changes) for wire in ("full", "bf16", "int8", "int4")}
    short = [shortened(new, old, 1.0) for new, old in zip(after, before, strict=True)]
    return {**found, "result, float32": after, "result, 16 bits": [part for parts in short for part in parts]}


def compressors() -> dict[str, tuple[Pack, Pack]]:
    import zstandard

    found: dict[str, tuple[Pack, Pack]] = {f"zlib {level}": (_zlib(level), zlib.decompress) for level in (1, 9)}
    for level in (1, 3, 19):
        found[f"zstd {level}"] = (zstandard.ZstdCompressor(level).compress, zstandard.ZstdDecompressor().decompress)
    return found


def _zlib(level: int) -> Pack:
    return lambda plane: zlib.compress(plane, level)


def by_planes(arrays: list[np.ndarray], pack: Pack, unpack: Pack) -> tuple[int, float, float]:
    """Bytes, and milliseconds to pack and to unpack."""
    planes = []
    for array in arrays:
        numbers = np.ascontiguousarray(array).reshape(-1)
        columns = numbers.view(np.uint8).reshape(numbers.size, numbers.dtype.itemsize)
        planes += [columns[:, at].tobytes() for at in range(numbers.dtype.itemsize)]
    began = time.process_time()
    written = [min(pack(plane), plane, key=len) for plane in planes]
    packed_at = time.process_time()
    for one, plane in zip(written, planes, strict=True):
        assert one is plane or unpack(one) == plane
    return sum(map(len, written)), 1e3 * (packed_at - began), 1e3 * (time.process_time() - packed_at)


def measure(what: str, arrays: list[np.ndarray], known: dict[str, tuple[Pack, Pack]]) -> dict[str, Any]:
    plain = sum(a.nbytes for a in arrays)
    now = sum(min(sum(map(len, planes_of(a))), a.nbytes) for a in arrays)
    row: dict[str, Any] = {"what": what, "plain": plain, "as written now": now, "milliseconds": {}}
    for name, (pack, unpack) in known.items():
        tries = [by_planes(arrays, pack, unpack) for _ in range(5)]
        row[name] = tries[0][0]
        row["milliseconds"][name] = [round(min(t[1] for t in tries), 2), round(min(t[2] for t in tries), 2)]
    row["zstd 3, without planes"] = sum(min(len(known["zstd 3"][0](a.tobytes())), a.nbytes) for a in arrays)
    best = min(row[f"zstd {level}"] for level in (1, 3))
    row["saved by zstd 1 or 3, percent"] = round(100.0 * (1.0 - best / now), 1)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="folder of the files of Fashion-MNIST")
    parser.add_argument("--seed", type=int, default=None, help="drawn without it")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    seed = int(np.random.SeedSequence().entropy) % 2**31 if given.seed is None else given.seed  # type: ignore[arg-type]
    rng, known = np.random.default_rng(seed), compressors()
    found = {**statistics(rng), **forms(given.images, rng)}
    lines = {"seed": seed, "rows": [measure(what, arrays, known) for what, arrays in found.items()]}
    print(json.dumps(lines, indent=1))
    if given.out is not None:
        given.out.write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
