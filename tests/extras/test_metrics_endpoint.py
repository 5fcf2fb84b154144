"""The metrics endpoint against real parsers: the library's own, promtool and a real Prometheus server where present."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from tests import needs
from tests.ports import free_port

prometheus_client = needs.library("prometheus_client")

from flegel.errors import UsageError
from flegel.metrics.endpoint import JobMetrics, MetricsEndpoint
from flegel.metrics.families import cluster_families
from flegel.runtime import clock
from flegel.runtime.job.observers import JobSeen
from tests.observability.test_metrics import ROWS, SEEN


@pytest.fixture
def endpoint() -> Iterator[MetricsEndpoint]:
    endpoint = MetricsEndpoint("0")
    JobMetrics(endpoint).see(JobSeen(SEEN, ROWS))
    yield endpoint
    endpoint.close()


def scrape(url: str) -> str:
    return str(urllib.request.urlopen(url, timeout=60).read().decode())


def test_the_text_parses_and_has_the_values(endpoint: MetricsEndpoint) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    families = {f.name: f for f in text_string_to_metric_families(scrape(endpoint.url))}
    assert families["flegel_barrier_seconds"].type == "histogram"
    values = {s.name: s.value for f in families.values() for s in f.samples}
    assert values["flegel_objective"] == 7.5 and values["flegel_visits_total"] == 90


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [("/metrics", "evil.example", 400), ("/", None, 404), ("/metrics/x", None, 404), ("/favicon.ico", None, 404)],
)
def test_nothing_else_is_answered(endpoint: MetricsEndpoint, path: str, host: str | None, status: int) -> None:
    place = endpoint.url.removesuffix("/metrics")
    headers = {"Host": f"{host}:{place.rpartition(':')[2]}"} if host else {}
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(place + path, headers=headers), timeout=60)
    assert refused.value.code == status
    assert "flegel_objective" not in refused.value.read().decode()


def test_a_taken_port_is_refused_with_a_sentence(endpoint: MetricsEndpoint) -> None:
    port = endpoint.url.rpartition(":")[2].partition("/")[0]
    with pytest.raises(UsageError, match="choose another port"):
        MetricsEndpoint(port)


@needs.programs("promtool")
def test_promtool_finds_nothing_to_complain_about(endpoint: MetricsEndpoint) -> None:
    job = SimpleNamespace(job="kmeans-1", state="running", snapshot=msgspec.to_builtins(SEEN))
    for _ in range(2):
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=scrape(endpoint.url), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0 and not done.stderr.strip(), done.stderr
        endpoint.publish(cluster_families([job], [SimpleNamespace(state="here", slots=4, used=3)]))


@needs.programs("promtool")
def test_promtool_accepts_the_alert_examples() -> None:
    rules = Path(__file__).resolve().parents[2] / "docs" / "examples" / "alerts.yml"
    done = subprocess.run(["promtool", "check", "rules", str(rules)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@needs.programs("prometheus")
def test_a_real_prometheus_scrapes_it(endpoint: MetricsEndpoint, tmp_path: Path) -> None:
    target = endpoint.url.partition("//")[2].partition("/")[0]
    (tmp_path / "p.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: flegel, static_configs: [{{targets: ['{target}']}}]}}]\n",
        encoding="utf-8",
    )
    until, found = clock.now() + 180, []
    while clock.now() < until and not found:
        address = f"127.0.0.1:{free_port()}"
        command = [
            "prometheus", f"--config.file={tmp_path / 'p.yml'}", f"--storage.tsdb.path={tmp_path / 'db'}",
            f"--web.listen-address={address}",
        ]  # fmt: skip
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            while server.poll() is None and clock.now() < until and not found:  # it ends where the port was taken
                clock.sleep(0.5)
                found = scraped(address)
        finally:
            server.kill()
            server.wait(600)
    assert found == ["7.5"]


def scraped(address: str) -> list[str]:
    """Values of the objective that a Prometheus has; none where it has not scraped well yet. A scrape that takes longer
    than the interval counts as failed, and the next one need not."""
    try:
        answer = json.loads(scrape(f"http://{address}/api/v1/query?query=flegel_objective"))
        targets = json.loads(scrape(f"http://{address}/api/v1/targets"))["data"]["activeTargets"]
    except OSError:
        return []
    well = [target for target in targets if target["health"] == "up" and not target["lastError"]]
    return [each["value"][1] for each in answer["data"]["result"]] if well else []
