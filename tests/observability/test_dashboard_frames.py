"""What the page is told: bounded histories, pages that cannot slow a job down, who may look, a page in one file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flegel.dashboard import frames
from flegel.dashboard.access import FULL_ROLE, READ_ROLE, Access
from flegel.dashboard.frames import RunHistory, look_frame, row_record
from flegel.dashboard.hub import MAX_QUEUED_FRAMES, Hub
from flegel.dashboard.page import SCRIPTS, static
from flegel.dashboard.saved_runs import history_of, read_run
from flegel.errors import StorageError
from flegel.machine.coordinator.events import TraceRow
from flegel.machine.coordinator.observation import JobSnapshot, SiteSnapshot, SitesSnapshot, WorkerSnapshot

HOSTILE = '<img src=x onerror="alert(1)"></script><script>alert(2)</script>'


def row(number: int, **more: Any) -> TraceRow:
    spans = [(w, 0.1 * number, 0.1 * number + 0.05, 5, 0.04, 0.01, 0.0) for w in (0, 1)]
    return TraceRow(0.1 * number, number, 2.0, 0.1, 2.0, 10, 0.01, f"because {number % 2}", spans, [1.0, 3.0], **more)


def seen(workers: int = 2, **more: Any) -> JobSnapshot:
    every = tuple(
        WorkerSnapshot(i, 50, 1.5, 1e6, 0.5, 0.25, 0.125, 0.0, "training", 75, 0, "a") for i in range(workers)
    )
    return JobSnapshot("KMeans", "fsp", "training", workers, workers, points=100, workers=every, at=1.0, **more)


def history(name: str = "run") -> RunHistory:
    return RunHistory(
        name, {"title": HOSTILE, "algorithm": "kmeans", "sync": "fsp", "workers": 2, "data": "", "live": False}
    )


def told(found: RunHistory) -> list[dict[str, Any]]:
    return [json.loads(frame) for frame in found.frames()]


def test_a_row_has_cumulative_visits_the_spread_of_passes_and_no_infinite_number() -> None:
    record = row_record(row(3, in_flight=4), 30, "why")
    assert record[:2] == [pytest.approx(0.3), 3] and record[5] == 30 and record[7] == 4
    assert record[9:] == [1.0, 2.0, 3.0, "why"]
    broken = TraceRow(0.1, 1, float("nan"), None, float("inf"), 1, 0.0, "")
    assert row_record(broken, 1, "")[2:5] == [None, None, None]


def test_workers_are_told_by_columns() -> None:
    worker = look_frame("run", seen())["worker"]
    assert worker["id"] == [0, 1] and worker["compute"] == [0.5, 0.5] and worker["state"] == "tt"


def test_a_history_tells_everything_again_and_a_reason_only_when_it_changes() -> None:
    found = history()
    found.take(seen(), [row(1), row(2), row(2), row(3)])
    found.log([("now", "a line")])
    found.end({"objective": 2.0, "trace": [[1, 2, 3, 4]]})
    kinds = [frame["kind"] for frame in told(found)]
    assert kinds == ["job", "rows", "look", "log", "end"]
    rows = told(found)[1]
    assert [r[-1] for r in rows["rows"]] == ["because 1", "because 0", "", "because 1"]
    assert [r[5] for r in rows["rows"]] == [10, 20, 30, 40] and len(rows["spans"]) == 8
    assert "trace" not in told(found)[4]["result"]


def test_a_history_stays_bounded_and_keeps_its_last_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_BARRIER_RECORDS", 100)
    monkeypatch.setattr(frames, "MAX_SNAPSHOT_BYTES", 20_000)
    found = history()
    for i in range(1, 500):
        found.take(seen(iteration=i), [TraceRow(0.1 * i, i, 2.0, 0.1, 2.0, 10, 0.0, "")])
    parts = told(found)
    rows = next(p for p in parts if p["kind"] == "rows")["rows"]
    assert len(rows) <= 150 and rows[-1][:2] == [pytest.approx(49.9), 499] and rows[-1][5] == 4990
    looks = [p for p in parts if p["kind"] == "look"]
    assert sum(len(json.dumps(p)) for p in looks) < 40_000 and looks[-1]["iteration"] == 499


def test_a_page_that_does_not_read_costs_a_bounded_queue_and_then_gets_everything_anew() -> None:
    hub, found = Hub(), history()
    hub.add(found)
    slow, quick = hub.subscribe(lambda: None), hub.subscribe(lambda: None)
    slow.take(), quick.take()
    for i in range(1, MAX_QUEUED_FRAMES + 50):
        hub.publish(lambda i=i: found.take_rows([row(i)]))  # type: ignore[misc]
        assert len(quick.take()) == 1
    anew = [json.loads(frame) for frame in slow.take()]
    assert slow.dropped == MAX_QUEUED_FRAMES + 49 and quick.dropped == 0
    assert anew[0]["kind"] == "job" and anew[0]["reset"] and len(anew[1]["rows"]) == MAX_QUEUED_FRAMES + 49
    assert anew[-1] == {"kind": "dropped", "count": MAX_QUEUED_FRAMES + 49}
    slow.close()
    assert hub.pages == {quick}


def test_tokens_become_sessions_and_hosts_are_known_by_name() -> None:
    access = Access("127.0.0.1", 8787, ("dash.example",))
    assert access.role(access.open_session(access.tokens[FULL_ROLE]) or "") == FULL_ROLE
    assert access.role(access.open_session(access.tokens[READ_ROLE]) or "") == READ_ROLE
    assert access.open_session("guess") is None and access.role("") is None
    assert [access.knows_host(h) for h in ("localhost:8787", "127.0.0.1:8787", "evil:8787", "127.0.0.1:1", "")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert access.knows_host("dash.example") and access.knows_origin("http://127.0.0.1:8787")
    assert FULL_ROLE not in Access("127.0.0.1", 1, may_act=False).tokens


def test_scripts_of_the_page_never_make_markup_of_data() -> None:
    for name in SCRIPTS[1:]:
        text = static(name)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), name
    assert "MIT License" in static("uPlot.LICENSE")


def test_a_saved_result_becomes_the_same_frames_as_a_live_job(tmp_path: Path) -> None:
    worker = {
        "id": 0, "points": 100, "visits": 20, "passes": 0.2, "compute_seconds": 1.0, "wait_seconds": 0.5,
        "barrier_seconds": 0.25,
    }  # fmt: skip
    result = {
        "algorithm": "kmeans", "sync": "fsp", "workers": 1, "dataset": {"name": "blobs"}, "objective": 2.0,
        "iterations": 2, "seconds": 0.2, "reason": "enough", "worker": [worker], "trace": [[0.1, 1, 2.0, None]],
        "balance": {"bytes": 7, "flows": [[0, 1, 5, 7]]},
        "incidents": [{"kind": "lost", "worker": 1, "why": "died", "at": 0.1, "resumed": 0.15, "unvisited": 3}],
    }  # fmt: skip
    parts = told(history_of("run", result, [vars(row(1)), vars(row(2))]))
    look = next(p for p in parts if p["kind"] == "look")
    assert look["flows"] == [[0, 1, 5, 7, 0]] and look["incidents"][0]["seconds"] == pytest.approx(0.05)
    assert look["worker"]["wait"] == [0.5] and parts[-1]["result"]["reason"] == "enough"
    (tmp_path / "bare.json").write_bytes(msgspec.json.encode(result))
    assert len(told(read_run(tmp_path / "bare.json"))[1]["rows"]) == 1
    (tmp_path / "bad.json").write_text("[]", encoding="utf-8")
    with pytest.raises(StorageError, match="no result of Flegel"):
        read_run(tmp_path / "bad.json")


def test_groups_at_several_sites_are_told_with_who_is_waited_for_bytes_and_ages() -> None:
    assert look_frame("run", seen())["sites"] is None
    late = SiteSnapshot("oslo", "training", 9, sent=False, waited_for=True, silent=True, age=3, workers=2)
    found = look_frame("run", seen(sites=SitesSnapshot(12, (late,), "why", 5, 7), waits_for="waits for oslo"))
    assert found["sites"]["sites"][0]["age"] == 3 and found["sites"]["sites"][0]["waited_for"]
    assert found["sites"]["bytes_sent"] == 5 and found["waits_for"] == "waits for oslo"
    json.dumps(found)
