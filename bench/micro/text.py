"""How fast are jobs over sparse rows beside scikit-learn: k-means, LR and NMF of text, NMF of ratings?

    python -m bench.micro.text [--repeat 3] [--rows 17611] [--words 12626] [--only kmeans lr nmf topics] [--quick]
        [--seed 0] [--out FILE]

Rows in the shape of TF-IDF of the 20 newsgroups: words by Zipf's law, about 75 different ones a row, 20 classes that
overlap, length 1. Ratings in the shape of ml-100k: 943 users, 1,682 items. `topics` is NMF of rank 20 of the text. Both
sides train with their defaults on the same rows, in the same process, one after the other, after a call each on a
twentieth of the rows that compiles and starts workers. A ratio is the
median time of scikit-learn over that of Flegel: above 1, Flegel is faster. Beside it stands what each reached: the sum
of squared distances, the penalized loss, the reconstruction error; less is better. Asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.common.program import commit, machine

CLASSES = 20
RANK = 10
OWN_WORDS = 0.5
"""Part of the words that a row takes from its class; the others are everybody's."""


class Case(NamedTuple):
    """One task: how each side trains it, and what a trained model is worth (less is better)."""

    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    our_value: Callable[[Any], float]
    their_value: Callable[[Any], float]


def text_rows(rows: int, words: int, seed: int = 0) -> tuple[Any, Any]:
    """TF-IDF of generated texts as a scipy matrix, and the class of each row."""
    import scipy.sparse

    rng = np.random.default_rng(seed)
    usual = 1.0 / np.arange(1, words + 1)
    topics = np.array([usual * np.exp(1.5 * rng.standard_normal(words)) for _ in range(CLASSES)])
    topics = OWN_WORDS * topics / topics.sum(axis=1)[:, None] + (1 - OWN_WORDS) * usual / usual.sum()
    ends = topics.cumsum(axis=1)
    labels = rng.integers(CLASSES, size=rows)
    lengths = np.maximum(rng.lognormal(np.log(96.0), 0.6, size=rows).astype(int), 5)
    chosen = [
        np.searchsorted(ends[label], rng.random(length)).clip(max=words - 1)
        for label, length in zip(labels, lengths, strict=True)
    ]
    row = np.repeat(np.arange(rows), lengths)
    counts = scipy.sparse.csr_matrix((np.ones(len(row)), (row, np.concatenate(chosen))), shape=(rows, words))
    counts.sum_duplicates()
    common = np.bincount(counts.indices, minlength=words)
    counts.data *= (np.log((1 + rows) / (1 + common)) + 1.0)[counts.indices]
    norms = np.sqrt(np.asarray(counts.multiply(counts).sum(axis=1)).ravel())
    counts.data /= np.repeat(norms, np.diff(counts.indptr))
    return counts, labels


def rating_rows() -> Any:
    """100,000 ratings from 1 to 5 of a low-rank model with popular items, as a scipy matrix."""
    import scipy.sparse

    rng = np.random.default_rng(0)
    users, items = 943, 1682
    popular = 1.0 / np.arange(1, items + 1) ** 0.6
    active = rng.lognormal(0.0, 0.9, users)
    chances = np.minimum(np.outer(active, popular) * (100_000 / (active.sum() * popular.sum())), 0.95)
    known = rng.random((users, items)) < chances
    taste = rng.gamma(2.0, 0.5, (users, 6)) @ rng.gamma(2.0, 0.5, (6, items))
    return scipy.sparse.csr_matrix(np.where(known, np.clip(np.round(taste / taste.mean() * 3.0), 1, 5), 0.0))


