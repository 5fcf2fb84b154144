"""Workers of networks find torch imported: the fork server imports it once."""

from __future__ import annotations

import psutil
import pytest

from tests import needs

needs.library("torch")

from flegel.runtime.backends.registry import library_of
from flegel.runtime.processes import fork_server
from flegel.runtime.processes.fork_server import ForkServer

pytestmark = pytest.mark.skipif(not fork_server.AVAILABLE, reason="forks need pidfds")
NOBODY = b'{"address": "ipc://@flegel-nobody", "token": "t", "worker": 0, "incarnation": 0}\n'


def _has_torch(pid: int) -> bool:
    return any("libtorch" in region.path for region in psutil.Process(pid).memory_maps())


def test_the_server_imports_it_before_its_next_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "_wanted", set())
    server = ForkServer()
    try:
        assert not _has_torch(server.spawn(NOBODY).pid)
        fork_server.preload(library_of("cpu", "network"))
        assert _has_torch(server.spawn(NOBODY).pid)
        assert psutil.Process(server.pid).num_threads() == 1, "forks keep one thread only"
    finally:
        server.close()


def test_jobs_on_processors_need_nothing() -> None:
    assert [library_of(device) for device in ("cpu", "cuda:1", "torch:cpu")] == ["", "torch", "torch"]
