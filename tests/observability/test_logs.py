"""Log records: text for people, JSON lines for machines, job and worker in each."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flegel.runtime import logs


@pytest.fixture(autouse=True)
def unchanged_loggers() -> Iterator[None]:
    ours = logging.getLogger("flegel")
    before = (ours.level, ours.propagate, list(ours.handlers))
    yield
    ours.setLevel(before[0])
    ours.propagate, ours.handlers[:] = before[1], before[2]
    logs.context.job = logs.context.worker = ""


def written(words: str, monkeypatch: pytest.MonkeyPatch) -> str:
    stream = io.StringIO()
    monkeypatch.setenv(logs.VARIABLE, words)
    logs.configure(job="kmeans-1", worker="3", stream=stream)
    log = logging.getLogger("flegel.runtime.test")
    log.debug("a detail")
    log.warning("dropped %d", 2, extra={"worker": "7"})
    return stream.getvalue()


def test_people_read_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written("", monkeypatch) == "flegel: dropped 2\n"


def test_verbose_text_has_time_level_logger_job_and_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = written("verbose", monkeypatch).splitlines()
    assert first.endswith("Z debug flegel.runtime.test job=kmeans-1 worker=3: a detail")
    assert second.endswith("warning flegel.runtime.test job=kmeans-1 worker=7: dropped 2")


def test_json_lines_parse_and_carry_job_and_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = written("json", monkeypatch).splitlines()
    record = json.loads(line)
    assert record.pop("time").endswith("Z")
    assert record == {
        "level": "warning", "logger": "flegel.runtime.test", "job": "kmeans-1", "worker": "7", "message": "dropped 2",
    }  # fmt: skip


@pytest.mark.processes
def test_a_verbose_job_logs_every_barrier_as_json(tmp_path: Path) -> None:
    points = tmp_path / "p.csv"
    points.write_text("\n".join(f"{i % 7},{i % 5}" for i in range(200)), encoding="utf-8")
    command = [
        sys.executable, "-m", "flegel", "submit", "kmeans", "--data", str(points), "--set", "k=2", "--workers", "1",
        "--sync", "bsp", "--no-save", "--max-iterations", "3", "--tolerance", "0", "--verbose", "--log-json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ}, timeout=600, check=True)
    records = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    barriers = [r["message"] for r in records if r["message"].startswith("barrier ")]
    assert [b.split()[1] for b in barriers] == ["1", "2", "3"]
    assert all({"time", "level", "logger", "job", "worker"} <= r.keys() for r in records)
