"""Classes of the library beside the programs that people use for them today: seconds of `fit` in turn, and which model
is better by the same objective.

    taskset -c 0 python -m bench.micro.library --out library.json     # one core
    python -m bench.micro.library --rows 1000000 --out library.json   # all cores

Peers: statsmodels (Poisson, gamma, Huber), kmodes, k-means-constrained, gensim and scikit-learn (topics), implicit,
scikit-learn (NMF with Kullback-Leibler, bisecting k-means, components). One that is not installed is left out, and the
line says so. Rows are drawn anew. Both start from their own starts; objectives are those of the rows under the finished
model, computed here alike for both, and are medians over the repeats. On a machine that others use, compare processor
times (`cpu`: of the process with its threads).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from scipy.special import gammaln

import flegel
from bench.common.program import commit
from flegel import sklearn as ours
from flegel.algorithms import KLNMF

LEAST_PENALTY = 1e-9
"""Of generalized linear models beside statsmodels, which has none."""


class Pair(NamedTuple):
    """Two ways to fit the same rows: each returns what `objective` judges; smaller is better."""

    rows: int
    peer: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    objective: Callable[[Any], float]


def linear(rows: int, rng: Any) -> tuple[Any, Any, Any]:
    X = rng.normal(size=(rows, 10))
    score = 0.3 * X @ rng.normal(size=10)
    return X, score, np.exp(0.5 * score)


def poisson(rows: int, rng: Any) -> Pair:
    import statsmodels.api as sm

    X, _, mean = linear(rows, rng)
    y = rng.poisson(mean).astype(float)

    def mine() -> Any:
        model = ours.PoissonRegressor(alpha=LEAST_PENALTY).fit(X, y)
        return np.append(model.coef_, model.intercept_)

    def peer() -> Any:
        found = sm.GLM(y, sm.add_constant(X), family=sm.families.Poisson()).fit().params
        return np.append(found[1:], found[0])

    def loss(found: Any) -> float:
        score = X @ found[:-1] + found[-1]
        return float((np.exp(score) - y * score + gammaln(y + 1)).mean())

    return Pair(rows, "statsmodels GLM", mine, peer, loss)


def gamma(rows: int, rng: Any) -> Pair:
    import statsmodels.api as sm

    X, _, mean = linear(rows, rng)
    y = rng.gamma(2.0, mean / 2.0) + 1e-9

    def mine() -> Any:
        model = ours.GammaRegressor(alpha=LEAST_PENALTY).fit(X, y)
        return np.append(model.coef_, model.intercept_)

    def peer() -> Any:
        family = sm.families.Gamma(link=sm.families.links.Log())
        found = sm.GLM(y, sm.add_constant(X), family=family).fit().params
        return np.append(found[1:], found[0])

    def loss(found: Any) -> float:
        score = X @ found[:-1] + found[-1]
        return float((score + y * np.exp(-score)).mean())

    return Pair(rows, "statsmodels GLM", mine, peer, loss)


def mixed_types(rows: int, rng: Any) -> Pair:
    from kmodes.kprototypes import KPrototypes

    kind = rng.integers(0, 8, rows)
    numbers = rng.normal(size=(8, 4))[kind] * 3 + rng.normal(size=(rows, 4))
    usual = rng.integers(0, 6, (8, 4))[kind]
    words = np.where(rng.random((rows, 4)) < 0.7, usual, rng.integers(0, 6, (rows, 4)))
    table = np.column_stack([numbers, words]).astype(float)
    weight, places = 0.5 * float(numbers.std(axis=0).mean()), [4, 5, 6, 7]

    def mine() -> Any:
        model = ours.KPrototypes(n_clusters=8, categorical=places, gamma=weight).fit(table)
        return model.labels_

    def peer() -> Any:
        with_words = table.astype(object)
        with_words[:, places] = words.astype(str)
        return KPrototypes(n_clusters=8, init="Huang", n_init=1, gamma=weight).fit_predict(
            with_words, categorical=places
        )

    def loss(labels: Any) -> float:
        total = 0.0
        for j in np.unique(labels):
            own = labels == j
            total += float(((numbers[own] - numbers[own].mean(axis=0)) ** 2).sum())
            for t in range(4):
                total += weight * float(own.sum() - np.bincount(words[own, t]).max())
        return total / rows

    return Pair(rows, "kmodes", mine, peer, loss)


def clustered(rows: int, rng: Any, columns: int = 6) -> Any:
    which = np.minimum(rng.geometric(0.35, rows) - 1, 7)
    return rng.normal(size=(8, columns))[which] * 3 + rng.normal(size=(rows, columns))


def by_means(X: Any) -> Callable[[Any], float]:
    def loss(labels: Any) -> float:
        each = (((X[labels == j] - X[labels == j].mean(axis=0)) ** 2).sum() for j in np.unique(labels))
        return float(sum(each)) / len(X)

    return loss


def sizes(rows: int, rng: Any) -> Pair:
    from k_means_constrained import KMeansConstrained

    X, least, most = clustered(rows, rng), int(rows / 8 * 0.9), int(np.ceil(rows / 8 * 1.1))

    def mine() -> Any:
        return ours.KMeansConstrained(8, least, most).fit(X).labels_

    def peer() -> Any:
        return KMeansConstrained(8, size_min=least, size_max=most, n_init=1).fit(X).labels_

    return Pair(rows, "k-means-constrained", mine, peer, by_means(X))


def bisecting(rows: int, rng: Any) -> Pair:
    from sklearn.cluster import BisectingKMeans

    X = clustered(rows, rng)
    return Pair(
        rows,
        "scikit-learn",
        lambda: ours.BisectingKMeans(n_clusters=8).fit(X).labels_,
        lambda: BisectingKMeans(n_clusters=8).fit(X).labels_,
        by_means(X),
    )


def documents(rows: int, rng: Any, words: int = 500, topics: int = 8) -> Any:
    of_topics = rng.dirichlet(np.full(words, 0.05), topics)
    shares = rng.dirichlet(np.full(topics, 0.2), rows)
    return scipy.sparse.csr_matrix(rng.poisson(60 * shares @ of_topics).astype(float))


def perplexity(X: Any, topics: int) -> Callable[[Any], float]:
    """Of scikit-learn's bound, for words of topics by either program; smaller is better."""
    from sklearn.decomposition import LatentDirichletAllocation

    def loss(components: Any) -> float:
        judge = LatentDirichletAllocation(topics, random_state=0)
        few = X[:2000]
        judge.fit(few[:10])
        judge.components_ = components
        judge.exp_dirichlet_component_ = np.exp(_expected_log(components))
        return float(judge.perplexity(few))

    return loss


