"""An API server of Kubernetes for tests: pods and secrets of one namespace over HTTP, with a kubelet for each pod.

It does what placing slaves relies on: a pod runs when its Secret exists, a deleted or evicted one gets SIGTERM and
SIGKILL after its grace period, what it owns is removed with it. With `run=False` pods run without processes.
"""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

PREFIX = "/api/v1/namespaces/test/"
TOKEN = "token-of-the-test"


class MockCluster:
    """Objects by kind and name, and the processes of pods."""

    def __init__(self, folder: Path, run: bool) -> None:
        self.folder, self.run, self.lock = folder, run, threading.RLock()
        self.objects: dict[str, dict[str, dict[str, Any]]] = {"pods": {}, "secrets": {}}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.requests: list[str] = []
        self.down = False
        self.count = 0

    def create(self, kind: str, content: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = content["metadata"]["name"]
        with self.lock:
            if name in self.objects[kind]:
                return 409, {"message": f"{kind} {name!r} already exists"}
            self.count += 1
            content["metadata"]["uid"] = f"uid-{self.count}"
            content["status"] = {"phase": "Pending"}
            self.objects[kind][name] = content
            self._start(name)
            return 201, content

    def _start(self, name: str) -> None:
        """When the pod and the Secret that it mounts exist."""
        pod, secret = self.objects["pods"].get(name), self.objects["secrets"].get(name)
        if pod is None or secret is None:
            return
        pod["status"] = {"phase": "Running"}
        if not self.run:
            return
        file = self.folder / name
        file.write_bytes(base64.b64decode(secret["data"]["ticket"]))
        module = pod["spec"]["containers"][0]["command"][2]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", module, str(file)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        threading.Thread(target=self._watch, args=(name,), daemon=True).start()

    def _watch(self, name: str) -> None:
        code = self.processes[name].wait()
        with self.lock:
            pod = self.objects["pods"].get(name)
            if pod is not None and "deletionTimestamp" in pod["metadata"]:
                self._remove(name)
            elif pod is not None and pod["status"]["phase"] == "Running":
                state = {"state": {"terminated": {"exitCode": code}}}
                pod["status"] = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [state]}

    def delete(self, kind: str, name: str, grace: int | None) -> tuple[int, dict[str, Any]]:
        with self.lock:
            if name not in self.objects[kind]:
                return 404, {"message": f"{kind} {name!r} not found"}
            if kind == "secrets":
                return 200, self.objects[kind].pop(name)
            pod = self.objects["pods"][name]
            pod["metadata"]["deletionTimestamp"] = "now"
            process = self.processes.get(name)
            if process is None or process.poll() is not None or grace == 0:
                self._remove(name)
            else:
                process.send_signal(signal.SIGTERM)
                seconds = pod["spec"]["terminationGracePeriodSeconds"] if grace is None else grace
                timer = threading.Timer(seconds, process.kill)
                timer.daemon = True
                timer.start()
            return 200, pod

    def _remove(self, name: str) -> None:
        pod = self.objects["pods"].pop(name)
        if name in self.processes:
            self.processes[name].kill()
        owned = [s for s, each in self.objects["secrets"].items()
                 if each["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]]  # fmt: skip
        for each in owned:
            del self.objects["secrets"][each]

    def fail(self, name: str, reason: str) -> None:
        """Its node is lost: no signal, no time."""
        with self.lock:
            self.objects["pods"][name]["status"] = {"phase": "Failed", "reason": reason}
            if name in self.processes:
                self.processes[name].kill()


@contextmanager
def mock_api(folder: Path, run: bool) -> Iterator[tuple[str, MockCluster]]:
    """Its address, and what it holds; all processes are gone afterwards."""
    cluster = MockCluster(folder, run)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            self._answer("POST")

        def do_DELETE(self) -> None:
            self._answer("DELETE")

        def _answer(self, method: str) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            cluster.requests.append(f"{method} {self.path}")
            code, content = self._result(method, body)
            data = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _result(self, method: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            if cluster.down:
                return 503, {"message": "the server is currently unable to handle the request"}
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return 401, {"message": "Unauthorized"}
            parts = urlsplit(self.path)
            kind, *rest = parts.path.removeprefix(PREFIX).split("/")
            if method == "POST" and rest[1:] == ["eviction"]:
                return cluster.delete("pods", rest[0], None)
            if method == "POST":
                return cluster.create(kind, body)
            if method == "DELETE":
                return cluster.delete(kind, rest[0], body.get("gracePeriodSeconds"))
            with cluster.lock:
                if rest:
                    found = cluster.objects[kind].get(rest[0])
                    return (200, found) if found else (404, {"message": "not found"})
                name, _, value = parse_qs(parts.query)["labelSelector"][0].partition("=")
                every = cluster.objects[kind].values()
                return 200, {"items": [each for each in every if each["metadata"]["labels"].get(name) == value]}

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", cluster
    finally:
        server.shutdown()
        server.server_close()
        for process in cluster.processes.values():
            process.kill()
            process.wait()
