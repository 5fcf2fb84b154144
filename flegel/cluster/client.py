"""A client of a master: sends requests, waits for answers, downloads results. Decides nothing."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from flegel.cluster.master.facts import OVER
from flegel.cluster.transport import keys
from flegel.cluster.transport.framing import is_loopback
from flegel.cluster.transport.protocol import (
    MAX_SOURCE_BYTES,
    TO_CLIENT,
    Accepted,
    CancelJob,
    ClusterJob,
    Denied,
    FileContent,
    JobList,
    JobView,
    ListSlaves,
    ReadFile,
    ResumeJob,
    ScaleJob,
    ShowJobs,
    SlaveList,
    SlaveView,
    SubmitJob,
    SuspendJob,
    check_name,
)
from flegel.cluster.transport.secure_client import SecureClient, dial
from flegel.core.own_pauses import Deadline
from flegel.errors import AlgorithmError, FlegelError, StorageError, UsageError
from flegel.group_options import GroupSpec
from flegel.job import AlgorithmRef
from flegel.loading.class_source import in_plain
from flegel.loading.damage import damage_as
from flegel.loading.documents import read_json
from flegel.runtime import clock
from flegel.runtime.job import result_store
from flegel.runtime.system.signals import raise_lost_signal
from flegel.runtime.transport.curve import KeyPair

CONNECT_TIMEOUT_SECONDS = 10.0
"""Within which a master must answer the first message; a connection takes milliseconds, a busy master seconds."""
ANSWER_TIMEOUT_SECONDS = 90.0
"""Within which every later request is answered, also by a master that was restarted, or frozen for a minute."""
JOB_POLL_SECONDS = 0.3
"""Between two requests about a job that somebody waits for: short for a person, a small load for a master."""
MASTER_START_SECONDS = 30.0
"""That a master of this host may take to make its keys and to listen: what is started together with it waits so long.
It takes 1 s alone, and 6 s where eight processes share two cores."""
KEY_POLL_SECONDS = 0.1
"""Between two looks for the key of a master that may be starting."""
PROBE_TIMEOUT_SECONDS = 2.0
"""Within which an address must accept a connection to count as a master's; a connection takes one round trip."""

Some = TypeVar("Some")


def await_key_of_master(address: str, seconds: float, say: Callable[[str], None]) -> None:
    """Wait until the key of the master at this address is known here, so many seconds at most, and say so.

    A master makes its keys at its first start, before it listens. So nobody waits where something listens already, nor
    for a master on another host, whose key a person adds.
    """
    registry, said = keys.KeyRegistry(), False
    deadline = Deadline(seconds, clock.now())
    while not registry.masters(address) and on_this_host(address) and not listens(address):
        raise_lost_signal()
        if deadline.passed(clock.now()):
            return
        if not said:
            say(f"no master has started at {address} yet; waiting up to {seconds:.0f} s for it")
        said = True
        clock.sleep(KEY_POLL_SECONDS)


def _key_of_master(address: str) -> str:
    """The public key of the master at this address, from the list of this host.

    Where the list has none and nothing listens at the address, the error says that nothing listens: a missing key
    would send the user to look for the wrong cause.
    """
    try:
        return keys.KeyRegistry().master(address)
    except UsageError:
        if listens(address):
            raise
    raise FlegelError(
        f"Nothing listens at {address}; start a master there with `flegel master`, or give the address of one that "
        "runs. Jobs of this host alone need none: `flegel top` and `flegel submit … --dashboard` show them."
    )


def listens(address: str) -> bool:
    """Whether any process accepts connections at this address."""
    parts = urlsplit(address)
    try:
        with socket.create_connection((parts.hostname, parts.port), PROBE_TIMEOUT_SECONDS):
            return True
    except OSError:
        return False


