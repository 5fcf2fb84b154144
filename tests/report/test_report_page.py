"""Pages need nothing but themselves, can be read by a strict parser, and keep everything inside their frames."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from bench.common import report
from bench.common.standalone_pictures import chart_picture, timeline_picture
from flegel.compare import write
from flegel.errors import StorageError, UsageError
from flegel.report.charts import Bar, bars, colours_of
from flegel.report.page import NARROW_PIXELS, WIDE_PIXELS
from flegel.report.saved_run import of_result
from flegel.report.svg import AxisScale, log_ticks, nice_ticks, short
from flegel.report.timeline import common_window, draw
from flegel.report.write import load, render
from tests.compare.samples import a_picture, bench, comparison

SVG = "{http://www.w3.org/2000/svg}"


def a_result() -> dict[str, Any]:
    return {
        "algorithm": "kmeans", "hyperparameters": {"k": 3}, "sync": "fsp", "workers": 2, "seed": 0, "converged": True,
        "dataset": {"name": "points", "rows": 1000, "columns": 4, "stand_in": False}, "reason": "a < b", "kernel": "",
        "objective": 5.0, "iterations": 2, "seconds": 1.0, "load_seconds": 0.1, "utilization": 0.5, "warnings": ["w"],
        "trace": [[0.5, 1, None, 0.1], [1.0, 2, 5.0, 0.1]], "worker": a_picture(1.0).workers,
    }  # fmt: skip


PAGES = {
    "comparison": lambda: render([comparison()]),
    "benchmark": lambda: report.page([bench()], "All of it"),
    "single": lambda: render([of_result(a_result())]),
    "several": lambda: render([comparison(), of_result(a_result())]),
}


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> str:
    return PAGES[request.param]()


def parse(page: str) -> ET.Element:
    assert page.startswith("<!DOCTYPE html>\n")
    return ET.fromstring(page.partition("\n")[2])


def test_a_page_is_well_formed(page: str) -> None:
    assert parse(page).find("body") is not None


def test_a_page_loads_nothing(page: str) -> None:
    root = parse(page)
    for element in root.iter():
        name = element.tag.rpartition("}")[2]
        assert name not in ("script", "link", "img", "iframe", "object", "image", "use")
        for attribute in ("src", "href", "{http://www.w3.org/1999/xlink}href"):
            value = element.get(attribute)
            assert value is None or value.startswith("#"), value
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)


def test_every_link_has_its_place(page: str) -> None:
    root = parse(page)
    places = {e.get("id") for e in root.iter() if e.get("id")}
    links = [e.get("href", "")[1:] for e in root.iter("a")]
    assert set(links) <= places and len(places) == len([e for e in root.iter() if e.get("id")])


def test_pictures_come_for_the_desk_and_for_the_phone(page: str) -> None:
    root = parse(page)
    widths = [float(e.get("viewBox", "").split()[2]) for e in root.iter(f"{SVG}svg")]
    assert set(widths) == {WIDE_PIXELS, NARROW_PIXELS} and widths.count(WIDE_PIXELS) == widths.count(NARROW_PIXELS)


def test_nothing_is_drawn_outside_the_frame(page: str) -> None:
    for picture in parse(page).iter(f"{SVG}svg"):
        _, _, width, height = map(float, picture.get("viewBox", "").split())
        for element in picture.iter():
            box = extent(element)
            if box is not None:
                assert -1 <= box[0] <= box[1] <= width + 1, ET.tostring(element)
                assert -1 <= box[2] <= height + 1, ET.tostring(element)


def extent(element: ET.Element) -> tuple[float, float, float] | None:
    """Left, right and y; of a text, as wide as its letters are on average."""
    number = lambda name: float(element.get(name, "0"))  # noqa: E731
    match element.tag.removeprefix(SVG):
        case "rect":
            return number("x"), number("x") + number("width"), number("y") + number("height")
        case "line":
            return min(number("x1"), number("x2")), max(number("x1"), number("x2")), max(number("y1"), number("y2"))
        case "circle":
            return number("cx"), number("cx"), number("cy")
        case "text":
            wide = 5.4 * len(element.text or "")
            back = {"end": wide, "middle": wide / 2}.get(element.get("text-anchor", ""), 0.0)
            return number("x") - back, number("x") - back + wide, number("y")
    return None


def test_a_picture_of_its_own_brings_its_style() -> None:
    root = ET.fromstring(timeline_picture(comparison(), ["bsp", "fsp"], "Where the time goes"))
    assert root.tag == f"{SVG}svg" and root.find(f"{SVG}style") is not None
    said = " ".join(t.text or "" for t in root.iter(f"{SVG}text"))
    assert "bsp: 9 s, goes on" in said and "fsp: 600 ms" in said and "done" in said


def test_a_much_longer_run_is_cut_so_that_the_short_one_can_be_seen() -> None:
    assert common_window([9.0, 0.6]) == pytest.approx(1.8)
    assert common_window([1.0, 0.9]) == 1.0
    assert common_window([]) == 1.0


def test_many_workers_still_fit() -> None:
    canvas = draw([("bsp", a_picture(1.0, workers=200).timeline)], WIDE_PIXELS)
    assert canvas.height < 1200


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(2, 12))
def test_ticks_are_within_the_range_and_few(low: float, wide: float, most: int) -> None:
    found = nice_ticks(low, low + wide, most)
    assert len(found) <= most + 1
    slack = 1e-6 * max(abs(low), wide)
    assert all(low - slack <= t <= low + wide + slack for t in found)


@given(st.floats(1e-9, 1e9), st.floats(1.001, 1e9), st.integers(2, 12))
def test_logarithmic_ticks_are_within_the_range_and_few(low: float, factor: float, most: int) -> None:
    found = log_ticks(low, low * factor, most)
    assert 1 <= len(found) <= most
    assert all(low * 0.999 <= t <= low * factor * 1.001 for t in found)


@given(st.floats(0.001, 1e6), st.floats(0.001, 1e6), st.booleans())
def test_a_scale_maps_its_ends_to_its_ends(a: float, b: float, log: bool) -> None:
    low, high = min(a, b), max(a, b)
    if high > low * 1.001:
        scale = AxisScale(low, high, 10, 110, log)
        assert scale(low) == pytest.approx(10, abs=1e-6) and scale(high) == pytest.approx(110, abs=1e-6)


def test_numbers_on_axes_are_short() -> None:
    assert [short(v) for v in (0, 0.25, 1234.5, 2.96e6, 3.1e-7)] == ["0", "0.25", "1234", "2.96e6", "3.1e-7"]


def test_bars_of_unreached_targets_tell_why() -> None:
    drawn = bars(
        [Bar("asp", None, 0, 0, "diverged", 0), Bar("fsp", 1.0, 0.9, 1.1, "1 s", 1)], WIDE_PIXELS, "seconds"
    ).svg()
    assert "diverged" in drawn


def test_models_keep_their_colours_and_others_get_free_ones() -> None:
    found = colours_of(["fsp:interval=1ms", "fsp", "bsp"])
    assert found["fsp"] == colours_of(["fsp"])["fsp"]
    assert len(set(found.values())) == 3


def test_the_command_makes_one_page_of_many_sources(tmp_path: Path) -> None:
    import json

    from flegel.cli.main import app

    write(comparison(), tmp_path / "c.json")
    (tmp_path / "r.json").write_text(json.dumps(a_result()))
    words = ["report", str(tmp_path / "c.json"), str(tmp_path / "r.json"), "--out", str(tmp_path / "page.html")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "page.html").read_text()
    assert "kmeans on points under fsp" in page and "KMeans on &lt;points&gt;" in page


def test_the_suite_is_collected_into_one_page(tmp_path: Path) -> None:
    write(bench(), tmp_path / "skew.json")
    (tmp_path / "kernels.raw.json").write_text("[1, 2]")
    assert "Fig. 9: How?" in report.save_benchmarks(tmp_path).read_text()
    with pytest.raises(UsageError, match="no benchmarks"):
        report.save_benchmarks(tmp_path / "absent")
    with pytest.raises(UsageError, match=r"bench\.run_suite report"):
        load(tmp_path / "skew.json")


def test_the_saved_page_of_a_dashboard_is_a_report(tmp_path: Path) -> None:
    import json

    from flegel.cli.main import app

    (tmp_path / "r.json").write_text(json.dumps(a_result()))
    done = CliRunner().invoke(app, ["dashboard", str(tmp_path / "r.json"), "--save", str(tmp_path / "page.html")])
    assert done.exit_code == 0 and "--save is deprecated; use flegel report" in done.output
    assert "kmeans on points under fsp" in (tmp_path / "page.html").read_text()


def test_other_files_are_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(StorageError, match="no JSON"):
        load(tmp_path / "x.json")
    with pytest.raises(UsageError, match="Could not read"):
        load(tmp_path / "absent.json")
    with pytest.raises(UsageError, match=r"result\.json"):
        load(tmp_path)
    (tmp_path / "y.json").write_text("{}")
    with pytest.raises(StorageError, match="lacks algorithm"):
        load(tmp_path / "y.json")


def test_long_names_of_candidates_fit_above_their_lanes() -> None:
    name = "fsp:coordination=centralized:balance=async"
    drawn = draw([(name, a_picture(1.0).timeline)], NARROW_PIXELS)
    said = [t.text or "" for t in ET.fromstring(drawn.svg(standalone=True)).iter(f"{SVG}text")]
    (head,) = [text for text in said if text.endswith(": 1 s")]
    assert head.startswith("…") and "balance=async" in head and len(head) * 7 < NARROW_PIXELS


def test_a_chart_of_a_benchmark_is_a_picture_of_its_own() -> None:
    root = ET.fromstring(chart_picture(bench(), "lines"))
    assert root.find(f"{SVG}style") is not None
    with pytest.raises(UsageError, match="it has: lines"):
        chart_picture(bench(), "no such chart")
