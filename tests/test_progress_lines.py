"""What the command line says before and after training, and the list of jobs."""

from __future__ import annotations

import io
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from flegel.cli import local_job as job
from flegel.cli.cluster_jobs import jobs_table
from flegel.runtime.job.observers import RemarkMade
from flegel.terminal.display import start_advice
from flegel.terminal.reporting import PhaseLine


class Stream(io.StringIO):
    """Text that somebody waits for."""

    def __init__(self, terminal: bool = False) -> None:
        super().__init__()
        self.written, self._terminal = threading.Event(), terminal

    def isatty(self) -> bool:
        return self._terminal

    def flush(self) -> None:
        self.written.set()


def test_a_phase_that_lasts_is_told_once() -> None:
    stream = Stream()
    with PhaseLine(stream, "points.csv", after=0.0) as line:
        line.begin("reading")
        assert stream.written.wait(600)
        stream.written.clear()
        line.begin("compiling")
        assert stream.written.wait(600)
    assert stream.getvalue().splitlines()[0] == "reading points.csv …"
    assert "5 to 30 s of an idle processor" in stream.getvalue() and len(stream.getvalue().splitlines()) == 2


def test_a_phase_that_is_over_at_once_is_not_told() -> None:
    stream = Stream()
    with PhaseLine(stream, "points.csv", after=3600.0) as line:
        line.begin("reading")
        line.begin("compiling")
        line.begin("training")
    assert stream.getvalue() == ""


def test_a_timer_that_is_cancelled_too_late_to_notice_tells_nothing() -> None:
    stream = Stream()
    line = PhaseLine(stream, "points.csv", after=3600.0)
    line.begin("reading")
    late = line._timer
    assert late is not None
    line.stop()
    late.function(*late.args)
    assert stream.getvalue() == ""


def test_on_a_terminal_the_line_goes_before_others_are_written() -> None:
    stream = Stream(terminal=True)
    with PhaseLine(stream, after=0.0) as line:
        line.begin("loading")
        assert stream.written.wait(600)
        line.see(RemarkMade("a remark"))
        print("a remark", file=stream)
    assert stream.getvalue().endswith("\r\x1b[Ka remark\n")


def test_a_start_that_dwarfs_training_says_what_to_do() -> None:
    assert "--processes no" in start_advice(0.02, 2.4, "processes")
    assert "done once" in start_advice(0.02, 2.4, "threads")
    assert start_advice(2.0, 2.4, "processes") == "" == start_advice(0.001, 0.3, "threads")


@pytest.mark.parametrize("advises", [True, False])
def test_only_submit_on_this_host_names_its_option_of_processes(
    advises: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`resume` and jobs of a cluster have no --processes."""
    result = SimpleNamespace(
        outcome="limit", converged=False, reason="as asked", objective=1.0, metrics={}, iterations=3, seconds=0.02,
        load_seconds=2.4, utilization=0.5, worker=(), placement="processes", model="", description=[],
    )  # fmt: skip
    monkeypatch.setattr(job, "_finish_job", lambda *_: result)
    served: Any = SimpleNamespace(observers=lambda stack: [])
    job.show_and_save(lambda **_: None, job.Outputs(None, None, None), served, PhaseLine(Stream()), advises=advises)
    said = capsys.readouterr().err
    assert "stopped: as asked" in said and ("--processes no" in said) is advises


def test_each_job_is_one_line_of_a_terminal_of_80_columns() -> None:
    view = SimpleNamespace(
        job="kmeans-higgs-with-a-long-name-17", owner="somebody@laboratory", state="running", priority=0, workers=64,
        data="/data/projects/particles/2024/higgs-with-a-long-name.parquet",
        reason="waits for 64 slots, of which 12 are free;\nother jobs hold the rest of them for some time",
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=80)
    console.print(jobs_table([view, view]))  # type: ignore[list-item]
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 3 and all(len(line) <= 80 for line in lines)
    assert "running" in lines[1] and "kmeans-higgs" in lines[1]
