"""What workers did when, from the spans of a trace: nothing overlaps, nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.common.standalone_pictures import excerpt
from flegel.compare.picture import MAX_SEGMENTS, moving, picture, segments, shares, timeline

part = st.floats(0, 1)


@st.composite
def one_worker(draw: st.DrawFn) -> list[tuple[int, float, float, int, float, float, float]]:
    """Orders and reports that follow one another."""
    now, spans = 0.0, []
    for _ in range(draw(st.integers(1, 12))):
        sent = now + draw(part)
        compute, respond = draw(part), draw(part)
        here = sent + compute + respond
        spans.append((0, sent, here, 10, compute, respond, sent - now))
        now = here
    return spans


@given(one_worker())
def test_segments_follow_one_another_without_gap_or_overlap(spans: list) -> None:
    found = segments(spans)
    at = 0.0
    for begin, end, _ in found:
        assert begin == pytest.approx(at, abs=1e-7) and end > begin
        at = end
    assert at == pytest.approx(spans[-1][2], abs=1e-6)


@given(one_worker())
def test_computing_is_kept_to_the_last_bit_of_time(spans: list) -> None:
    drawn = sum(end - begin for begin, end, kind in segments(spans) if kind == "compute")
    assert drawn == pytest.approx(sum(s[4] for s in spans), abs=1e-6)


@given(one_worker(), st.integers(1, 50))
def test_shares_of_slices_add_up_to_the_segments(spans: list, slices: int) -> None:
    lane, length = segments(spans), spans[-1][2] + 1e-6
    found = shares(lane, length, slices)
    assert all(-1e-9 <= s <= 1 + 1e-3 for row in found for s in row)
    for which, kind in enumerate(("compute", "respond", "wait")):
        exact = sum(end - begin for begin, end, k in lane if k == kind)
        assert sum(row[which] for row in found) * length / slices == pytest.approx(exact, abs=1e-3 * length + 1e-6)


def test_overtime_fills_the_wait_before_the_next_order() -> None:
    spans = [(0, 0.0, 1.0, 5, 1.0, 0.0, 0.0), (0, 3.0, 4.0, 9, 2.5, 0.0, 0.5)]
    assert segments(spans) == [(0.0, 1.0, "compute"), (1.0, 2.5, "compute"), (2.5, 3.0, "wait"), (3.0, 4.0, "compute")]


def test_a_dense_timeline_becomes_slices() -> None:
    spans = [(w, i + 0.1, i + 1.0, 1, 0.8, 0.1, 0.1) for w in range(2) for i in range(MAX_SEGMENTS)]
    found = timeline(spans, float(MAX_SEGMENTS))
    assert [lane.worker for lane in found.lanes] == [0, 1]
    assert not found.lanes[0].segments and found.lanes[0].shares[0][0] == pytest.approx(0.8, abs=0.02)


def test_a_trace_without_spans_says_so() -> None:
    row = {"seconds": 1.0, "objective": 2.0, "interval": None, "reason": "", "barrier_cost": 0.0}
    assert "no timeline" in picture([row], [], {}).note


def test_reasons_that_differ_only_in_numbers_are_told_once() -> None:
    rows = [
        {"seconds": float(i), "objective": 1.0, "interval": 0.1, "reason": f"{why} {i}", "barrier_cost": 0.0}
        for i, why in enumerate(["probe", "probe", "hold", "hold", "probe"])
    ]
    assert [text for _, text in picture(rows, [], {}).reasons] == ["probe 0", "hold 2", "probe 4"]


def row(seconds: float, in_flight: int = 0, spans: tuple[object, ...] = ()) -> dict[str, object]:
    return {"seconds": seconds, "in_flight": in_flight, "spans": spans}


def test_rounds_in_which_points_move_are_joined() -> None:
    rows = [row(1.0), row(2.0, 5), row(3.0, 2), row(4.0), row(5.0, 1)]
    assert moving(rows) == [(1.0, 3.0), (4.0, 5.0)]
    assert moving([]) == []


def test_an_excerpt_begins_at_zero_and_holds_only_its_window() -> None:
    spans = [(0, a, a + 0.8, 1, 0.6, 0.2, 0.0) for a in (0.0, 1.0, 2.0, 3.0)]
    rows = [row(s[2] + 0.1, int(s[1] == 1.0), (s,)) for s in spans]
    found = excerpt(rows, 1.5, 3.5)
    (lane,) = found.lanes
    assert found.seconds == 2.0 and lane.segments[0][0] == 0.0 and lane.segments[-1][1] == 2.0
    assert all(a < b for a, b, _ in lane.segments)
    assert sum(b - a for a, b, _ in lane.segments) == pytest.approx(2.0)
    assert [round(at, 6) for at in found.updates] == [0.4, 1.4]
    assert found.moving == [(0.0, pytest.approx(0.4))]
