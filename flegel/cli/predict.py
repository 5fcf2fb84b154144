"""`flegel predict`: a saved model applied to rows. Trains nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from flegel.cli.options import NewMissing
from flegel.cli.rows_file import check_rows_file, write_rows
from flegel.terminal.reporting import errors_as_sentences, warnings_as_sentences

LINES_PER_CHECK = 1000
"""Printed between two checks whether standard output is still open, such as in a pipe to `head`."""


def predict(
    model: Annotated[Path, typer.Argument(help="Folder of a saved model.")],
    data: Annotated[str, typer.Option("--data", help="A data set's name or a path.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Write to this .npy, .csv or .parquet file; one line a row on standard output else."),
    ] = None,
    probabilities: Annotated[
        bool,
        typer.Option("--probabilities", help="A probability for each class or cluster, instead of the likeliest one."),
    ] = False,
    label: Annotated[str | None, typer.Option(help="Label column of a file, to be left out.")] = None,
    missing: NewMissing = None,
    trust_code: Annotated[
        bool,
        typer.Option("--trust-code", help="Run the class stored in the model; only for models you trust."),
    ] = False,
) -> None:
    """Apply a saved model to rows.

    For example:

        flegel predict runs/kmeans-higgs-001 --data higgs:1000

        flegel predict runs/lr-pulsars-001 --data new.csv --out classes.csv
    """
    with errors_as_sentences():
        import numpy as np

        from flegel.datasets import open_for_prediction
        from flegel.runtime.job.result_store import load

        if out is not None:
            check_rows_file(out, "--out")
        loaded = load(model, trust_code=trust_code)
        with warnings_as_sentences():
            table = open_for_prediction(data, loaded.treatment, label, missing)
            asked = loaded.probabilities if probabilities else loaded.predict
            found = np.asarray(asked(table, missing=missing))
        names = [str(name) for name in loaded.class_names] if probabilities else _column_names(found)
        if out is None:
            if probabilities:
                print(f"flegel: columns are {', '.join(names)}", file=sys.stderr)
            _print_rows(found)
        else:
            write_rows(found, names, out)
            print(f"flegel: {out} has the answers for {len(found):,} rows", file=sys.stderr)


def _column_names(found: Any) -> list[str]:
    return ["prediction"] if found.ndim == 1 else [f"prediction {k}" for k in range(found.shape[1])]


def _print_rows(found: Any) -> None:
    """Print one line for each row, until the reader of the output has seen enough."""
    from flegel.runtime.system.standard_streams import output_taken

    for begin in range(0, len(found), LINES_PER_CHECK):
        for row in found[begin : begin + LINES_PER_CHECK].tolist():
            print(",".join(map(str, row)) if isinstance(row, list) else row)
        if not output_taken():
            return  # the reader, such as head, has seen enough
