"""`flegel evaluate`: how good a saved model is on rows. Trains nothing."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from flegel.cli.options import NewMissing
from flegel.terminal.reporting import errors_as_sentences, warnings_as_sentences


def evaluate(
    model: Annotated[Path, typer.Argument(help="Folder of a saved model.")],
    data: Annotated[str, typer.Option("--data", help="A data set's name or a path.")],
    label: Annotated[str | None, typer.Option(help="Column with the right answers, by name or number.")] = None,
    missing: NewMissing = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    trust_code: Annotated[
        bool,
        typer.Option("--trust-code", help="Run the class stored in the model; only for models you trust."),
    ] = False,
) -> None:
    """Say how good a saved model is on rows: its objective, and figures such as the accuracy.

    For example:

        flegel evaluate runs/lr-pulsars-001 --data held-out.csv --label kind
    """
    with errors_as_sentences():
        from flegel.runtime.job.result_store import load

        loaded = load(model, trust_code=trust_code)
        with warnings_as_sentences():
            found = loaded.evaluate(data, label, missing=missing)
        figures = {"objective": float(found.objective)} | {k: float(v) for k, v in found.metrics.items()}
        print(json_module.dumps(figures) if json else ", ".join(f"{k} {v:.6g}" for k, v in figures.items()))
