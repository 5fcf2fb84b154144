"""Another user of the same host: what can be read, reached, stopped. Needs root, to become that user."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from flegel.cluster.master.daemon import MasterDaemon
from flegel.cluster.slave.attempts import Attempts
from flegel.cluster.transport import keys
from flegel.runtime.checkpoint.store import FolderStore
from flegel.runtime.processes.fork_server import ForkServer
from flegel.runtime.system.private_files import keep_private
from flegel.runtime.transport import job_sockets, shared_memory
from tests.cluster.test_hostile import RecordingServer

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")


def as_nobody(call: Callable[[], Any]) -> int:
    """Run it as another user in a process of its own: 0 where it returned something true, 1 where it was refused."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            code = 0 if call() else 1
        except OSError:
            code = 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody can enter, as /var/lib may be."""
    before = os.umask(0o022)
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
    os.umask(before)


def readable(path: Path) -> bool:
    return as_nobody(lambda: path.read_bytes() is not None) == 0


def test_the_other_user_can_read_what_is_for_everybody(place: Path) -> None:
    (place / "open").write_text("x")
    assert readable(place / "open"), "otherwise the other tests prove nothing"


def test_files_of_daemons_are_for_their_own_user(place: Path) -> None:
    older = place / "master"
    older.mkdir(mode=0o755)
    keep_private(older)
    master = MasterDaemon(RecordingServer(), older)  # type: ignore[arg-type]
    (older / "jobs" / "j" / "result.1").mkdir(parents=True)
    master._append(older / "jobs" / "j" / "result.1" / "model.npz", 0, b"model")
    master._journal.close()
    slave = place / "slave"
    keep_private(slave)
    log = Attempts(slave / "jobs").open("j", 1).log
    log.write("worker 0", b"secret")
    FolderStore(slave / "jobs" / "j" / "checkpoints").put("job", [b"state"])
    made = [path for folder in (older, slave) for path in folder.rglob("*")]
    assert len([p for p in made if p.is_file()]) >= 4
    for path in made:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        path.parent.chmod(0o755)  # not even where the folder above was opened
    assert not any(readable(path) for path in made if path.is_file())


def test_secret_keys_are_for_their_own_user(place: Path) -> None:
    keys.first_start(place / "keys")
    (place / "keys").chmod(0o755)
    assert not any(readable(path) for path in (place / "keys").glob("*.key"))


def test_local_sockets_do_not_talk_to_another_user() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as listener:
        name = "\0" + job_sockets.bind_here(listener).removeprefix("ipc://@")

        def greeted() -> bool:
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(30.0)
                line.connect(name)
                return bool(line.recv(10))

        assert greeted(), "its own user gets an answer"
        assert as_nobody(greeted) == 1


def test_shared_memory_and_the_processes_of_a_job_are_out_of_reach() -> None:
    shared = shared_memory.empty((10,), np.dtype("f8"))
    shared[:] = 7.0
    server = ForkServer()
    try:
        for pid in (os.getpid(), server.pid):
            assert as_nobody(lambda pid=pid: os.listdir(f"/proc/{pid}/fd")) == 1  # type: ignore[misc]  # noqa: PTH208
            assert as_nobody(lambda pid=pid: os.open(f"/proc/{pid}/mem", os.O_RDONLY)) == 1  # type: ignore[misc]
            assert as_nobody(lambda pid=pid: Path(f"/proc/{pid}/environ").read_bytes()) == 1  # type: ignore[misc]
            assert as_nobody(lambda pid=pid: os.kill(pid, 0) or True) == 1  # type: ignore[misc]
        assert not [name for name in os.listdir("/dev/shm") if "flegel" in name and "flegel-jobs" not in name]  # noqa: PTH208
    finally:
        server.close()
