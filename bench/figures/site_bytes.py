"""How many bytes does a round of groups take in each form, and what does that cost in accuracy?

    python -m bench.figures.site_bytes --images FOLDER --summary site-bytes.json

Three groups in one process meet in a folder. k-means (rows of whole numbers, and of float32 noise): statistics, always
exact. A network of one hidden layer, and LeNet (both need torch): changes of θ as `--wire` says, whole or in fragments,
beside one group that trains on all rows. Bytes are those of contributions and results, sent and received, by one group
in one round; beats are not counted. Seeds are drawn.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import flegel
from flegel.runtime.group import session

GROUPS = 3
RATE = 0.05
FORMS: dict[str, dict[str, Any]] = {
    "full": {}, "bf16": {"wire": "bf16"}, "int8": {"wire": "int8"}, "int4": {"wire": "int4"}, "auto": {"wire": "auto"},
    "int8, 8 fragments": {"wire": "int8", "fragments": 8}, "int4, 8 fragments": {"wire": "int4", "fragments": 8},
    "full, three times the rate": {"rate": 3.0},
    "int4, three times the rate": {"wire": "int4", "rate": 3.0},
    "int4, 4 fragments, three times the rate": {"wire": "int4", "fragments": 4, "rate": 3.0},
    "int4, 8 fragments, three times the rate": {"wire": "int4", "fragments": 8, "rate": 3.0},
    "full, mean:2": {"outer": "mean:2"},
    "int4, 8 fragments, mean:2": {"wire": "int4", "fragments": 8, "outer": "mean:2"},
    "full, nesterov": {"outer": "nesterov"}, "int4, nesterov": {"wire": "int4", "outer": "nesterov"},
}  # fmt: skip


class CountingBucket:
    """A bucket that counts the bytes of contributions and results, by round."""

    counted: ClassVar[Counter[str]] = Counter()

    def __init__(self, place: str) -> None:
        self._bucket = OPEN_BUCKET(place)
        self.place = self._bucket.place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bucket, name)

    def get(self, key: str, largest: int = 0) -> Any:
        found = self._bucket.get(key, largest)
        if found is not None and key.startswith("rounds/"):
            CountingBucket.counted[key.split("/")[1]] += len(found.content)
        return found

    def put(self, key: str, content: bytes, *rest: Any) -> str:
        if key.startswith("rounds/"):
            CountingBucket.counted[key.split("/")[1]] += len(content)
        return str(self._bucket.put(key, content, *rest))


OPEN_BUCKET = session.open_bucket


def train(make: Any, parts: list[Any], **options: Any) -> tuple[list[Any], dict[str, int]]:
    """All groups at the same time: results; rounds, and bytes of a group in a round: of the median round, and in the
    mean, with the last rounds, in which all of θ is exchanged."""
    results: list[Any] = [None] * len(parts)
    CountingBucket.counted.clear()
    session.open_bucket = CountingBucket  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:

        def one(at: int) -> None:
            results[at] = flegel.run(
                make(), parts[at], workers=1, group=f"site{at}", bucket=folder, groups=len(parts), sync="bsp",
                processes=False, group_timeout=20.0, **options,
            )  # fmt: skip

        threads = [threading.Thread(target=one, args=(at,)) for at in range(len(parts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300.0)
    rounds = max(result.sites["rounds"] for result in results)
    each = [count / len(parts) for count in CountingBucket.counted.values()] or [0.0]
    return results, {"rounds": rounds, "bytes": round(float(np.median(each))),
                     "mean_bytes": round(sum(each) / max(rounds, 1))}  # fmt: skip


def clustering(seed: int) -> list[dict[str, Any]]:
    from flegel.algorithms.kmeans import KMeans

    rng, lines = np.random.default_rng(seed), list[dict[str, Any]]()
    centres = 60.0 * rng.normal(size=(30, 20))
    rows = centres[rng.integers(30, size=9000)] + 20.0 * rng.normal(size=(9000, 20))
    for name, data in {"whole numbers": np.rint(rows), "float32": rows}.items():
        data = data.astype(np.float32)
        results, told = train(lambda: KMeans(k=20), np.array_split(data, GROUPS), every="2", seed=seed)
        numbers = sum(np.asarray(a).size for a in results[0].parameter)
        central = flegel.run(KMeans(k=20), data, workers=1, sync="bsp", processes=False, seed=seed)
        value = KMeans(k=20).evaluate(data, None, results[0].parameter).objective / central.objective
        lines.append({"model": f"k-means, {name}", "form": "full", "seed": seed, **told, "values": numbers,
                       "objective_ratio": round(float(value), 5)})  # fmt: skip
        print(json.dumps(lines[-1]), flush=True)
    return lines


def networks(
    images: Path, rows: int, epochs: int, seed: int, names: list[str], forms: list[str]
) -> list[dict[str, Any]]:
    from bench.common.network_runs import fashion
    from flegel.torch.builtin import MLP, LeNet

    held, lines = fashion(images, rows, 2000), list[dict[str, Any]]()
    x, y = held.train
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = x[order], y[order]
    recipe: dict[str, Any] = {
        "batch": None, "optimizer": "sgd", "local": True, "schedule": "cosine", "micro_batch": 16, "epochs": epochs,
    }  # fmt: skip
    makers: dict[str, Any] = {"mlp": lambda **more: MLP(hidden=[64], **recipe, **more),
                              "lenet": lambda **more: LeNet(**recipe, **more)}  # fmt: skip
    for name in names:
        make = functools.partial(makers[name], lr=RATE)
        central = flegel.run(make(), (x, y), workers=1, sync="bsp", processes=False, seed=seed)
        accuracy = float(central.algorithm.evaluate(*held.test, central.parameter).metrics["accuracy"])
        lines.append({"model": name, "form": "one group", "seed": seed, "accuracy": round(accuracy, 4)})
        print(json.dumps(lines[-1]), flush=True)
        for form in forms:
            options = dict(FORMS[form])
            network = functools.partial(makers[name], lr=RATE * options.pop("rate", 1.0))
            parts = [(x[at::GROUPS], y[at::GROUPS]) for at in range(GROUPS)]
            results, told = train(network, parts, every="1", seed=seed, **options)
            wire = results[0].sites["wire"]
            accuracy = float(results[0].algorithm.evaluate(*held.test, results[0].parameter).metrics["accuracy"])
            lines.append({"model": name, "form": form, "seed": seed, **told,
                          "accuracy": round(accuracy, 4), "wire": wire})  # fmt: skip
            print(json.dumps(lines[-1]), flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--networks", default="mlp,lenet", help="some of mlp, lenet; empty: none")
    parser.add_argument("--forms", default=";".join(FORMS), help="of changes, with semicolons between")
    parser.add_argument("--summary", type=Path)
    options = parser.parse_args()
    lines = list[dict[str, Any]]()
    for seed in (int(s) % (1 << 31) for s in np.random.SeedSequence().generate_state(options.seeds)):
        lines += clustering(seed)
        if options.networks:
            names, forms = options.networks.split(","), options.forms.split(";")
            lines += networks(options.images, options.rows, options.epochs, seed, names, forms)
        if options.summary:  # after each seed, so that what was done stays when it is interrupted
            options.summary.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
