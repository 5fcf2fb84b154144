"""`flegel top`: a cluster within 80 columns, whatever its names are."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from flegel.cli.cluster_jobs import jobs_table
from flegel.cli.top import MAX_JOB_LINES, figures, screen
from flegel.cluster.transport.protocol import JobView, SlaveView
from tests.observability.test_metrics import SEEN


def job(number: int, state: str, **more: object) -> JobView:
    return JobView(f"kmeans-{number}", "ann", state, "kmeans", "higgs", 0, 4, 0.0, **more)  # type: ignore[arg-type]


def drawn(jobs: list[JobView], slaves: list[SlaveView]) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=80).print(screen(jobs, slaves))
    return stream.getvalue().splitlines()


def test_a_running_job_comes_first_with_its_figures() -> None:
    running = job(7, "running", snapshot=msgspec.to_builtins(SEEN))
    lines = drawn([job(i, "done") for i in range(6)] + [running, job(8, "queued")], [])
    assert lines[0] == "0 slaves, 0 of 0 slots used; jobs: 1 running, 1 queued, 6 done, 0 failed"
    table = [line.split() for line in lines if line.startswith("kmeans-")]
    assert table[0][:4] == ["kmeans-7", "running", "4", "2"] and "77%" in table[0] and table[1][0] == "kmeans-8"


def test_it_fits_80_columns_and_shows_no_control_characters() -> None:
    slaves = [SlaveView("s" * 200 + "\x1b[31m[red]", "h", 8, 3, 1.5, 1, "here")]
    lines = drawn([job(i, "running", snapshot=msgspec.to_builtins(SEEN)) for i in range(50)], slaves)
    assert max(map(len, lines)) <= 80 and not any("\x1b" in line for line in lines)
    assert sum(line.startswith("kmeans-") for line in lines) == MAX_JOB_LINES


def test_a_job_without_a_snapshot_has_no_figures() -> None:
    assert figures(job(1, "queued")) == ("",) * 6


def test_the_list_of_jobs_fits_80_columns_with_whole_names() -> None:
    stream = io.StringIO()
    views = [
        job(1, "running"),
        job(2, "failed", reason="ValueError: " + "something went wrong " * 20),
        msgspec.structs.replace(
            job(3, "queued"), job="a-long-name-of-a-job-that-someone-chose", data="/data/" + "x/" * 60
        ),
    ]
    Console(file=stream, width=80).print(jobs_table(views))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4 and max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1:]] == [view.job for view in views]
