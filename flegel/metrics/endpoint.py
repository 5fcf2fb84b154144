"""An HTTP endpoint that Prometheus scrapes, on prometheus_client (`flegel[metrics]`). Knows no job and no cluster.

Scrapes are answered by threads of their own from the last families that were published; they never wait for a job.
Nothing but `/metrics` is answered, and that only under a name of this host: a page elsewhere could have made its own
name point here.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Iterable, Sequence
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from flegel.errors import UsageError, in_words, require
from flegel.metrics.families import Family, JobFigures, build_info
from flegel.options import parse_address
from flegel.runtime.job.observers import JobEvent, JobSeen, Observer


class MetricsEndpoint:
    """Serves /metrics until it is closed."""

    def __init__(self, address: str) -> None:
        """`address`: PORT on this host alone, or HOST:PORT; port 0 is any that is free."""
        require("prometheus_client", "metrics")
        from prometheus_client import CollectorRegistry, make_wsgi_app

        self._families: Sequence[Family] = [build_info()]
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)  # type: ignore[arg-type,unused-ignore]
        host, port = parse_address(address)
        try:
            self._server = _listening(host, port)
        except (OSError, UnicodeError) as error:
            raise UsageError(f"--metrics {address}: {in_words(error)}; choose another port.") from None
        port = self._server.server_port
        names = names_of_host(host)
        scrape = make_wsgi_app(registry)

        def answer(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
            """Answer one request: only GET of /metrics, under a name of this host."""
            if not is_known_host(str(environ.get("HTTP_HOST", "")), port, names):
                return _refuse(start, "400 Bad Request", b"This endpoint is not known under that name.\n")
            if environ.get("PATH_INFO") != "/metrics":
                return _refuse(start, "404 Not Found", b"There is nothing but /metrics here.\n")
            if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
                return _refuse(start, "405 Method Not Allowed", b"Figures are read with GET.\n")
            found: Iterable[bytes] = scrape(environ, start)
            return found

        self._server.set_app(answer)
        self._thread = threading.Thread(target=self._server.serve_forever, name="flegel-metrics", daemon=True)
        self._thread.start()
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def publish(self, families: Sequence[Family]) -> None:
        self._families = families

    def describe(self) -> list[Any]:
        """Nothing in advance: what there is depends on the job."""
        return []

    def collect(self) -> Iterable[Any]:
        """The metric families as records of the Prometheus library, which calls this."""
        from prometheus_client.core import Metric

        for family in self._families:
            metric = Metric(family.name, family.help, family.kind)
            for suffix, labels, value in family.samples:
                metric.add_sample(family.name + suffix, dict(labels), value)
            yield metric

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each scrape."""

    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    """Scrapes are not logged; one that sends nothing for so long is closed."""

    timeout = 10.0

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def _listening(host: str, port: int) -> _Server:
    return (_Server6 if ":" in host else _Server)((host, port), _Quiet)


def _refuse(start: Any, status: str, text: bytes) -> list[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))])
    return [text]


def names_of_host(host: str) -> frozenset[str] | None:
    """Names under which an endpoint at this address is asked; None: it listens everywhere."""
    if host in ("0.0.0.0", "::"):
        return None
    loopback = host in ("127.0.0.1", "::1", "localhost")
    return frozenset({host.lower()} | ({"127.0.0.1", "::1", "localhost"} if loopback else set()))


def is_known_host(header: str, port: int, names: frozenset[str] | None) -> bool:
    """Whether a Host header names this endpoint. Where it listens everywhere, that is any address (no page can make
    its name one), localhost and this host's own name."""
    name, colon, given = header.rpartition(":") if not header.endswith("]") else (header, "", "")
    name = (name if colon else header).lower().strip("[]")
    if (given if colon else "80") != str(port):
        return False
    if names is not None:
        return name in names
    return is_address(name) or name in ("localhost", socket.gethostname().lower())


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class JobMetrics(Observer):
    """The observer of one job behind `--metrics`."""

    every = 0.5
    shown = 0
    threaded = True

    def __init__(self, endpoint: MetricsEndpoint) -> None:
        self._endpoint, self._figures = endpoint, JobFigures()

    def see(self, event: JobEvent) -> None:
        if isinstance(event, JobSeen):
            self._figures.take(event.snapshot, event.rows)
            self._endpoint.publish(self._figures.families())
