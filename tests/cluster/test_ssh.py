"""`flegel cluster up` and `down` through a real ssh server on this host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from daemon_cluster import DaemonCluster
from ssh_server import SSH_PROGRAMS, program_for_hosts, ssh_server

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


@pytest.mark.processes
@needs.programs(*SSH_PROGRAMS)
def test_slaves_come_up_and_go_down_over_ssh(tmp_path: Path) -> None:
    program = program_for_hosts(tmp_path / "flegel")
    hosts = tmp_path / "hosts.txt"
    hosts.write_text(
        f"127.0.0.1 name=far slots=1 flegel={program} home={tmp_path}/far\n"
        f"127.0.0.1 name=wrong flegel={tmp_path}/nothing home={tmp_path}/wrong\n"
    )
    (tmp_path / "cluster").mkdir()
    with (
        ssh_server(tmp_path) as ssh,
        DaemonCluster(tmp_path / "cluster", slaves=0) as cluster,
        cluster.client() as client,
    ):

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
