"""Families of metrics: every name that is promised, base units, bounded labels, buckets that add up."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import msgspec
import pytest

from flegel.errors import UsageError
from flegel.machine.coordinator.events import TraceRow
from flegel.machine.coordinator.observation import IncidentSnapshot, JobSnapshot
from flegel.metrics.endpoint import is_known_host, names_of_host
from flegel.metrics.families import MAX_LABELLED_JOBS, Family, JobFigures, cluster_families
from flegel.options import parse_address

SEEN = JobSnapshot(
    "KMeans", "fsp", "training", 2, 2, visits=90, seconds=3.0, iteration=2, estimate=7.5, interval=0.2, points=100,
    in_flight=4, moved_bytes=512, incidents=(IncidentSnapshot("lost", 1, "died", 1.0, 0.1, 3),), members=2,
    compute=5.0, wait=1.0, respond=0.5,
)  # fmt: skip
ROWS = [TraceRow(0.1 * i, i, 7.5, 0.2, 7.5, 45, cost, "") for i, cost in ((1, 0.002), (2, 50.0))]


def flat(families: list[Family]) -> dict[tuple[str, str], float]:
    return {(f.name + s.suffix, ",".join(s.labels.values())): s.value for f in families for s in f.samples}


def test_a_job_has_every_promised_figure() -> None:
    figures = JobFigures()
    figures.take(SEEN, ROWS)
    found = flat(figures.families())
    assert found["flegel_barriers_total", ""] == 2
    assert found["flegel_visits_total", ""] == 90
    assert found["flegel_moved_bytes_total", ""] == 512
    assert found["flegel_interval_seconds", ""] == 0.2
    assert found["flegel_objective", ""] == 7.5
    assert found["flegel_workers_lost_total", ""] == 1
    states = {k[1]: v for k, v in found.items() if k[0] == "flegel_worker_seconds_total"}
    assert states == {"compute": 5.0, "wait": 1.0, "respond": 0.5}
    assert any(name == "flegel_build_info" for name, _ in found)


def test_buckets_are_cumulative_and_end_with_the_count() -> None:
    figures = JobFigures()
    figures.take(SEEN, ROWS)
    found = flat(figures.families())
    buckets = [v for (name, _), v in found.items() if name == "flegel_barrier_seconds_bucket"]
    assert buckets == sorted(buckets) and buckets[-1] == found["flegel_barrier_seconds_count", ""] == 2
    assert found["flegel_barrier_seconds_bucket", "0.003"] == 1
    assert found["flegel_barrier_seconds_sum", ""] == pytest.approx(50.002)


def test_a_master_counts_jobs_by_state_and_names_only_some_running_ones() -> None:
    snapshot = msgspec.to_builtins(SEEN)
    jobs = [SimpleNamespace(job=f"j{i}", state="running", snapshot=snapshot) for i in range(MAX_LABELLED_JOBS + 20)]
    jobs += [SimpleNamespace(job="q", state="queued", snapshot={})]
    slaves = [SimpleNamespace(state="here", slots=4, used=3), SimpleNamespace(state="awaited", slots=2, used=0)]
    families = cluster_families(jobs, slaves)
    found = flat(families)
    assert found["flegel_jobs", "running"] == MAX_LABELLED_JOBS + 20 and found["flegel_jobs", "queued"] == 1
    assert found["flegel_slots", "used"] == 3 and found["flegel_slots", "free"] == 1
    assert sum(len(f.samples) for f in families if f.name == "flegel_objective") == MAX_LABELLED_JOBS


@pytest.mark.parametrize("text", ["", "x", "70000", "host:"])
def test_wrong_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_address(text)
    assert parse_address("9100") == ("127.0.0.1", 9100) and parse_address("[::1]:0") == ("::1", 0)


def test_importing_flegel_imports_no_optional_library() -> None:
    optional = ("starlette", "uvicorn", "prometheus_client", "tensorboard", "mlflow", "wandb", "flegel.dashboard")
    code = (
        "import sys, flegel, flegel.api.jobs, flegel.cli.main, flegel.cli.submit; "
        f"print([m for m in {optional!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("listening", "header", "known"),
    [
        ("127.0.0.1", "127.0.0.1:9470", True),
        ("127.0.0.1", "localhost:9470", True),
        ("127.0.0.1", "[::1]:9470", True),
        ("127.0.0.1", "evil.example:9470", False),
        ("127.0.0.1", "127.0.0.1:80", False),
        ("127.0.0.1", "127.0.0.1", False),
        ("127.0.0.1", "", False),
        ("node7.example", "NODE7.example:9470", True),
        ("node7.example", "localhost:9470", False),
        ("0.0.0.0", "10.0.0.7:9470", True),
        ("0.0.0.0", "[fe80::1]:9470", True),
        ("0.0.0.0", "localhost:9470", True),
        ("0.0.0.0", "evil.example:9470", False),
    ],
)
def test_an_endpoint_answers_under_its_own_names(listening: str, header: str, known: bool) -> None:
    assert is_known_host(header, 9470, names_of_host(listening)) is known
