"""Saved runs as histories: the folders that `flegel submit` writes, or the JSON of a result. Reads files only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flegel.dashboard.frames import RunHistory
from flegel.loading.damage import damage_as
from flegel.machine.coordinator.events import TraceRow
from flegel.machine.coordinator.observation import FlowSnapshot, IncidentSnapshot, JobSnapshot, WorkerSnapshot


def read_run(path: Path) -> RunHistory:
    """Raises `StorageError` for what is no run."""
    from flegel.runtime.job.result_store import read_figures

    result, rows = read_figures(path)
    with damage_as(f"{path} is no result of Flegel"):
        history = history_of(str(path), result, rows)
        history.frames()  # what cannot be shown is found here, not by the server
        return history


def history_of(name: str, result: dict[str, Any], rows: list[dict[str, Any]] | None) -> RunHistory:
    """A history made from the JSON of a result and, where there are, the rows of its trace."""
    trace = [_row(r) for r in rows] if rows is not None else [_bare(r) for r in result["trace"]]
    about = {
        "title": name,
        "algorithm": str(result["algorithm"]),
        "sync": str(result["sync"]),
        "workers": result["workers"],
        "data": str(result["dataset"].get("name", "")),
        "live": False,
    }
    history = RunHistory(name, about)
    history.take_rows(trace)
    history.take(_final_snapshot(result, trace), rows=())
    # No time: warnings of a result have none.
    history.log([("", str(text)) for text in [*result.get("warnings", []), *_notes(result)]])
    history.end(result)
    return history


def _row(row: dict[str, Any]) -> TraceRow:
    known = {name: row[name] for name in TraceRow.__dataclass_fields__ if name in row}
    return TraceRow(**known)


def _bare(row: list[Any]) -> TraceRow:
    seconds, iteration, objective, interval = row
    return TraceRow(seconds, iteration, objective, interval, objective, 0, 0.0, "")


def _final_snapshot(result: dict[str, Any], trace: list[TraceRow]) -> JobSnapshot:
    """The end of the run as a look: the accounts of the workers, and what moved."""
    workers, balance, last = result["worker"], result.get("balance", {}), trace[-1] if trace else None
    seconds = {k: sum(w[f"{k}_seconds"] for w in workers) for k in ("compute", "wait", "barrier")}
    return JobSnapshot(
        str(result["algorithm"]),
        str(result["sync"]),
        "over",
        len(workers),
        len(workers),
        visits=sum(w["visits"] for w in workers),
        seconds=result["seconds"],
        at=result["seconds"],
        iteration=result["iterations"],
        objective=result["objective"],
        estimate=result["objective"],
        interval=last.interval if last else None,
        points=sum(w["points"] for w in workers),
        moved_bytes=int(balance.get("bytes", 0)),
        verdict=str(result["reason"]),
        members=len(workers),
        compute=seconds["compute"],
        wait=seconds["wait"],
        respond=seconds["barrier"],
        workers=tuple(
            WorkerSnapshot(
                w["id"],
                w["points"],
                w["passes"],
                w["visits"] / max(w["compute_seconds"], 1e-9),
                w["compute_seconds"],
                w["wait_seconds"],
                w["barrier_seconds"],
                w.get("gain") or 0.0,
                "idle",
                w["visits"],
            )
            for w in workers
        ),
        flows=tuple(FlowSnapshot(a, b, points, size, 0) for a, b, points, size in balance.get("flows", ())),
        incidents=tuple(
            IncidentSnapshot(
                str(i["kind"]),
                i["worker"],
                str(i["why"]),
                i["at"],
                (i["resumed"] or i["at"]) - i["at"],
                i.get("unvisited", 0),
            )
            for i in result.get("incidents", ())
        ),
    )


def _notes(result: dict[str, Any]) -> list[Any]:
    notes: list[Any] = result.get("balance", {}).get("notes", [])
    return notes
