"""What a job's process can do to keys, to other jobs and to the host when its slave isolates it: a test per cell."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import flegel
from flegel.cluster.slave.attempts import Attempts, JobAttempt
from flegel.cluster.slave.child_processes import JobLog
from flegel.cluster.slave.data_access import confinement_for
from flegel.cluster.slave.file_shipping import read_piece
from flegel.cluster.slave.settings import SlaveSettings
from flegel.cluster.slave.slave_folder import tidy, write_new
from flegel.cluster.transport.protocol import ClusterJob, runs_submitted_code
from flegel.job import AlgorithmRef
from flegel.runtime.system import confinement
from flegel.runtime.system.confinement import Confinement, confine, why_impossible
from flegel.runtime.transport import shared_memory

IMPOSSIBLE = why_impossible()
STRICT = why_impossible(strict=True)
needs_namespaces = pytest.mark.skipif(bool(IMPOSSIBLE), reason=IMPOSSIBLE or "possible")
needs_strict = pytest.mark.skipif(bool(STRICT), reason=STRICT or "possible")
ALLOWED, REFUSED, BROKEN = 0, 1, 2


class Host:
    """A slave's folders with two jobs, and processes as they run in the first of them."""

    def __init__(self, base: Path) -> None:
        self.base, self.keys, self.master = base, base / "home" / "keys", base / "home" / "master"
        self.settings = SlaveSettings("s0", 2, "127.0.0.1", base / "slave", 1 << 30, 1.0)
        self.own, self.other = (self.settings.folder / "jobs" / name for name in ("own", "other"))
        for folder in (self.keys / "allowed", self.master, self.own, self.other, base / "user" / ".ssh", base / "data"):
            folder.mkdir(parents=True)
        self.secrets = [self.keys / "slave.key", self.master / "journal", self.other / "code.1"]
        self.secrets.append(base / "user" / ".ssh" / "id")
        for path in self.secrets:
            path.write_text("secret")

    def plan(self, isolation: str = "namespace", submitted: bool = True, join: int | None = None) -> Confinement:
        settings = SlaveSettings(
            "s0", 2, "127.0.0.1", self.settings.folder, 1 << 30, 1.0, isolation=isolation, write=(self.base / "data",)
        )  # fmt: skip
        found = confinement_for(settings, self.own, submitted, join)
        assert found is not None
        return found

    @contextlib.contextmanager
    def process(self, plan: Confinement, call: Callable[[], object] | None = None) -> Iterator[tuple[int, int]]:
        """A process that is confined, and then makes the call; its number, and a pipe with its answer."""
        answer, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = BROKEN
            try:
                confine(plan)
                code = ALLOWED if call is None or call() else REFUSED
            except OSError:
                code = REFUSED
            finally:
                os.write(write, bytes([code]))
                if call is None:
                    signal.pause()
                os._exit(code)
        os.close(write)
        try:
            yield pid, answer
        finally:
            os.close(answer)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def tries(self, call: Callable[[], object], isolation: str = "namespace", submitted: bool = True) -> int:
        """`ALLOWED` where the call returned something true in a process of the first job."""
        with self.process(self.plan(isolation, submitted), call) as (_, answer):
            return os.read(answer, 1)[0]


