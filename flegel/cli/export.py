"""`flegel export`: a saved model as an ONNX file, checked by running it. Trains nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from flegel.errors import StorageError, UsageError
from flegel.terminal.reporting import errors_as_sentences

COMPARED_ROWS = 256  # on which the ONNX model and the original are compared
LEAST_AGREEMENT = 0.99  # of these rows: in float32 a row on the border between two classes may get either of them
NUMBERS_AGREE = 1e-5  # relatively, and of the largest answer, where answers are numbers: float32 has seven digits
ONNX_IR_VERSION = 10  # of the file format: onnxruntime from version 1.18 on reads it
EXPORTED = (
    *("KMeans", "GaussianMixture", "LogisticRegression", "GaussianNB", "MultinomialNB", "BernoulliNB"),
    *("LinearRegression", "Ridge", "Lasso", "ElasticNet", "PoissonRegressor", "GammaRegressor", "HuberRegressor"),
    *("PCA", "TruncatedSVD"),
)
"""Estimators of scikit-learn that a saved model may become on its way."""
EXPORTED_IN_WORDS = (
    "k-means, Gaussian mixtures, logistic, linear, ridge, lasso, elastic net, Poisson, gamma and Huber regression, "
    "PCA, SVD and naive Bayes"
)


def export(
    model: Annotated[Path, typer.Argument(help="Folder of a saved model.")],
    file: Annotated[Path, typer.Argument(help="The file to write, model.onnx.")],
    trust_code: Annotated[
        bool,
        typer.Option("--trust-code", help="Run the class stored in the model; only for models you trust."),
    ] = False,
) -> None:
    """Write a saved model as an ONNX file: k-means, Gaussian mixtures, linear models, components, naive Bayes.

    For example:

        flegel export runs/kmeans-higgs-001 kmeans.onnx
    """
    with errors_as_sentences():
        from flegel.runtime.job.result_store import check_file, load

        if file.suffix != ".onnx":
            raise UsageError(f"{file} should end in .onnx.")
        check_file(file, "FILE")
        loaded = load(model, trust_code=trust_code)
        content, compared = to_onnx(exportable(loaded), loaded.columns)
        try:
            file.write_bytes(content)
        except OSError as error:
            raise StorageError(f"Could not write {file}: {error.strerror or error}.") from None
        print(
            f"{file}: {len(content):,} bytes; onnxruntime and scikit-learn agree on {compared} of {COMPARED_ROWS} rows"
        )


def exportable(loaded: Any) -> Any:
    """A saved model as a fitted estimator of scikit-learn; refused in a sentence where that has no ONNX form."""
    name = type(loaded.algorithm).__name__
    known = f"ONNX files are written of {EXPORTED_IN_WORDS}; use `flegel predict` for this one."
    try:
        estimator = loaded.to_sklearn()
    except UsageError as error:
        raise UsageError(f"{name} cannot be exported: {error} {known}") from None
    kind = type(last_step(estimator)).__name__
    if kind == "NMF":
        raise UsageError(
            "A factorization cannot be exported: its answer is the solution of a problem for each row, and ONNX has no "
            "operator for that. Use `result.to_sklearn()`, or keep `components_`."
        )
    if kind not in EXPORTED:
        raise UsageError(f"{name} cannot be exported: {known}")
    return estimator


def last_step(estimator: Any) -> Any:
    """The model behind scalers."""
    return estimator[-1] if hasattr(estimator, "steps") else estimator


def to_onnx(estimator: Any, columns: int) -> tuple[bytes, int]:
    """The file of a fitted estimator of scikit-learn, and on how many rows onnxruntime agrees with it: in the class or
    cluster, or in all numbers."""
    import numpy as np

    try:
        import onnxruntime
        from skl2onnx import convert_sklearn
        from skl2onnx.common.data_types import FloatTensorType
    except ImportError:
        raise UsageError(
            "Export needs skl2onnx and onnxruntime; install them with: pip install 'flegel[onnx]'"
        ) from None
    made = convert_sklearn(estimator, initial_types=[("X", FloatTensorType([None, columns]))])
    made.ir_version = min(made.ir_version, ONNX_IR_VERSION)
    content = bytes(made.SerializeToString())
    rows = probe_rows(estimator, columns)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    answer = estimator.predict if hasattr(estimator, "predict") else estimator.transform
    wanted = np.asarray(answer(rows.astype(np.float64)))
    answers = np.asarray(session.run(None, {"X": rows})[0]).reshape(wanted.shape)
    if hasattr(estimator, "classes_") or wanted.dtype.kind != "f":
        same = answers == wanted
    else:
        same = np.isclose(answers, wanted, rtol=NUMBERS_AGREE, atol=NUMBERS_AGREE * float(np.abs(wanted).max()))
    agreed = int(same.reshape(len(rows), -1).all(axis=1).sum())
    if agreed < LEAST_AGREEMENT * len(rows):
        raise StorageError(
            f"The ONNX model answers as the original for {agreed} of {len(rows)} rows only; not written. It computes "
            "in float32: where columns have means far larger than their spread, subtract these before the training."
        )
    return content, agreed


def probe_rows(estimator: Any, columns: int) -> Any:
    """Rows about the centres of the model, or about 0, in float32."""
    import numpy as np

    rng, model = np.random.default_rng(0), last_step(estimator)
    centres = centres_of(model, columns)
    spread = (centres.std(axis=0) + 1.0) / (max(norm(model.coef_), 1.0) if is_exponential(model) else 1.0)
    rows = centres[rng.integers(len(centres), size=COMPARED_ROWS)] + spread * rng.normal(size=(COMPARED_ROWS, columns))
    if type(model).__name__ == "MultinomialNB":
        rows = np.abs(rows)
    if hasattr(estimator[0] if hasattr(estimator, "steps") else None, "inverse_transform"):
        rows = estimator[0].inverse_transform(rows)
    return rows.astype(np.float32)


def centres_of(model: Any, columns: int) -> Any:
    """Where rows of a model lie: its centres, means of classes, the mean, the border between true and false; rows whose
    exponent is 0, so that answers are within float32."""
    import numpy as np

    for name in ("cluster_centers_", "means_", "theta_", "mean_"):
        if hasattr(model, name):
            return np.atleast_2d(getattr(model, name))
    if is_exponential(model):
        return np.atleast_2d(-model.intercept_ * model.coef_ / max(norm(model.coef_) ** 2, 1e-300))
    return np.full((1, columns), getattr(model, "binarize", None) or 0.0)


def is_exponential(model: Any) -> bool:
    return type(model).__name__ in ("PoissonRegressor", "GammaRegressor")


def norm(coefficients: Any) -> float:
    return math.sqrt(float(coefficients @ coefficients))
