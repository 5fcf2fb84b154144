"""Slaves on many hosts over SSH: started with their keys, and stopped. Runs `ssh`; stores nothing.

A line of the file of hosts is a host as ssh knows it, with options: `slots=8`, `name=NAME`, `flegel=PATH` (the program
there), `home=FOLDER` (FLEGEL_HOME there). Lines that begin with # are ignored.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from flegel.cluster.transport import keys
from flegel.cluster.transport.protocol import check_name
from flegel.errors import FlegelError, UsageError, nearest

SSH_COMMAND = "ssh -o BatchMode=yes -o ConnectTimeout=10"
SSH_TIMEOUT_SECONDS = 60.0
"""Of one command on another host, with the connection; importing Flegel from a network folder takes ten."""
_HOST_OPTIONS = ["slots", "name", "flegel", "home"]


@dataclass(frozen=True)
class Host:
    """One line of the file."""

    target: str
    name: str
    slots: int | None = None
    flegel: str = "flegel"
    home: str = ""

    @property
    def folder(self) -> str:
        """Where its slave's process number and log are."""
        return f"{self.home or '$HOME/.local/share/flegel'}/daemons/{self.name}"

    @property
    def program(self) -> str:
        home = f"FLEGEL_HOME={shlex.quote(self.home)} " if self.home else ""
        return f"{home}{shlex.quote(self.flegel)}"


def read_hosts(path: Path) -> list[Host]:
    """The hosts of a file; an error names the line."""
    if not path.is_file():
        raise UsageError(f"There is no file {path}; write one host a line, such as `node1 slots=4`.")
    found: list[Host] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        options = {}
        for option in fields[1:]:
            key, equals, value = option.partition("=")
            if not equals or key not in _HOST_OPTIONS:
                raise UsageError(f"{path}, line {number}: {option!r} is not an option{nearest(key, _HOST_OPTIONS)}")
            options[key] = value
        if fields[0].startswith("-"):
            raise UsageError(f"{path}, line {number}: {fields[0]!r} is not a host.")
        slots = options.get("slots")
        if slots is not None and not (slots.isdigit() and 1 <= int(slots) <= 256):
            raise UsageError(f"{path}, line {number}: slots={slots} must be 1 to 256.")
        name = options.get("name") or fields[0].rpartition("@")[2].replace(":", "-")
        found.append(
            Host(
                fields[0],
                check_name(name, "slave"),
                int(slots) if slots else None,
                options.get("flegel", "flegel"),
                options.get("home", ""),
            )
        )
    if not found:
        raise UsageError(f"{path} names no host.")
    names = [host.name for host in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{path} has more than one slave called {twice[0]}; give them a name=… each.")
    return found


def up(hosts: list[Host], master: str, ssh: str = SSH_COMMAND, insecure: bool = False) -> dict[str, str]:
    """Start a slave on each host; problems by name (empty for those that started)."""
    server = "" if insecure else keys.load(keys.MASTER).public
    registry = keys.KeyRegistry()

    def start(host: Host) -> None:
        """Start the slave of one host over SSH, after its key and the master's key have been exchanged."""
        if not insecure:
            own = json.loads(_run(ssh, host, f"{host.program} keys show --json"))["own"]
            if not own.get("slave"):
                _run(ssh, host, f"{host.program} keys new --role slave")
                own = json.loads(_run(ssh, host, f"{host.program} keys show --json"))["own"]
            registry.add(own["slave"], "slave", host.name)
            _run(ssh, host, f"{host.program} keys add {server} --role master --address {shlex.quote(master)}")
        command = f"{host.program} slave --master {shlex.quote(master)} --name {host.name}"
        command += f" --slots {host.slots}" if host.slots else ""
        command += " --insecure" if insecure else ""
        _run(ssh, host, START_SCRIPT.format(folder=host.folder, command=command))

    return _on_all(hosts, start)


# Both scripts may run again: one that finds a running slave starts none, one that finds none ends nothing.
START_SCRIPT = """mkdir -p {folder} && cd {folder} || exit 1
if [ -f pid ] && kill -0 "$(cat pid)" 2>/dev/null; then exit 0; fi
(setsid nohup env {command} > log 2>&1 < /dev/null & echo $! > pid)
sleep 0.5
kill -0 "$(cat pid)" 2>/dev/null || {{ tail -n 3 log >&2; exit 1; }}"""

STOP_SCRIPT = """cd {folder} 2>/dev/null || exit 0
[ -f pid ] || exit 0
number=$(cat pid)
kill -TERM "$number" 2>/dev/null
for i in $(seq {tries}); do kill -0 "$number" 2>/dev/null || break; sleep 0.2; done
kill -0 "$number" 2>/dev/null && kill -KILL "$number"
rm -f pid"""


def down(hosts: list[Host], ssh: str = SSH_COMMAND, seconds: float = 40.0) -> dict[str, str]:
    """Stop the slaves; they drain first. Problems by name."""

    def stop(host: Host) -> None:
        _run(ssh, host, STOP_SCRIPT.format(folder=host.folder, tries=int(seconds * 5)), seconds + SSH_TIMEOUT_SECONDS)

    return _on_all(hosts, stop)


def _on_all(hosts: list[Host], do: Callable[[Host], None]) -> dict[str, str]:
    """Call `do` for all hosts at the same time; by host: the error as a sentence, or an empty text."""

    def one(host: Host) -> str:
        try:
            do(host)
        except FlegelError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(max_workers=min(len(hosts), 16)) as pool:
        return dict(zip((host.name for host in hosts), pool.map(one, hosts), strict=True))


def _run(ssh: str, host: Host, script: str, seconds: float = SSH_TIMEOUT_SECONDS) -> str:
    """Standard output of a shell script that runs on this host; any failure is one sentence that names the host."""
    command = [*shlex.split(ssh), host.target, "sh -c " + shlex.quote(script)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise FlegelError(f"{host.target} did not answer within {seconds:.0f} s.") from None
    except OSError as error:
        raise UsageError(f"{shlex.split(ssh)[0]} cannot be run: {error.strerror}.") from None
    if done.returncode:
        output = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise FlegelError(f"{host.target}: {output[-1] if output else f'exit code {done.returncode}'}")
    return done.stdout
