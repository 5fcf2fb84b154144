"""Options that several commands share, each described once. Decides nothing."""

from __future__ import annotations

from typing import Annotated

import typer

Settings = Annotated[list[str] | None, typer.Option("--set", help="A hyper-parameter as name=value; repeatable.")]
Label = Annotated[str | None, typer.Option(help="Label column of a file, by name or number.")]
Partition = Annotated[str, typer.Option(help="Who owns which rows, as in submit.")]
Target = Annotated[
    float | None, typer.Option(help="Objective to reach; 0.1 % short of what bsp converges to by default.")
]
Within = Annotated[float, typer.Option(help="How far the default target may be from what bsp finds.")]
Tolerance = Annotated[float, typer.Option(help="When bsp has converged, for the default target.")]
