"""The page in a real Chromium: every view shows the figures of a real job, and nothing hostile becomes markup."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import needs

needs.library("starlette")
needs.library("uvicorn")
sync_api = needs.library("playwright.sync_api")

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.dashboard.frames import RunHistory
from flegel.dashboard.hub import Hub
from flegel.dashboard.local_job import JobDashboard
from flegel.dashboard.saved_runs import read_run
from flegel.dashboard.server import DashboardServer
from flegel.machine.coordinator.events import TraceRow
from flegel.machine.coordinator.observation import IncidentSnapshot, JobSnapshot, WorkerSnapshot
from flegel.results.result import Result

pytestmark = [pytest.mark.processes, needs.programs("chromium")]
expect = sync_api.expect
LIMIT = 120_000  # milliseconds for the browser to show something; a busy machine takes seconds where others take none
expect.set_options(timeout=LIMIT)
HOSTILE = '<img src=x onerror="window.broken=1">' + "x" * 3000 + "\u202eRTL עברית"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=needs.path_of("chromium"), args=["--no-sandbox"], timeout=LIMIT
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page without an error in its console, except the browser's own remark on a refused action."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.set_default_timeout(LIMIT)
    wrong: list[str] = []
    page.on("console", lambda m: wrong.append(m.text) if m.type == "error" and "409 (Conflict)" not in m.text else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    yield page
    page.close()
    assert not wrong, wrong


@pytest.fixture
def served() -> Iterator[Any]:
    with ExitStack() as stack:

        def serve(hub: Hub, actions: Any = None) -> DashboardServer:
            server = DashboardServer(hub, actions, ("127.0.0.1", 0))
            stack.callback(server.close)
            return server

        yield serve


def rows(number: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(number, 8)).astype("float32")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """A straggler under bsp and under fsp, saved."""
    folder = tmp_path_factory.mktemp("runs")
    with flegel.LocalCluster(4) as cluster:
        return {
            sync: flegel.run(
                KMeans(k=5), rows(20_000), workers=4, sync=sync, straggler="0:30ms/1000", tolerance=0,
                max_iterations=20, resting="off", cluster=cluster, out=folder / sync,
            )
            for sync in ("bsp", "fsp")
        }  # fmt: skip


def test_every_view_shows_the_figures_of_the_result(page: Any, served: Any, runs: dict[str, Result]) -> None:
    result = runs["fsp"]
    figures = json.loads((Path(str(result.model)) / "result.json").read_text(encoding="utf-8"))
    hub = Hub()
    hub.add(read_run(Path(str(result.model))))
    page.goto(served(hub).link)
    for view, value in [
        ("objective", figures["objective"]), ("iterations", figures["iterations"]), ("seconds", figures["seconds"]),
        ("utilization", figures["utilization"]), ("workers-count", 4), ("moved", figures["balance"].get("bytes", 0)),
    ]:  # fmt: skip
        shown = page.locator(f"#{view}")
        expect(shown).to_have_attribute("data-value", re.compile(r"\d"))
        assert float(shown.get_attribute("data-value")) == pytest.approx(value), view
    expect(page.locator("#state")).to_have_text(f"stopped: {figures['reason']}")
    assert float(page.locator("#by-seconds").get_attribute("data-last")) == pytest.approx(result.rows[-1]["estimate"])
    assert float(page.locator("#by-passes").get_attribute("data-last")) == pytest.approx(result.rows[-1]["estimate"])
    assert float(page.locator("#intervals").get_attribute("data-last")) == pytest.approx(result.rows[-1]["interval"])
    lines = page.locator("#workers tbody tr")
    expect(lines).to_have_count(4)
    for worker in figures["worker"]:
        whole = sum(worker[f"{kind}_seconds"] for kind in ("compute", "wait", "barrier"))
        expect(lines.nth(worker["id"])).to_contain_text(f"{int(100 * worker['compute_seconds'] / whole + 0.5)} %")
    assert page.locator("#passes").get_attribute("data-bars") == "4"
    flows = figures["balance"].get("flows", [])
    assert page.locator("#flow").get_attribute("data-flows") == str(min(len(flows), 256))
    expect(page.locator("#reasons tbody tr").first).to_be_visible()
    expect(page.locator("#hosts tbody tr")).to_have_count(1)


def slow_worker() -> RunHistory:
    """Twenty rounds of 150 ms in which worker 0 computes and the other three wait for it most of the time."""
    history = RunHistory("slow", {"title": "slow", "algorithm": "KMeans", "sync": "bsp", "data": "", "live": False})
    for round_ in range(20):
        began, ended = 0.15 * round_, 0.15 * (round_ + 1)
        busy = [0.15, 0.03, 0.03, 0.03]
        spans = [(w, began, began + s, 100, s, 0.0, 0.15 - s if round_ else 0.0) for w, s in enumerate(busy)]
        history.take_rows([TraceRow(ended, round_ + 1, 1.0, None, 1.0, 400, 0.0, "", spans)])
    return history


def test_a_straggler_is_visible_in_the_timeline(page: Any, served: Any) -> None:
    hub = Hub()
    hub.add(slow_worker())
    page.goto(served(hub).link)
    canvas = page.locator("#timelines canvas")
    expect(canvas).to_have_attribute("data-lanes", "4")
    blue = page.evaluate(
        """() => { const c = document.querySelector("#timelines canvas"), p = c.getContext("2d"), found = [];
        const lane = (c.height - 22) / 4;
        const rgb = Flegel.color("compute").slice(1).match(/../g).map((h) => parseInt(h, 16));
        for (let w = 0; w < 4; w++) { const d = p.getImageData(40, w * lane, c.width - 40, lane - 2).data; let n = 0;
          for (let i = 0; i < d.length; i += 4) if (d[i] === rgb[0] && d[i + 1] === rgb[1] && d[i + 2] === rgb[2]) n++;
          found.push(n / (d.length / 4)); } return found; }"""
    )  # fmt: skip
    assert blue[0] > 2 * max(blue[1:]), f"the straggler computes while the others wait: {blue}"
    canvas.hover(position={"x": 600, "y": 40})
    expect(page.locator("#told")).to_contain_text("worker ")


def test_zoom_replay_and_overlay(page: Any, served: Any, runs: dict[str, Result]) -> None:
    hub = Hub()
    for result in runs.values():
        hub.add(read_run(Path(str(result.model))))
    page.goto(served(hub).link)
    page.click("#overlay")
    expect(page.locator("#by-seconds")).to_have_attribute("data-lines", "2")
    expect(page.locator("#timelines canvas")).to_have_count(2)
    first = page.locator("#timelines canvas").first
    first.focus()
    page.keyboard.press("+")
    expect(first).not_to_have_attribute("data-from", "0")
    page.keyboard.press("0")
    expect(first).to_have_attribute("data-from", "0")
    page.locator("#time").fill("10")
    expect(page.locator("#iterations")).not_to_have_text(str(runs["bsp"].iterations))
    page.click("#now")
    expect(page.locator("#iterations")).to_have_text(str(runs["bsp"].iterations))


def test_hostile_names_stay_text(page: Any, served: Any) -> None:
    hub = Hub()
    history = RunHistory("r", {"title": HOSTILE, "algorithm": HOSTILE, "sync": HOSTILE, "data": HOSTILE, "live": True})
    workers = tuple(WorkerSnapshot(i, 5, 1.0, 9.0, 1.0, 1.0, 1.0, 0.0, "idle", 5, 0, HOSTILE) for i in range(2))
    incidents = (IncidentSnapshot(HOSTILE, 1, HOSTILE, 0.5, 0.1, 3),)
    history.take(
        JobSnapshot(
            HOSTILE, HOSTILE, HOSTILE, 2, 2, points=10, workers=workers, incidents=incidents, at=1.0, members=2
        ),
        [TraceRow(1.0, 1, 1.0, 0.1, 1.0, 10, 0.0, HOSTILE)],
    )
    history.log([(HOSTILE, HOSTILE)])
    hub.add(history)
    slave = {"name": HOSTILE, "address": HOSTILE, "slots": 1, "used": 0, "load": 0, "state": HOSTILE}
    hub.publish_cluster({"jobs": [], "slaves": [slave], "error": HOSTILE})
    page.goto(served(hub).link)
    expect(page.locator("#incidents tbody tr")).to_have_count(1)
    expect(page.locator("#cluster-error")).to_contain_text("<img src=x")
    assert page.locator("img").count() == 0 and page.evaluate("window.broken") is None
    wide = page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert wide, "a long name does not widen the page"


def test_a_live_job_is_shown_and_cancelled_by_its_button(page: Any, served: Any) -> None:
    hub = Hub()
    job = JobDashboard(hub, "live job")
    link = served(hub, job).link
    found: list[Result] = []
    trainer = threading.Thread(
        target=lambda: found.append(
            flegel.run(
                KMeans(k=3),
                rows(8000),
                workers=2,
                tolerance=0,
                max_seconds=600,
                straggler="all:5ms/1000",
                observers=[job],
            )
        )
    )
    trainer.start()
    page.goto(link)
    expect(page.locator("#state")).to_have_text("training")
    before = int(page.locator("#iterations").text_content())
    expect(page.locator("#iterations")).not_to_have_text(str(before))
    page.fill("#scale-to", "5000")
    page.click("#scale")
    expect(page.locator("#answer")).to_contain_text("must be 1 to")
    page.click("#cancel")
    expect(page.locator("#state")).to_contain_text("cancelled on the dashboard")
    trainer.join(600)
    assert found and found[0].reason == "cancelled on the dashboard"


def test_a_thousand_workers_answer_within_a_tenth_of_a_second(page: Any, served: Any) -> None:
    hub = Hub()
    history = RunHistory("big", {"title": "1,024 workers", "algorithm": "k", "sync": "fsp", "data": "", "live": True})
    for look in range(60):
        workers = tuple(
            WorkerSnapshot(i, 100, look / 2, 1e5, look * (0.9 - 0.5 * (i % 8 == 0)), look * 0.1, 0.0, 0.0, "training")
            for i in range(1024)
        )
        history.take(
            JobSnapshot(
                "K", "fsp", "training", 1024, 1024, points=102_400, workers=workers, at=float(look), members=1024
            ),
            [TraceRow(float(look), look, 1.0, 0.1, 1.0, 1000, 0.0, "")],
        )
    hub.add(history)
    page.goto(served(hub).link)
    expect(page.locator("#timelines canvas")).to_have_attribute("data-mode", "heat")
    took = page.evaluate(
        """async () => { const found = [];
        for (let i = 0; i < 15; i++) { const began = performance.now();
          document.getElementById("find").value = String(i);
          document.getElementById("find").dispatchEvent(new Event("input"));
          Flegel.page.draw();
          found.push(performance.now() - began); await new Promise((r) => setTimeout(r, 30)); }
        return found.sort((a, b) => a - b)[7]; }"""
    )
    print(f"median of an interaction with 1,024 workers: {took:.0f} ms")
    expect(page.locator("#workers tbody tr")).to_have_count(1)


def test_without_a_token_the_page_is_forbidden(served: Any) -> None:
    link = served(Hub()).link.partition("?")[0]
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(link, timeout=120)
    assert refused.value.code == 403
