"""`flegel doctor` says what is wrong with a host and how to mend it; `flegel demo` shows who waited."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flegel.checks import host
from flegel.checks.host import examine_host
from flegel.cli.demo import lane
from flegel.cli.main import app


def _write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_what_could_be_better_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, "sys/fs/cgroup/cpu.max", "50000 100000")
    _write(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    _write(tmp_path, "proc/meminfo", "MemTotal: 4000000 kB\nMemAvailable: 300000 kB\n")
    _write(tmp_path, "proc/cpuinfo", "model name : Old\nflags : fpu sse2\n")
    _write(tmp_path, "proc/sys/net/ipv4/ip_local_port_range", "32768\t33000\n")
    monkeypatch.setattr(host, "SHARED_MEMORY", tmp_path / "absent")
    found = {finding.subject: finding for finding in examine_host(tmp_path)}
    assert "0.5 processors" in found["cores"].text and "--workers 1" in found["cores"].mend
    assert found["huge pages"].state == found["memory"].state == found["processor"].state == "note"
    assert "233 for connections" in found["ports"].text
    assert found["shared memory"].state == "broken" and "--shm-size" in found["shared memory"].mend
    assert all(finding.mend for finding in found.values() if finding.state != "ok")


def test_a_port_that_is_taken_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(host, "MASTER_PORT", taken.getsockname()[1])
        (found,) = (each for each in examine_host() if each.subject == "ports")
    assert found.state == "note" and "--listen" in found.mend


def test_a_broken_host_fails_and_a_good_one_does_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    good = CliRunner().invoke(app, ["doctor", "--json"])
    states = {finding["state"] for finding in json.loads(good.output)}
    assert good.exit_code == 0 and states <= {"ok", "note"}
    monkeypatch.setattr(host, "SHARED_MEMORY", tmp_path / "absent")
    bad = CliRunner().invoke(app, ["doctor"])
    assert bad.exit_code == 1 and "shared memory" in bad.output and "Traceback" not in bad.output


@pytest.mark.processes
def test_the_demo_shows_a_lane_for_each_of_four_workers_on_any_number_of_cores() -> None:
    shown = CliRunner().invoke(app, ["demo", "--data", "higgs:20000", "--seconds", "0.5"])
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("% busy") == 8 and "times as many visits a second" in shown.output


def test_a_lane_of_the_demo_says_when_a_worker_waited() -> None:
    # worker, order sent, report here, visits, seconds computing, responding, waiting before
    spans = [(1, 4.0, 6.0, 1000, 2.0, 0.0, 3.0), (1, 0.0, 1.0, 1000, 0.9, 0.1, 0.0)]
    assert lane(spans, 8.0, 1.0) == "█···██··"
    assert lane([], 3.0, 1.0) == "···"
