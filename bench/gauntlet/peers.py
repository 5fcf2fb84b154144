"""What other libraries reach from the same start: scikit-learn, scikit-fuzzy (NumPy where it is absent).

Each function takes the algorithm with its hyper-parameters, the rows and θ(0), and returns an objective in the units of
the algorithm's `evaluate`. Peers get standardized or shifted copies where that is what a careful user would do.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.nmf.kullback import KLNMF
from flegel.algorithms.nmf.rows import solve_row, start_row, start_whole_row
from flegel.core.shard import Sparse

SHAPES = {"diagonal": "diag", "full": "full", "tied": "tied", "spherical": "spherical"}


def csr(rows: Sparse, dtype: Any = np.float64) -> Any:
    from scipy.sparse import csr_matrix

    return csr_matrix((rows.values.astype(dtype), rows.indices, rows.indptr), (len(rows.indptr) - 1, rows.columns))


def dense_of(rows: Any) -> Any:
    return csr(rows).toarray() if isinstance(rows, Sparse) else np.asarray(rows, dtype=np.float64)


def kmeans(algorithm: KMeans, rows: Any, first: Any) -> float:
    from sklearn.cluster import KMeans as Lloyd

    start = np.asarray(first.centroids)
    if isinstance(rows, Sparse):
        data, shift, scale = csr(rows), 0.0, 1.0
    else:
        data = np.asarray(rows, dtype=np.float64)
        shift = first.origin
        scale = float(np.abs(data - shift).max()) or 1.0
        data = (data - shift) / scale
    peer = Lloyd(algorithm.k, init=(start - shift) / scale, n_init=1, tol=0, max_iter=300).fit(data)
    return float(peer.inertia_) * scale**2


def spherical(algorithm: KMeans, rows: Any, first: Any) -> float:
    """Lloyd's algorithm on rows of length 1 with centroids of length 1; Σ ‖x − μ‖²/2."""
    from sklearn.preprocessing import normalize

    data = csr(rows) if isinstance(rows, Sparse) else np.asarray(rows, dtype=np.float64)
    centres, value = np.asarray(first.centroids), np.inf
    while True:
        products = np.asarray(data @ centres.T)
        labels = products.argmax(axis=1)
        lengths = np.asarray(data.multiply(data).sum(axis=1)).ravel() if isinstance(rows, Sparse) else (data**2).sum(1)
        before, value = value, float((0.5 * (lengths + 1) - products[np.arange(len(labels)), labels]).sum())
        if not before - value > 1e-12 * value:
            return value
        shares = np.zeros((len(centres), len(labels)))
        shares[labels, np.arange(len(labels))] = 1.0
        sums = np.asarray((data.T @ shares.T).T)
        centres = np.where(sums.any(axis=1)[:, None], normalize(sums), centres)


def gmm(algorithm: GMM, rows: Any, first: Any) -> float:
    """In units where one floor serves all columns, as theirs does."""
    from sklearn.mixture import GaussianMixture

    rows = np.asarray(rows, dtype=np.float64)
    if len(rows) < 2:
        raise ValueError("scikit-learn wants two rows")
    unit = first.unit * np.sqrt(first.floor / first.floor.min())
    z = (rows - first.origin) / unit
    matrices = algorithm.covariance_matrices(first) / np.outer(unit, unit)
    precision = {
        "diagonal": lambda: 1 / np.einsum("jtt->jt", matrices),
        "spherical": lambda: 1 / matrices[:, 0, 0],
        "full": lambda: np.linalg.inv(matrices),
        "tied": lambda: np.linalg.inv(matrices[0]),
    }[algorithm.covariance]()
    peer = GaussianMixture(
        algorithm.k, covariance_type=SHAPES[algorithm.covariance], reg_covar=float(first.floor.min()), tol=1e-6,
        max_iter=200, weights_init=first.weights / first.weights.sum(), precisions_init=precision,
        means_init=(first.means - first.origin) / unit,
    )  # fmt: skip
    peer.fit(z)
    return float(peer.score(z) * len(rows) - len(rows) * np.log(unit).sum())


def fcm(algorithm: FCM, rows: Any, first: Any) -> float:
    y = (np.asarray(rows, dtype=np.float64) - first.origin) / first.unit
    centres, size = (first.centroids - first.origin) / first.unit, float(first.unit[0]) ** 2
    try:
        from skfuzzy.cluster import cmeans
    except ImportError:
        return textbook(y, centres, algorithm.m, 1000) * size
    start = memberships(y, centres, algorithm.m)[0].T
    found, *_ = cmeans(y.T, algorithm.k, algorithm.m, error=1e-7, maxiter=1000, init=start)
    shares, squared = memberships(y, found, algorithm.m)
    return float((shares**algorithm.m * squared).sum()) * size


def memberships(y: Any, centres: Any, m: float) -> tuple[Any, Any]:
    squared = np.stack([((y - c) ** 2).sum(axis=1) for c in centres], axis=1)
    safe = np.maximum(squared, 1e-30)
    shares = (safe.min(axis=1, keepdims=True) / safe) ** (1.0 / (m - 1.0))
    return shares / shares.sum(axis=1, keepdims=True), squared


def textbook(y: Any, centres: Any, m: float, passes: int) -> float:
    """Bezdek's alternation on whole matrices."""
    value = np.inf
    for _ in range(passes):
        shares, squared = memberships(y, centres, m)
        weights = shares**m
        before, value = value, float((weights * squared).sum())
        if before - value <= 1e-10 * abs(value):
            break
        centres = weights.T @ y / weights.sum(axis=0)[:, None]
    return value


