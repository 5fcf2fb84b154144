"""The line that `flegel.run` draws in terminals and notebooks."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.job import Criteria
from flegel.machine.coordinator.observation import JobSnapshot, WorkerSnapshot
from flegel.runtime import clock
from flegel.runtime.job.observers import JobSeen
from flegel.terminal import progress_line
from flegel.terminal.display import PlainDisplay
from flegel.terminal.progress_line import ProgressLine, line, part_done, progress_stream
from tests.observability.test_metrics import SEEN
from tests.test_progress_lines import Stream

ROWS = np.random.default_rng(0).normal(size=(300, 2))
NOW = msgspec.structs.replace(SEEN, phase="training", incidents=())


def test_a_line_tells_objective_rounds_and_who_waits() -> None:
    workers = tuple(WorkerSnapshot(i, 10, 1.0, 10.0, 1.0, 3.0 * i, 0.0, 0.0) for i in range(2))
    text = line(msgspec.structs.replace(NOW, workers=workers, metrics={"log_loss": 0.25}), Criteria())
    assert f"objective {NOW.estimate:.6g}" in text and f"round {NOW.iteration}" in text and "log_loss 0.25" in text
    assert "worker 1 waits 75%" in text and "[" not in text  # nothing but convergence ends it


def test_an_estimate_says_of_how_many_points_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """On sorted rows the first part of a pass was shown as an objective that was 30 times off."""
    half = msgspec.structs.replace(NOW, unseen=50)
    assert "objective 7.5 (estimated from 50% of the points)" in line(half, Criteria())
    assert "objective 7.5  " in line(NOW, Criteria())  # all were visited
    assert "objective –  " in line(msgspec.structs.replace(half, estimate=None), Criteria())
    assert "7.5 (estimated from 50% of the points)" in drawn(monkeypatch, False, [half])
    few, most = (msgspec.structs.replace(NOW, points=10_000, unseen=unseen) for unseen in (9_999, 1))
    assert "from 1% of" in line(few, Criteria()) and "from 99% of" in line(most, Criteria())


def test_limits_make_a_bar() -> None:
    seen = msgspec.structs.replace(NOW, iteration=5, visits=300, points=100, seconds=1.0)
    assert part_done(seen, Criteria(max_iterations=10, max_passes=4.0)) == 0.75
    assert part_done(seen, Criteria()) is None and part_done(seen, Criteria(max_seconds=0.5)) == 1.0
    assert line(seen, Criteria(max_iterations=10)).startswith("[##########          ] 50%")


def drawn(monkeypatch: pytest.MonkeyPatch, terminal: bool, looks: list[JobSnapshot]) -> str:
    now = [0.0]
    monkeypatch.setattr(clock, "now", lambda: now[0])
    stream = Stream(terminal)
    with ProgressLine(stream, Criteria()) as shown:
        for seen in looks:
            now[0] += 1.0
            shown.see(JobSeen(seen))
    return stream.getvalue()


def test_on_a_terminal_one_line_is_drawn_over_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(monkeypatch, True, [NOW, msgspec.structs.replace(NOW, iteration=NOW.iteration + 1)])
    assert text.count("\r") == 4 and "\n" not in text and text.endswith("\r")
    assert not text.rsplit("\r", 2)[1].strip()  # blanks


def test_elsewhere_lines_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(monkeypatch, False, [NOW, NOW, NOW, msgspec.structs.replace(NOW, iteration=NOW.iteration + 1)])
    assert len(text.splitlines()) == 2 and "\r" not in text


def test_progress_lines_of_a_log_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(clock, "now", lambda: now[0])
    stream = io.StringIO()
    display = PlainDisplay(stream)
    for _ in range(5):  # a barrier that takes five seconds
        now[0] += 1.0
        display.show(NOW)
    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize(
    ("terminal", "asked", "shown"), [(True, None, True), (False, None, False), (True, False, False)]
)
def test_terminals_see_progress_and_files_do_not(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, asked: bool | None, shown: bool
) -> None:
    stream = Stream(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress_line, "APPEARANCE_SECONDS", -1.0)
    flegel.run(KMeans(k=2), ROWS, workers=1, progress=asked)
    assert ("objective" in stream.getvalue()) is shown


def test_a_program_that_watches_itself_sees_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, seen = Stream(True), []
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress_line, "APPEARANCE_SECONDS", -1.0)
    flegel.run(KMeans(k=2), ROWS, workers=1, watch=seen.append)
    assert seen and stream.getvalue() == ""


def test_notebooks_see_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    shell: Any = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert progress_stream() is sys.stdout
