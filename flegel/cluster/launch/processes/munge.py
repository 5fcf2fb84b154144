"""Credentials of munge, the service by which Slurm's own hosts trust each other: encrypted, for one user, for minutes.

Runs `munge` and `unmunge`; keeps nothing.
"""

from __future__ import annotations

import os
import re
import subprocess

from flegel.errors import FlegelError, UsageError

PREFIX = b"MUNGE:"
SECONDS = 300
"""For which a credential can be decoded, and only once on each host."""
PATIENCE = 60.0


def seal(content: bytes) -> bytes:
    """One line that only processes of this user can decode, on hosts with the same munge key."""
    command = ["munge", f"--restrict-uid={os.getuid()}", f"--ttl={SECONDS}", *_socket()]
    found = subprocess.run(command, input=content, capture_output=True, timeout=PATIENCE)
    if found.returncode:
        raise FlegelError(f"munge made no credential: {found.stderr.decode(errors='replace').strip()}")
    return found.stdout.strip() + b"\n"


def opened(line: bytes) -> bytes:
    """What a line holds; one that is no credential is itself."""
    if not line.startswith(PREFIX):
        return line
    command = ["unmunge", "--metadata=/dev/null", *_socket()]
    found = subprocess.run(command, input=line, capture_output=True, timeout=PATIENCE)
    if found.returncode:
        raise UsageError(f"munge refused the ticket of this slave: {found.stderr.decode(errors='replace').strip()}")
    return found.stdout


def _socket() -> list[str]:
    """Where munge listens, if Slurm's configuration names another place than the usual one."""
    try:
        found = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, timeout=PATIENCE)
    except OSError:
        return []
    named = re.search(r"^AuthInfo\s*=.*?socket=([^\s,]+)", found.stdout, re.MULTILINE)
    return [f"--socket={named[1]}"] if named else []