def nmf(algorithm: Any, rows: Any, first: Any) -> float:
    """scikit-learn from the same H and the first weights of each row; rows are solved anew for its H."""
    from sklearn.decomposition import non_negative_factorization

    if getattr(algorithm, "solver", "") == "sgd":
        return alternating(algorithm, rows, first)
    scale, h = float(first.scale[0]), np.asarray(first.factors)
    whole = dense_of(rows) / scale
    w = np.zeros((len(whole), algorithm.rank))
    for i in range(len(whole)):
        columns = np.flatnonzero(whole[i])
        if isinstance(algorithm, KLNMF):
            start_row(h, columns, whole[i, columns], w[i])
        else:
            start_whole_row(h.T @ h, h.T @ whole[i], w[i])
    rule = {"solver": "mu", "beta_loss": "kullback-leibler"} if isinstance(algorithm, KLNMF) else {"solver": "cd"}
    _, found, _ = non_negative_factorization(
        whole, W=w, H=np.ascontiguousarray(h.T), n_components=algorithm.rank, init="custom", max_iter=500, tol=1e-6,
        **rule,
    )  # fmt: skip
    return float(algorithm.evaluate(rows, None, first._replace(factors=np.ascontiguousarray(found.T))).objective)


def alternating(algorithm: Any, rows: Any, first: Any, passes: int = 60) -> float:
    """Alternating least squares over the observed entries: all rows are solved, then all columns."""
    scale, h = float(first.scale[0]), np.array(first.factors)
    penalty, sparse = float(first.penalty[0]), isinstance(rows, Sparse)
    known = csr(rows).toarray() > 0 if sparse else ~np.isnan(rows)
    whole = (dense_of(rows) if sparse else np.nan_to_num(rows)) / scale
    w = np.zeros((len(whole), algorithm.rank))
    by_row = [np.flatnonzero(each) for each in known]
    by_column = [np.flatnonzero(each) for each in known.T]
    for _ in range(passes):
        for i, at in enumerate(by_row):
            start_row(h, at, whole[i, at], w[i])
            solve_row(h, at, whole[i, at], w[i], penalty, 1, True)
        for j, at in enumerate(by_column):
            if len(at):
                solve_row(w, at, np.ascontiguousarray(whole[at, j]), h[j], penalty, 1, True)
    return float(algorithm.evaluate(rows, None, first._replace(factors=h)).objective)


def lr_objective(rows: Any, labels: Any, hyper: dict[str, Any], weights: Any, bias: Any) -> float:
    """Mean weighted log-loss + penalty, from scratch."""
    classes = np.unique(labels)
    scores = rows @ weights.T + bias
    if scores.shape[1] == 1:
        scores = np.hstack([np.zeros_like(scores), scores])
    loss = np.logaddexp.reduce(scores, axis=1) - scores[np.arange(len(labels)), np.searchsorted(classes, labels)]
    given = hyper.get("class_weight")
    if given == "balanced":
        given = {c: len(labels) / (len(classes) * (labels == c).sum()) for c in classes}
    if given:
        loss = loss * np.array([given.get(c, 1.0) for c in labels])
    penalty = 0.5 * hyper.get("l2", 0.0) * (weights**2).sum() + hyper.get("l1", 0.0) * np.abs(weights).sum()
    return float(loss.mean() + penalty)


def lr(rows: Any, labels: Any, hyper: dict[str, Any]) -> float:
    """The best objective that its solvers find. Without penalty they are given standardized columns."""
    from sklearn.linear_model import LogisticRegression

    l1, l2, points = hyper.get("l1", 0.0), hyper.get("l2", 0.0), len(labels)
    wide = isinstance(rows, Sparse)
    data = csr(rows) if wide else np.asarray(rows, dtype=np.float64)
    mean, deviation = np.zeros(data.shape[1]), np.ones(data.shape[1])
    if not l1 and not l2 and not wide:
        mean = data.mean(axis=0) if hyper.get("intercept", True) else mean
        deviation = np.sqrt(((data - mean) ** 2).mean(axis=0))
        deviation[deviation <= 1e-12 * np.abs(mean)] = np.inf
    unit = data if wide else (data - mean) / deviation
    common = {"fit_intercept": hyper.get("intercept", True), "class_weight": hyper.get("class_weight")}
    many = len(np.unique(labels)) > 2
    if l1:
        solvers = [{"solver": "saga", "penalty": "elasticnet", "l1_ratio": l1 / (l1 + l2), "max_iter": 3000}]
        common |= {"C": 1 / (points * (l1 + l2)), "tol": 1e-6}
    else:
        solvers = [{"solver": "lbfgs", "max_iter": 2000}]
        if not wide and not (many and data.shape[1] > 100):
            solvers.append({"solver": "newton-cholesky", "max_iter": 100})
        common |= {"C": 1 / (points * l2) if l2 else 1e10, "tol": 1e-8}
    found = []
    for solver in solvers:
        model = LogisticRegression(**common, **solver).fit(unit, labels)
        weights = model.coef_ / deviation
        bias = model.intercept_ - weights @ np.where(np.isfinite(deviation), mean, 0.0)
        found.append(lr_objective(data, labels, hyper, weights, bias))
    return min(found)


def quietly(call: Any, *arguments: Any) -> float:
    """Their warnings are theirs."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return float(call(*arguments))
