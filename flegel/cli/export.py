"""`flegel export`: a saved model as an ONNX file, checked by running it. Trains nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flegel.errors import StorageError, UsageError
from flegel.terminal.reporting import errors_as_sentences

COMPARED_ROWS = 256  # on which the ONNX model and the original are compared
LEAST_AGREEMENT = 0.99  # of these rows: in float32 a row on the border between two classes may get either of them
ONNX_IR_VERSION = 10  # of the file format: onnxruntime from version 1.18 on reads it


def export(
    model: Annotated[Path, typer.Argument(help="Folder of a saved model.")],
    file: Annotated[Path, typer.Argument(help="The file to write, model.onnx.")],
    trust_code: Annotated[
        bool,
        typer.Option("--trust-code", help="Run the class stored in the model; only for models you trust."),
    ] = False,
) -> None:
    """Write a saved model as an ONNX file (k-means, Gaussian mixtures, logistic regression).

    For example:

        flegel export runs/kmeans-higgs-001 kmeans.onnx
    """
    with errors_as_sentences():
        from flegel.runtime.job.result_store import check_file, load

        if file.suffix != ".onnx":
            raise UsageError(f"{file} should end in .onnx.")
        check_file(file, "FILE")
        loaded = load(model, trust_code=trust_code)
        content, compared = to_onnx(loaded.to_sklearn(), loaded.columns)
        try:
            file.write_bytes(content)
        except OSError as error:
            raise StorageError(f"Could not write {file}: {error.strerror or error}.") from None
        print(
            f"{file}: {len(content):,} bytes; onnxruntime and scikit-learn agree on {compared} of {COMPARED_ROWS} rows"
        )


def to_onnx(estimator: Any, columns: int) -> tuple[bytes, int]:
    """The file of a fitted estimator of scikit-learn, and on how many rows onnxruntime agrees with it."""
    import numpy as np

    try:
        import onnxruntime
        from skl2onnx import convert_sklearn
        from skl2onnx.common.data_types import FloatTensorType
    except ImportError:
        raise UsageError(
            "Export needs skl2onnx and onnxruntime; install them with: pip install 'flegel[onnx]'"
        ) from None
    if not hasattr(estimator, "predict"):
        raise UsageError(
            "A factorization cannot be exported: its answer is the solution of a problem for each row, and ONNX has no "
            "operator for that. Use `result.to_sklearn()`, or keep `components_`."
        )
    made = convert_sklearn(estimator, initial_types=[("X", FloatTensorType([None, columns]))])
    made.ir_version = min(made.ir_version, ONNX_IR_VERSION)
    content = bytes(made.SerializeToString())
    rows = probe_rows(estimator, columns)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    answers = np.asarray(session.run(None, {"X": rows})[0]).reshape(-1)
    agreed = int((answers == estimator.predict(rows.astype(np.float64))).sum())
    if agreed < LEAST_AGREEMENT * len(rows):
        raise StorageError(
            f"The ONNX model answers as the original for {agreed} of {len(rows)} rows only; not written."
        )
    return content, agreed


def probe_rows(estimator: Any, columns: int) -> Any:
    """Rows about the centres of the model, or about 0, in float32."""
    import numpy as np

    rng = np.random.default_rng(0)
    model = estimator[-1] if hasattr(estimator, "steps") else estimator
    centres = getattr(model, "cluster_centers_", getattr(model, "means_", np.zeros((1, columns))))
    spread = centres.std(axis=0) + 1.0
    rows = centres[rng.integers(len(centres), size=COMPARED_ROWS)] + spread * rng.normal(size=(COMPARED_ROWS, columns))
    if hasattr(estimator[0] if hasattr(estimator, "steps") else None, "inverse_transform"):
        rows = estimator[0].inverse_transform(rows)
    return rows.astype(np.float32)
