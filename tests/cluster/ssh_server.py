"""A real ssh server of a test's own, on this host."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import needs
from tests.ports import free_port

SSH_PROGRAMS = ("sshd", "ssh", "ssh-keygen")


@contextmanager
def ssh_server(folder: Path) -> Iterator[str]:
    """The ssh command that reaches it as this user."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    port = free_port()
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nPidFile {folder}/sshd.pid\nUsePAM no\n"
        f"AuthorizedKeysFile {folder}/user.pub\nStrictModes no\nPasswordAuthentication no\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with (folder / "sshd.log").open("wb") as log:
        server = subprocess.Popen([needs.path_of("sshd"), "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    limit = time.monotonic() + 120
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        if server.poll() is not None:
            raise AssertionError(f"sshd does not start here: {(folder / 'sshd.log').read_text()[-300:]}")
        assert time.monotonic() < limit, "sshd does not listen"
        time.sleep(0.05)
    try:
        yield (
            f"ssh -F /dev/null -p {port} -i {folder}/user -o BatchMode=yes -o StrictHostKeyChecking=no "
            f"-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        )
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(600)


def program_for_hosts(path: Path) -> Path:
    """A `flegel` that starts without this environment's variables, as one that ssh starts must."""
    paths = os.pathsep.join(p for p in sys.path if p)
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{paths}" exec {sys.executable} -m flegel.cli.main "$@"\n')
    path.chmod(0o755)
    return path