def _expected_log(components: Any) -> Any:
    from scipy.special import psi

    return psi(components) - psi(components.sum(axis=1, keepdims=True))


def topics_gensim(rows: int, rng: Any) -> Pair:
    from gensim.matutils import Sparse2Corpus
    from gensim.models import LdaModel

    X = documents(rows, rng)

    def mine() -> Any:
        return ours.LatentDirichletAllocation(8, learning_method="online", max_iter=10).fit(X).components_

    def peer() -> Any:
        corpus = list(Sparse2Corpus(X, documents_columns=False))
        model = LdaModel(corpus, num_topics=8, passes=5, eval_every=None, id2word={i: str(i) for i in range(500)})
        return model.state.get_lambda()

    return Pair(rows, "gensim", mine, peer, perplexity(X, 8))


def topics_sklearn(rows: int, rng: Any) -> Pair:
    from sklearn.decomposition import LatentDirichletAllocation

    X = documents(rows, rng)

    def mine() -> Any:
        return ours.LatentDirichletAllocation(8, max_iter=10).fit(X).components_

    def peer() -> Any:
        return LatentDirichletAllocation(8, max_iter=10).fit(X).components_

    return Pair(rows, "scikit-learn", mine, peer, perplexity(X, 8))


def recommender(rows: int, rng: Any) -> Pair:
    from implicit.als import AlternatingLeastSquares

    tastes, items = rng.gamma(0.3, size=(rows, 6)), rng.gamma(0.3, size=(6, 400))
    counts = scipy.sparse.csr_matrix(rng.poisson(0.6 * tastes @ items).astype(np.float64))
    rank, alpha, penalty = 16, 10.0, 0.1

    def mine() -> Any:
        model = ours.ImplicitALS(rank, alpha=alpha, regularization=penalty, max_iter=15).fit(counts)
        return model.transform(counts), model.components_.T

    def peer() -> Any:
        model = AlternatingLeastSquares(
            rank, alpha=alpha, regularization=penalty, iterations=15, use_gpu=False, dtype=np.float64
        )
        model.fit(counts, show_progress=False)
        return np.asarray(model.user_factors), np.asarray(model.item_factors)

    def loss(found: Any) -> float:
        x, y = found
        whole = float(((x.T @ x) * (y.T @ y)).sum()) + penalty * float((x**2).sum() + (y**2).sum())
        places = counts.tocoo()
        score = np.einsum("ij,ij->i", x[places.row], y[places.col])
        trust = 1.0 + alpha * places.data
        return (whole + float((trust * (1.0 - score) ** 2 - score**2).sum())) / rows

    return Pair(rows, "implicit", mine, peer, loss)


