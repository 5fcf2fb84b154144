"""A single run, from the folder that `flegel submit` saved or from its JSON alone, as a section of a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from flegel.compare.picture import picture
from flegel.compare.record import Picture
from flegel.compare.table import seconds
from flegel.loading.damage import damage_as
from flegel.plan.placement.snapshot import lines
from flegel.report import timeline
from flegel.report.charts import ChartCurve, curves
from flegel.report.comparison import intervals, reasons, workers
from flegel.report.page import figure, heading, note, pairs, paragraph
from flegel.report.svg import Canvas

NO_TRACE = (
    "This is the JSON of a result without its trace; the saved folder would show the timeline of the workers too."
)


class SavedRun(NamedTuple):
    """A result as in its JSON, and what can be drawn of it."""

    result: dict[str, Any]
    picture: Picture


def read_saved_run(path: Path) -> SavedRun:
    """Read a run from a folder with result.json and trace.msgpack, or from a file."""
    from flegel.runtime.job.result_store import read_figures

    result, rows = read_figures(path)
    with damage_as(f"{path} is no result of Flegel"):
        return of_result(result, rows)


def of_result(result: dict[str, Any], rows: list[dict[str, Any]] | None = None) -> SavedRun:
    """A run made from the JSON of a result and, where there are, the rows of its trace."""
    bare = rows is None
    if rows is None:
        rows = [
            {"seconds": t, "iteration": i, "objective": f, "interval": eta, "reason": "", "barrier_cost": 0.0}
            for t, i, f, eta in result["trace"]
        ]
    drawn = picture(rows, result["worker"], result.get("staleness", {}))
    if bare:
        drawn.note = NO_TRACE
    return SavedRun(result, drawn)


def title(single: SavedRun) -> str:
    result = single.result
    return f"{result['algorithm']} on {result['dataset']['name']} under {result['sync']}"


def section(single: SavedRun) -> str:
    """Everything about one run."""
    result, drawn = single
    value = "none" if result["objective"] is None else f"{result['objective']:.8g}"
    told = (
        f"{result['iterations']} barriers in {seconds(result['seconds'])}; objective {value}; "
        f"{result['utilization']:.0%} of the workers' time was computing. It ended because: {result['reason']}."
    )
    parts = [paragraph(told, "lead"), *(note(text) for text in result.get("warnings", []))]
    points = [(t, v) for t, v, _ in drawn.curve if v is not None]
    if points:
        parts.append(heading("Objective against time", level=3))
        parts.append(figure(lambda w: objective_curve(points, w)))
    if drawn.timeline.lanes:
        parts.append(heading("Where the time went", level=3))
        parts.append(figure(lambda w: timeline.draw([(result["sync"], drawn.timeline)], w)))
    elif drawn.note:
        parts.append(note(drawn.note))
    name = result["sync"]
    parts += [intervals({name: drawn}), workers({name: drawn}), reasons({name: drawn})]
    if told_of_servers := lines(result.get("servers")):
        parts += [heading("Parameter servers", level=3), pairs(told_of_servers)]
    if sites := result.get("sites"):
        parts += [heading("Groups at several sites", level=3), pairs(_sites(sites))]
    data = result["dataset"]
    hyper = ", ".join(f"{k}={v}" for k, v in result["hyperparameters"].items())
    parts.append(
        pairs(
            [
                ("data", f"{data['rows']:,} × {data['columns']:,}{' (a stand-in)' if data.get('stand_in') else ''}"),
                ("hyper-parameters", hyper if len(hyper) < 2000 else hyper[:2000] + " …"),
                ("workers", str(result["workers"])),
                ("seed", str(result["seed"])),
                ("kernel", result.get("kernel", "")),
                ("loading and compiling", seconds(result["load_seconds"])),
            ]
        )
    )
    return "".join(parts)


def _sites(told: dict[str, Any]) -> list[tuple[str, str]]:
    took = told["sync_seconds"]
    return [
        ("group", f"{told['group']}, with {', '.join(told['groups']) or 'no other'}"),
        ("rounds", f"{told['rounds']:,}, {'none complete' if took is None else seconds(took) + ' each (median)'}"),
        ("traffic", f"{told['bytes_sent']:,} bytes sent, {told['bytes_received']:,} received"),
    ]


def objective_curve(points: list[tuple[float, float]], width: float) -> Canvas:
    return curves([ChartCurve("objective", points, 0)], width, "seconds", "objective")