class Client:
    """One conversation with a master."""

    def __init__(
        self,
        address: str,
        *,
        insecure: bool = False,
        role: str = "submit",
        pair: KeyPair | None = None,
        server: str | None = None,
        start_seconds: float = 0.0,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`pair` and the master's key `server` are those of this user's folder where they are not given. A master of
        this host may take `start_seconds` to start; `say` gets the sentence that it is waited for."""
        self.address = address
        self._connect_seconds = CONNECT_TIMEOUT_SECONDS
        if on_this_host(address):
            self._connect_seconds = max(CONNECT_TIMEOUT_SECONDS, start_seconds)
        self.role = role
        """Of the key that is used: `read` may change nothing."""
        if insecure:
            self._connection: SecureClient = dial(address, TO_CLIENT, insecure=True)
        elif pair is not None:
            self._connection = dial(address, TO_CLIENT, pair=pair, server=server)
        else:
            if start_seconds:
                await_key_of_master(address, start_seconds, say)
            server = _key_of_master(address)
            own = keys.own_pairs()
            self.role = name = role if role in own or "read" not in own else "read"
            self._connection = dial(address, TO_CLIENT, pair=keys.load(name), server=server)
        self._number = 0

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request: Any, kind: type[Some], frames: tuple[bytes, ...] = ()) -> tuple[Some, tuple[bytes, ...]]:
        """Send a request and wait for its answer, which must be of type `kind`; a refusal is raised as an error."""
        if not self._number:
            self._connection.wait_ready(self._connect_seconds)
        self._number += 1
        request.number = self._number
        self._connection.send(request, frames)
        deadline = Deadline(ANSWER_TIMEOUT_SECONDS, clock.now())
        while not deadline.passed(clock.now()):
            for answer, pieces in self._connection.receive(0.2):
                if answer.number != self._number:
                    continue
                if isinstance(answer, Denied):
                    raise UsageError(answer.text) if answer.usage else FlegelError(answer.text)
                if isinstance(answer, kind):
                    return answer, pieces
        raise FlegelError(
            f"The master at {self.address} did not answer within {ANSWER_TIMEOUT_SECONDS:.0f} s. Is it running?"
        )

    # -- requests -----------------------------------------------------------------------------------------------

    def submit(self, spec: ClusterJob, source: str = "", ticket: str | None = None) -> str:
        """The name of the job; a repeated ticket names the same job."""
        content = source.encode()
        request = SubmitJob(ticket or secrets.token_hex(16), spec, getpass.getuser())
        return self._ask(request, Accepted, (content,) if content else ())[0].job

    def jobs(self) -> tuple[JobView, ...]:
        return self._ask(ShowJobs(), JobList)[0].jobs

    def job(self, name: str) -> JobView:
        return self._ask(ShowJobs(name), JobList)[0].jobs[0]

    def slaves(self) -> tuple[SlaveView, ...]:
        return self._ask(ListSlaves(), SlaveList)[0].slaves

    def cancel(self, name: str) -> str:
        return self._ask(CancelJob(name, getpass.getuser()), Accepted)[0].text

    def scale(self, name: str, workers: int | None = None, servers: int | None = None) -> str:
        return self._ask(ScaleJob(name, workers, getpass.getuser(), servers), Accepted)[0].text

    def suspend(self, name: str) -> str:
        return self._ask(SuspendJob(name, getpass.getuser()), Accepted)[0].text

    def resume(self, name: str) -> str:
        return self._ask(ResumeJob(name, getpass.getuser()), Accepted)[0].text

    def watch(self, name: str) -> Iterator[JobView]:
        """Views of the job, one each `JOB_POLL_SECONDS`, the last one when it has ended."""
        while True:
            view = self.job(name)
            yield view
            if view.state in OVER:
                return
            clock.sleep(JOB_POLL_SECONDS)

    def wait(self, name: str) -> JobView:
        """Wait until the job has ended; returns its last view."""
        return list(self.watch(name))[-1]

    # -- files ---------------------------------------------------------------------------------------------------

    def log(self, name: str, follow: bool = False) -> Iterator[str]:
        """Lines of the logs of all slaves, in the order of time; with `follow` until the job has ended."""
        have: dict[str, int] = {}
        partial: dict[str, bytes] = {}
        while True:
            over = not follow or self.job(name).state in OVER
            lines: list[str] = []
            for source in self._ask(ReadFile(name), FileContent)[0].names:
                lines += self._lines(name, source, have, partial)
            yield from sorted(lines, key=lambda line: line[:20])
            if over:
                return
            clock.sleep(JOB_POLL_SECONDS)

    def _lines(self, name: str, source: str, have: dict[str, int], partial: dict[str, bytes]) -> list[str]:
        """Whole lines that a log has gained since the last call.

        `have` has the bytes of each log that were read, `partial` the beginning of a line whose end is not written yet.
        """
        content = partial.pop(source, b"")
        while True:
            offset = have.get(source, 0)
            answer, pieces = self._ask(ReadFile(name, source=source, offset=offset), FileContent)
            content += pieces[0] if pieces else b""
            have[source] = offset + (len(pieces[0]) if pieces else 0)
            if have[source] >= answer.size:
                break
        *lines, partial[source] = content.split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def fetch(self, view: JobView, folder: Path) -> dict[str, Any]:
        """Download the files of a finished job into a folder, which appears whole or not at all; returns
        `result.json`."""
        result_store.check_target(folder)
        scratch = folder.absolute().with_name(f".{folder.name}.{os.getpid()}.part")
        try:
            scratch.mkdir(parents=True)
            for file in view.files:
                with (scratch / check_name(file, "file")).open("wb") as stream:
                    for piece in self._pieces(view.job, file):
                        stream.write(piece)
            figures = self._name_folder(scratch / "result.json", folder)
            if folder.exists():
                folder.rmdir()
            scratch.rename(folder)
        except OSError as error:
            raise StorageError(f"Could not save to {folder}: {error.strerror or error}.") from None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return figures

    def figures(self, view: JobView) -> dict[str, Any]:
        """What `result.json` of a job says, without storing anything."""
        with damage_as(f"The result of {view.job} is damaged"):
            found: dict[str, Any] = json.loads(b"".join(self._pieces(view.job, "result.json")))
            return {**found, "model": None}

    def _name_folder(self, path: Path, folder: Path) -> dict[str, Any]:
        """Write into `result.json` where the model lies now: the master's own folder stands there."""
        figures = read_json(path)
        figures["model"] = str(folder)
        path.write_text(json.dumps(figures, indent=1), encoding="utf-8")
        return figures

    def _pieces(self, job: str, file: str) -> Iterator[bytes]:
        """The content of a file of a job, piece by piece, as the master answers."""
        offset = 0
        while True:
            answer, pieces = self._ask(ReadFile(job, file, offset=offset), FileContent)
            piece = pieces[0] if pieces else b""
            yield piece
            offset += len(piece)
            if offset >= answer.size or not piece:
                return


class PackedAlgorithm(NamedTuple):
    """An algorithm on its way to a master."""

    ref: AlgorithmRef
    """In plain values, without its source."""
    source_sha256: str
    source: str


def pack(ref: AlgorithmRef) -> PackedAlgorithm:
    """Take the source out of a reference; both hash and source are empty for a built-in algorithm."""
    ref = in_plain(ref)
    if not ref.source:
        return PackedAlgorithm(ref, "", "")
    if len(ref.source.encode()) > MAX_SOURCE_BYTES:
        raise UsageError(
            f"{ref.name} and what it uses are more than {MAX_SOURCE_BYTES >> 10} KiB of source; make it smaller."
        )
    digest = hashlib.sha256(ref.source.encode()).hexdigest()
    return PackedAlgorithm(msgspec.structs.replace(ref, source=""), digest, ref.source)


def data_name(name: str) -> str:
    """The name of data for a cluster: names and addresses as they are, paths made absolute.

    A file is opened on the slaves, so it must have the same path there; a slave without it says so.
    """
    from flegel.datasets.catalog import registry

    if "://" in name or name.partition(":")[0] in registry.names():
        return name
    if not Path(name).expanduser().exists() and Path(name).name == name and "." not in name:
        return name  # a misspelt name, which the slave will report
    return str(Path(name).expanduser().absolute())


def checkpoint_name(place: str | None) -> str | None:
    """Where a job on a cluster keeps its checkpoints, for its coordinator on any slave: a path is made absolute."""
    return place if place is None or "://" in place else str(Path(place).expanduser().absolute())


def gate_name(sites: GroupSpec) -> GroupSpec:
    """Options of a group whose coordinator is on a slave: the rows of its gate are named as its data are."""
    return msgspec.structs.replace(sites, gate_data=data_name(sites.gate_data)) if sites.gate_data else sites


def own_address(master: str) -> str:
    """The address of this host on the way to the master; the loopback where that is on this host."""
    parts = urlsplit(master)
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname, parts.port or 1))
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def on_this_host(address: str) -> bool:
    """Whether an address is one of this host: its own end of a way there has the same."""
    host = urlsplit(address).hostname or ""
    if is_loopback(host):
        return True
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 1))
        return bool(probe.getsockname()[0] == probe.getpeername()[0])
    return False


def raise_unless_done(view: JobView) -> None:
    """What a job that failed or was stopped raises where its result is asked for."""
    if view.state == "done":
        return
    if view.state == "cancelled":
        raise FlegelError(f"Job {view.job} was stopped: {view.reason}")
    if view.usage:
        raise UsageError(f"Job {view.job} failed: {view.reason}")
    raise AlgorithmError(f"Job {view.job} failed: {view.reason}", view.trace)