def kullback(rows: int, rng: Any) -> Pair:
    from sklearn.decomposition import NMF

    X = rng.poisson(rng.gamma(0.5, size=(rows, 6)) @ rng.gamma(0.5, size=(6, 60)) * 2).astype(float)
    X = X[X.sum(axis=1) > 0]

    def mine() -> Any:
        result = flegel.run(KLNMF(rank=6), X, progress=False)
        return KLNMF(rank=6).predict(X, result.parameter)

    def peer() -> Any:
        model = NMF(6, solver="mu", beta_loss="kullback-leibler", init="random", max_iter=200)
        return model.fit_transform(X) @ model.components_

    def loss(found: Any) -> float:
        found = np.maximum(found, 1e-12)
        return float((found - X + X * np.log(np.where(X > 0, X, 1.0) / found)).sum()) / rows

    return Pair(rows, "scikit-learn", mine, peer, loss)


def components(rows: int, rng: Any) -> Pair:
    from sklearn.decomposition import PCA

    X = rng.normal(size=(rows, 8)) @ rng.normal(size=(8, 30)) + rng.normal(size=(rows, 30))

    def loss(found: Any) -> float:
        mean, axes = found
        away = X - mean
        return float((away**2).sum() - ((away @ axes.T) ** 2).sum()) / rows

    def fitted(model: Any) -> Any:
        model.fit(X)
        return model.mean_, model.components_

    return Pair(rows, "scikit-learn", lambda: fitted(ours.PCA(5)), lambda: fitted(PCA(5)), loss)


TASKS: dict[str, tuple[Callable[[int, Any], Pair], int]] = {
    "PoissonRegressor": (poisson, 1),
    "GammaRegressor": (gamma, 1),
    "KPrototypes": (mixed_types, 50),
    "KMeansConstrained": (sizes, 20),
    "BisectingKMeans": (bisecting, 1),
    "LatentDirichletAllocation (online)": (topics_gensim, 25),
    "LatentDirichletAllocation (batch)": (topics_sklearn, 25),
    "ImplicitALS": (recommender, 10),
    "NMF (Kullback-Leibler)": (kullback, 25),
    "PCA": (components, 1),
}
"""By the class of ours: the pair, and how many times fewer rows than asked for it has; slow peers get fewer."""


def timed(fit: Callable[[], Any]) -> tuple[float, float, Any]:
    began, used = time.perf_counter(), time.process_time()
    found = fit()
    return time.perf_counter() - began, time.process_time() - used, found


def compare(make: Callable[[int, Any], Pair], rows: int, repeat: int, seed: int) -> dict[str, Any]:
    """Medians of both, in turn, after a fit of ours on few rows that compiles and is not counted."""
    make(min(rows, 3000), np.random.default_rng(seed)).ours()
    pair = make(rows, np.random.default_rng(seed))
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    cpu: dict[str, list[float]] = {"ours": [], "theirs": []}
    values: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(repeat):
        for who, fit in (("ours", pair.ours), ("theirs", pair.theirs)):
            wall, used, found = timed(fit)
            seconds[who].append(wall)
            cpu[who].append(used)
            values[who].append(pair.objective(found))
    middle = {who: median(each) for who, each in values.items()}
    return {
        "peer": pair.peer,
        "rows": pair.rows,
        "seconds": {who: round(median(each), 3) for who, each in seconds.items()},
        "cpu": {who: round(median(each), 3) for who, each in cpu.items()},
        "times sooner": round(median(seconds["theirs"]) / median(seconds["ours"]), 2),
        "cpu of peer to ours": round(median(cpu["theirs"]) / median(cpu["ours"]), 2),
        "objective": middle,
        "ours above peer": float(f"{(middle['ours'] - middle['theirs']) / abs(middle['theirs']):.2e}"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=None, help="drawn anew unless given")
    parser.add_argument("--only", default="", help="names of classes, separated by commas")
    parser.add_argument("--out", type=Path, default=None, help="a file for the figures")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    seed = secrets.randbits(32) if given.seed is None else given.seed
    wanted = [name for name in given.only.split(",") if name]
    figures: dict[str, Any] = {}
    about = {
        "command": f"python -m bench.micro.library --rows {given.rows} --repeat {given.repeat} --seed {seed}",
        "commit": commit(),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores for this process",
    }
    for name, (make, fewer) in TASKS.items():
        if wanted and not any(name.startswith(each) for each in wanted):
            continue
        try:
            figures[name] = compare(make, max(given.rows // fewer, 1000), given.repeat, seed)
        except ImportError as missing:
            figures[name] = {"left out": f"{missing.name} is not installed"}
        print(name, json.dumps(figures[name]), flush=True)
        if given.out is not None:
            given.out.write_text(json.dumps({**about, "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
