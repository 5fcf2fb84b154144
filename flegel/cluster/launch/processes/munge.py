"""Credentials of munge, the service by which Slurm's own hosts trust each other: encrypted, for one user, for minutes.

Runs `munge` and `unmunge`; keeps nothing.
"""

from __future__ import annotations

import os
import re
import subprocess

from flegel.errors import FlegelError, UsageError

CREDENTIAL_PREFIX = b"MUNGE:"
"""With which a credential begins, by munge's own format."""
CREDENTIAL_LIFETIME_SECONDS = 300
"""For which a credential can be decoded (once on each host): a slave gets it when it runs, not when it is queued."""
MUNGE_TIMEOUT_SECONDS = 60.0
"""Of one run of `munge`, `unmunge` or `scontrol`, whose daemons may be busy."""


def seal(content: bytes) -> bytes:
    """One line that only processes of this user can decode, on hosts with the same munge key."""
    command = ["munge", f"--restrict-uid={os.getuid()}", f"--ttl={CREDENTIAL_LIFETIME_SECONDS}", *_socket()]
    found = subprocess.run(command, input=content, capture_output=True, timeout=MUNGE_TIMEOUT_SECONDS)
    if found.returncode:
        raise FlegelError(f"munge made no credential: {found.stderr.decode(errors='replace').strip()}")
    return found.stdout.strip() + b"\n"


def opened(line: bytes) -> bytes:
    """The content of a credential; a line that is no credential is returned as it is."""
    if not line.startswith(CREDENTIAL_PREFIX):
        return line
    command = ["unmunge", "--metadata=/dev/null", *_socket()]
    found = subprocess.run(command, input=line, capture_output=True, timeout=MUNGE_TIMEOUT_SECONDS)
    if found.returncode:
        raise UsageError(f"munge refused the ticket of this slave: {found.stderr.decode(errors='replace').strip()}")
    return found.stdout


def _socket() -> list[str]:
    """Where munge listens, if Slurm's configuration names another place than the usual one."""
    try:
        found = subprocess.run(
            ["scontrol", "show", "config"], capture_output=True, text=True, timeout=MUNGE_TIMEOUT_SECONDS
        )
    except OSError:
        return []
    named = re.search(r"^AuthInfo\s*=.*?socket=([^\s,]+)", found.stdout, re.MULTILINE)
    return [f"--socket={named[1]}"] if named else []