def can_signal(pid: int) -> bool:
    os.kill(pid, 0)
    return True


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv("FLEGEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    return Host(tmp_path)


@needs_namespaces
@pytest.mark.parametrize("isolation", ["namespace", pytest.param("strict", marks=needs_strict)])
def test_keys_journals_other_jobs_and_ssh_cannot_be_read(host: Host, isolation: str) -> None:
    for path in host.secrets:
        assert path.read_text() == "secret", "otherwise this proves nothing"
        assert host.tries(path.read_text, isolation) == REFUSED, path
    assert host.tries(lambda: not list(host.keys.iterdir())) == ALLOWED


@needs_namespaces
def test_no_key_can_be_admitted_and_no_other_job_changed(host: Host) -> None:
    host.tries(lambda: (host.keys / "allowed" / "mine.json").write_text("{}"))
    host.tries(lambda: (host.other / "code.1").write_text("changed"))
    host.tries(lambda: (host.master / "journal").unlink())
    assert not list((host.keys / "allowed").iterdir())
    assert all(path.read_text() == "secret" for path in host.secrets)


@needs_namespaces
def test_its_own_folder_and_its_data_are_there(host: Host) -> None:
    (host.base / "data" / "points.csv").write_text("1,2\n")
    assert host.tries(lambda: (host.own / "model").write_text("x")) == ALLOWED
    assert (host.own / "model").read_text() == "x"
    assert host.tries((host.base / "data" / "points.csv").read_text) == ALLOWED


@needs_namespaces
def test_code_that_others_run_is_changed_for_itself_alone(host: Host) -> None:
    package = Path(flegel.__file__).parents[1] / "flegel_isolation_probe.py"
    assert host.tries(lambda: package.write_text("x") and package.exists()) in (ALLOWED, REFUSED)
    assert not package.exists()
    interpreter = Path(sys.prefix) / "flegel-isolation-probe"
    assert host.tries(lambda: interpreter.write_text("x")) in (ALLOWED, REFUSED)
    assert not interpreter.exists()


@needs_namespaces
def test_built_in_classes_fill_the_cache_of_compiled_code(host: Host) -> None:
    cache = Path(host.plan().private[1])
    assert host.tries(lambda: (cache / "kernel").write_text("x"), submitted=False) == ALLOWED
    assert (cache / "kernel").exists()
    host.tries(lambda: (cache / "other").write_text("x"), submitted=True)
    assert not (cache / "other").exists()
    assert not runs_submitted_code(ClusterJob(AlgorithmRef("flegel.algorithms.kmeans.kmeans:KMeans", {}), "blobs"))
    for name, code in (("mine:Mine", "0" * 64), ("os:abort", ""), ("flegel.algorithms.kmeans.kmeans:KMeans", "0" * 64)):
        assert runs_submitted_code(ClusterJob(AlgorithmRef(name, {}), "blobs", code=code))


@needs_namespaces
def test_memory_of_daemons_and_other_jobs_cannot_be_read(host: Host) -> None:
    plan = msgspec.structs.replace(host.plan(), visible=(str(host.other),))
    with host.process(plan) as (other, answer):
        assert os.read(answer, 1)[0] == ALLOWED
        assert Path(f"/proc/{other}/environ").read_bytes(), "its slave can"
        for pid in (os.getpid(), other):
            for name in ("mem", "environ", f"fd/{answer}", "root/etc/passwd"):
                path = Path(f"/proc/{pid}/{name}")
                assert host.tries(lambda path=path: os.open(path, os.O_RDONLY)) == REFUSED, path  # type: ignore[misc]


@needs_namespaces
def test_processes_of_one_job_see_the_same_folders_and_share_memory(host: Host) -> None:
    shared = shared_memory.empty((4,), "f8")  # type: ignore[arg-type]
    place = shared_memory.place_of(shared)
    assert place is not None
    with host.process(host.plan()) as (first, answer):
        os.read(answer, 1)
        lent = msgspec.structs.replace(place, pid=first)
        with host.process(host.plan(join=first), lambda: shared_memory.open_place(lent, True).shape) as (_, second):
            assert os.read(second, 1)[0] == ALLOWED
        with host.process(host.plan(join=first), host.secrets[0].read_text) as (_, second):
            assert os.read(second, 1)[0] == REFUSED
    with host.process(host.plan(join=first), host.secrets[0].read_text) as (_, second):
        assert os.read(second, 1)[0] == REFUSED, "a process that is gone cannot be joined: a namespace of its own"


UNPRIVILEGED = """
import ctypes, os, sys
from pathlib import Path
from flegel.runtime.system import confinement

secret = sys.argv[1]
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
ctypes.CDLL(None).prctl(confinement.PR_SET_DUMPABLE, 1, 0, 0, 0)
confinement.confine(confinement.Confinement((secret,), strict="strict" in sys.argv))
print("seen" if (Path(secret) / "key").exists() else "hidden")
"""
"""Another user's process: with nothing of this one, whose threads, limits and folders are those of earlier tests."""


@needs_namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=needs_strict)])
def test_it_needs_no_privileges(strict: bool) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        secret = Path(name) / "secret"
        secret.mkdir()
        (secret / "key").write_text("x")
        for path in (Path(name), secret):
            os.chown(path, 65534, 65534)
        command = [sys.executable, "-P", "-c", UNPRIVILEGED, str(secret), *(["strict"] if strict else [])]
        environment = {**os.environ, "TMPDIR": "/tmp"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.stdout.split() == ["hidden"], done.stderr


@needs_namespaces
def test_what_is_hidden_cannot_be_uncovered(host: Host) -> None:
    libc = ctypes.CDLL(None)
    key, keys = host.secrets[0], str(host.keys).encode()
    outside = os.open(f"/proc/{os.getpid()}/ns/mnt", os.O_RDONLY)

    def uncover() -> bool:
        libc.umount2(keys, 2)
        libc.setns(outside, 0)
        if libc.unshare(confinement.CLONE_NEWUSER | confinement.CLONE_NEWNS) == 0:
            libc.umount2(keys, 2)
            libc.mount(b"none", b"/", None, ctypes.c_ulong(confinement.MS_REC | confinement.MS_PRIVATE), None)
            libc.umount2(keys, 2)
        subprocess.run(["umount", keys], check=False, capture_output=True)
        return key.exists()

    assert host.tries(uncover) == REFUSED
    os.close(outside)


@needs_strict
def test_strictly_isolated_jobs_change_nothing_else_and_signal_nobody(host: Host) -> None:
    place, allowed = host.base / "elsewhere", host.base / "data" / "elsewhere"
    assert host.tries(lambda: place.write_text("x")) == ALLOWED, "as the user of the slave may"
    assert host.tries(lambda: allowed.write_text("x"), "strict") == ALLOWED, "--write"
    assert host.tries(lambda: (host.own / "result").write_text("x"), "strict") == ALLOWED
    assert host.tries(lambda: Path("/etc/flegel-probe").write_text("x"), "strict") == REFUSED
    assert not Path("/etc/flegel-probe").exists()
    assert host.tries(lambda: can_signal(os.getppid()), "strict") == REFUSED
    assert host.tries(lambda: can_signal(os.getpid()), "strict") == ALLOWED
    assert host.tries(lambda: can_signal(os.getppid())) == ALLOWED, "without strict, as the same user"


def test_a_slave_follows_no_link_that_a_job_has_made(host: Host) -> None:
    target = host.base / "target"
    target.write_text("untouched")
    (host.own / "code.2").symlink_to(target)
    write_new(host.own / "code.2", "source")
    (host.own / "log.2").symlink_to(target)
    JobLog(host.own / "log.2").write("worker 0", b"text")
    assert target.read_text() == "untouched"
    assert (host.own / "code.2").read_text() == "source"
    (host.own / "result.2").symlink_to(host.keys)
    attempt = JobAttempt("own", 2, host.own, JobLog(host.own / "log.2"))
    assert read_piece(attempt, "slave.key", 0) is None
    (host.own / "checkpoints").symlink_to(host.keys)
    tidy(host.own.parent)
    assert host.secrets[0].read_text() == "secret"
    assert not host.own.exists(), "links do not stay"
    Attempts(host.own.parent).open("own", 3).log.close()


def test_where_it_is_not_possible_a_sentence_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert why_impossible() == "The trial died without a word."
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "Linux" in why_impossible()
