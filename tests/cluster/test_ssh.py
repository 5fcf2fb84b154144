"""`flegel cluster up` and `down` through a real ssh server on this host."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from daemon_cluster import DaemonCluster, free_port

from flegel.cluster.launch.ssh import read_hosts
from flegel.errors import UsageError
from tests import needs


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("node1 slot=4", "line 1: 'slot=4' is not an option; did you mean 'slots'?"),
        ("node1 slots=0", "slots=0 must be 1 to 256"),
        ("-oProxyCommand=x", "is not a host"),
        ("a/../b", "no name for a slave"),
        ("# nobody", "names no host"),
        ("node1\nnode1", "more than one slave called node1"),
    ],
)
def test_a_wrong_file_of_hosts_is_named_with_its_line(tmp_path: Path, line: str, sentence: str) -> None:
    (tmp_path / "hosts.txt").write_text(line)
    with pytest.raises(UsageError) as caught:
        read_hosts(tmp_path / "hosts.txt")
    assert sentence in str(caught.value)


def test_hosts_have_names_and_options(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("# all of them\nann@node1 slots=4\n\nnode2 name=big home=/srv/flegel # new\n")
    first, second = read_hosts(tmp_path / "hosts.txt")
    assert (first.target, first.name, first.slots) == ("ann@node1", "node1", 4)
    assert (second.name, second.folder) == ("big", "/srv/flegel/daemons/big")


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[str]:
    """The ssh command to a server of our own."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    port = free_port()
    (tmp_path / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {tmp_path}/host\nPidFile {tmp_path}/sshd.pid\nUsePAM no\n"
        f"AuthorizedKeysFile {tmp_path}/user.pub\nStrictModes no\nPasswordAuthentication no\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen(
        [needs.path_of("sshd"), "-D", "-e", "-f", str(tmp_path / "sshd_config")],
        stderr=(tmp_path / "sshd.log").open("wb"),
    )
    limit = time.monotonic() + 120
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        if server.poll() is not None:
            raise AssertionError(f"sshd does not start here: {(tmp_path / 'sshd.log').read_text()[-300:]}")
        assert time.monotonic() < limit, "sshd does not listen"
        time.sleep(0.05)
    yield (
        f"ssh -F /dev/null -p {port} -i {tmp_path}/user -o BatchMode=yes -o StrictHostKeyChecking=no "
        f"-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    )
    server.send_signal(signal.SIGTERM)
    server.wait(120)


@pytest.mark.processes
@needs.programs("sshd", "ssh", "ssh-keygen")
def test_slaves_come_up_and_go_down_over_ssh(tmp_path: Path, ssh: str) -> None:
    program = tmp_path / "flegel"
    paths = os.pathsep.join(p for p in sys.path if p)
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{paths}" exec {sys.executable} -m flegel.cli.main "$@"\n')
    program.chmod(0o755)
    hosts = tmp_path / "hosts.txt"
    hosts.write_text(
        f"127.0.0.1 name=far slots=1 flegel={program} home={tmp_path}/far\n"
        f"127.0.0.1 name=wrong flegel={tmp_path}/nothing home={tmp_path}/wrong\n"
    )
    (tmp_path / "cluster").mkdir()
    with DaemonCluster(tmp_path / "cluster", slaves=0) as cluster, cluster.client() as client:

        def flegel(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "flegel.cli.main", *words],
                env={**cluster.environment, "FLEGEL_SSH": ssh}, capture_output=True, text=True, timeout=300,
            )  # fmt: skip

        done = flegel("cluster", "up", str(hosts))
        assert done.returncode == 1, done
        assert "far                  is here" in done.stdout, done.stdout + done.stderr
        assert "1 of 2 slaves did not come up" in done.stderr
        assert [s.name for s in client.slaves()] == ["far"]
        number = int((tmp_path / "far" / "daemons" / "far" / "pid").read_text())
        gone = flegel("cluster", "down", str(hosts))
        assert gone.returncode == 0, gone
        assert not psutil.pid_exists(number)
        cluster.until(lambda: not client.slaves(), "the slave has left")