def cases(text: Any, labels: Any, ratings: Any) -> dict[str, Case]:
    from sklearn.cluster import KMeans as PeerKMeans
    from sklearn.decomposition import NMF as PeerNMF
    from sklearn.linear_model import LogisticRegression as PeerLR

    import flegel
    from flegel.algorithms.kmeans import KMeans
    from flegel.sklearn import NMF, LogisticRegression

    def loss(model: Any) -> float:
        chances = model.predict_proba(text)[np.arange(len(labels)), labels]
        return float(-np.log(np.maximum(chances, 1e-300)).mean() + 0.5 * (model.coef_**2).sum() / len(labels))

    def error(model: Any) -> float:
        weights = model.transform(ratings)
        return float(np.linalg.norm(ratings.toarray() - weights @ model.components_))

    def topic_error(model: Any) -> float:
        weights, topics = model.transform(text), model.components_
        square = text.multiply(text).sum() - 2 * ((text @ topics.T) * weights).sum()
        return float(np.sqrt(square + ((weights.T @ weights) * (topics @ topics.T)).sum()))

    return {
        "kmeans": Case(
            lambda: flegel.run(KMeans(k=CLASSES), text),
            lambda: PeerKMeans(CLASSES, random_state=0).fit(text),
            lambda result: float(result.objective),
            lambda model: float(model.inertia_),
        ),
        "lr": Case(
            lambda: LogisticRegression().fit(text, labels), lambda: PeerLR().fit(text, labels), loss, loss
        ),
        "nmf": Case(
            lambda: NMF(RANK).fit(ratings),
            lambda: PeerNMF(RANK, init="random", random_state=0).fit(ratings),
            error,
            error,
        ),
        "topics": Case(
            lambda: NMF(CLASSES).fit(text),
            lambda: PeerNMF(CLASSES, init="random", random_state=0).fit(text),
            topic_error,
            topic_error,
        ),
    }  # fmt: skip


def measured(case: Case, small: Case, repeat: int) -> dict[str, float]:
    """Both sides in turn; medians of seconds, and what they reached in the median."""
    took: tuple[list[float], list[float]] = [], []
    reached: tuple[list[float], list[float]] = [], []
    small.ours(), small.theirs()
    for _ in range(repeat):
        for side, (train, value) in enumerate(((case.ours, case.our_value), (case.theirs, case.their_value))):
            began = time.perf_counter()
            model = train()
            took[side].append(time.perf_counter() - began)
            reached[side].append(value(model))
    ours, theirs = (statistics.median(seconds) for seconds in took)
    return {
        "ours_s": ours,
        "theirs_s": theirs,
        "ratio": theirs / ours,
        "our_value": statistics.median(reached[0]),
        "their_value": statistics.median(reached[1]),
    }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rows", type=int, default=17_611)
    parser.add_argument("--words", type=int, default=12_626)
    parser.add_argument("--only", nargs="*", default=["kmeans", "lr", "nmf", "topics"])
    parser.add_argument("--seed", type=int, default=0, help="of the text")
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows, one timed run of each side")
    parser.add_argument("--out", "--json", dest="json", type=Path, help="where the summary is written")
    given = parser.parse_args(argv)
    if given.quick:
        given.rows, given.repeat = given.rows // 4, 1
    warnings.simplefilter("ignore")
    text, labels = text_rows(given.rows, given.words, given.seed)
    known, few = cases(text, labels, rating_rows()), max(500, given.rows // 20)
    small = cases(text[:few], labels[:few], rating_rows()[:few])
    found = {}
    for name in given.only:
        found[name] = line = measured(known[name], small[name], given.repeat)
        print(
            f"{name:7} Flegel {line['ours_s']:6.2f} s  scikit-learn {line['theirs_s']:6.2f} s  ratio "
            f"{line['ratio']:5.2f}   reached {line['our_value']:.6g} and {line['their_value']:.6g}",
            flush=True,
        )
    if given.json:
        about = {
            "title": "Sparse text and ratings beside scikit-learn",
            "command": f"python -m bench.micro.text --rows {given.rows} --words {given.words} --seed {given.seed}",
            "commit": commit(),
            "machine": machine(),
        }
        given.json.write_text(json.dumps({**about, "figures": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
