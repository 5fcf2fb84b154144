"""`flegel export`: a saved model as an ONNX file, checked by running it. Trains nothing."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from flegel.errors import StorageError, UsageError
from flegel.terminal.reporting import errors_as_sentences

COMPARED_ROWS = 256  # on which the ONNX model and the original are compared
LEAST_AGREEMENT = 0.99  # of these rows: in float32 a row on the border between two classes may get either of them
NUMBERS_AGREE = 1e-5  # relatively, and of the largest answer, where answers are numbers: float32 has seven digits
ONNX_IR_VERSION = 10  # of the file format: onnxruntime from version 1.18 on reads it

NOT_INSTALLED = "Export needs skl2onnx and onnxruntime; install them with: pip install 'flegel[onnx]'"


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
    from flegel.algorithms.exported import EXPORTED_IN_WORDS, why_not

    name = type(loaded.algorithm).__name__
    if find_spec("sklearn") is None:
        raise UsageError(NOT_INSTALLED)
    known = f"ONNX files are written of {EXPORTED_IN_WORDS}; use `flegel predict` for this one."
    try:
        estimator = loaded.to_sklearn()
    except UsageError as error:
        raise UsageError(f"{name} cannot be exported: {error} {known}") from None
    if (reason := why_not(estimator)) is not None:
        raise UsageError(reason or f"{name} cannot be exported: {known}")
    return estimator


def to_onnx(estimator: Any, columns: int) -> tuple[bytes, int]:
    """The file of a fitted estimator of scikit-learn, and on how many rows onnxruntime agrees with it: in the class or
    cluster, or in all numbers."""
    import numpy as np

    from flegel.algorithms.exported import last_step, probe_rows

    try:
        import onnxruntime
        from skl2onnx import convert_sklearn
        from skl2onnx.common.data_types import FloatTensorType
    except ImportError:
        raise UsageError(NOT_INSTALLED) from None
    plane = type(last_step(estimator)).__name__ == "LinearSVC"  # skl2onnx gives it options that it does not take
    options = {id(last_step(estimator)): {"raw_scores": True}} if plane else None
    made = convert_sklearn(estimator, initial_types=[("X", FloatTensorType([None, columns]))], options=options)
    made.ir_version = min(made.ir_version, ONNX_IR_VERSION)
    content = bytes(made.SerializeToString())
    rows = probe_rows(estimator, columns, COMPARED_ROWS)
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
