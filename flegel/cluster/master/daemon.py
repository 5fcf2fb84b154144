"""`flegel master`: the daemon around the master machine. Sockets, the journal, files of jobs; no decisions.

Facts of an event are written to the disk first, then its orders and answers are sent: what a slave or a client has seen
is never lost by a crash.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import signal
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flegel.cluster.master.actions import Action, Caller, RecordFact, RemoveFiles, ReplyTo, SendTo
from flegel.cluster.master.facts import RUNNING
from flegel.cluster.master.journal import Journal
from flegel.cluster.master.master import Master
from flegel.cluster.master.message_budget import listed
from flegel.cluster.master.state import KnownSlave
from flegel.cluster.master.worker_size import MAX_SLOTS_PER_SLAVE
from flegel.cluster.transport.protocol import (
    FILE_CHUNK_BYTES,
    MAX_NAME_CHARACTERS,
    MAX_SOURCE_BYTES,
    CancelJob,
    Denied,
    FileChunk,
    FileContent,
    FileReceived,
    JobList,
    JobView,
    LaunchCoordinator,
    ReadFile,
    ResumeJob,
    ScaleJob,
    SlaveBeat,
    SlaveLeaving,
    SlaveRefused,
    SlaveView,
    SubmitJob,
    SuspendJob,
    check_name,
)
from flegel.cluster.transport.secure_server import ANYBODY, Received, SecureServer, Sender
from flegel.errors import PeerRefused, PeerSlow, StorageError, UsageError, in_words
from flegel.runtime import clock
from flegel.runtime.system.signals import raise_lost_signal

_log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
"""Between two checks for silent slaves; their limit is 6 s."""
MAX_JOB_FILE_BYTES = 8 << 30
"""Largest file of a job that the master stores: a job must not fill its disk."""
MAX_JOB_LIST_BYTES = 900 << 10
"""Of an answer that lists jobs, below the largest message (1 MiB); the oldest jobs are omitted from a longer one."""
SIZE_ENDING_TRANSFER = 1 << 62
"""Size reported to a slave whose bytes are not wanted: larger than any file, so it sends no more."""


class MasterDaemon:
    """Owns the server socket, the journal and the folder of the master."""

    def __init__(self, server: SecureServer, folder: Path) -> None:
        """Read the journal in `folder` and continue with its jobs."""
        self.server, self._folder = server, folder
        self._journal = Journal(folder / "journal")
        if self._journal.cut:
            self._log(f"the journal had a torn tail of {self._journal.cut} bytes, which was removed")
        table = self._journal.table
        now = clock.now()
        self._machine = Master(table, now, clock.microseconds() / 1e6 - now)
        self._slaves: dict[str, Sender] = {}
        self._stopping = False
        self._last_problem = ""
        self._log(f"{len(table.jobs)} jobs in the journal, {len(table.of_state(RUNNING))} of them running")

    def run(
        self, publish: Callable[[Sequence[JobView], Sequence[SlaveView]], None] = lambda jobs, slaves: None
    ) -> None:
        """Serve until SIGTERM or SIGINT; running jobs continue without a master. `publish` gets all jobs and slaves at
        each tick."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop())
        raise_lost_signal()
        self._log(f"listening at {self.server.address}")
        tick_at = clock.now()
        while not self._stopping:
            for received in self.server.receive(max(tick_at - clock.now(), 0.0)):
                self._handle(received)
                if clock.now() >= tick_at or self._stopping:
                    break
            now = clock.now()
            if now >= tick_at:  # after what waits was read: its senders are alive
                tick_at = now + TICK_SECONDS
                self._tick(now)
                publish(*self._machine.overview())
        self._journal.close()

    def _stop(self) -> None:
        self._stopping = True

    def _log(self, text: str) -> None:
        _log.info(text)

    # -- in --------------------------------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        """Let the machine act on slaves that are silent; `unreachable` are those without an open connection."""
        try:
            silent = self._machine.silent(now)
            unreachable = {name for name in silent if not self.server.reachable(self._slaves[name])}
            self._execute(self._machine.tick(now, unreachable))
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 - see `_handle`
            self._report_failure("the periodic check", error)

    def _handle(self, received: Received) -> None:
        """Handle one message. Whatever is wrong with it, later ones are handled; a journal that fails ends the
        master."""
        sender, body, _ = received
        try:
            self._dispatch(received, clock.now())
        except StorageError:
            raise
        except UsageError as error:
            self._deny(sender, body, str(error))
        except Exception as error:  # noqa: BLE001 - one bad message must not end the master
            what = f"{type(body).__name__} of {sender.name or sender.key[:8] or 'an unknown sender'}"
            self._report_failure(what, error)
            short = f"{type(error).__name__}: {str(error)[:200]}"
            self._deny(sender, body, f"The master could not handle that ({short}); its log says more.", usage=False)

    def _dispatch(self, received: Received, now: float) -> None:
        """Pass one message to the method for its type."""
        sender, body, frames = received
        match body:
            case SlaveBeat():
                self._handle_beat(sender, body, now)
            case SlaveLeaving(slave=name, boot=boot):
                known = self._machine.slaves.get(name)
                if known is not None and known.beat.boot == boot and self._owns_name(sender, name):
                    self._execute(self._machine.slave_left(name, now))
            case FileChunk():
                self._handle_chunk(sender, body, frames)
            case ReadFile():
                self._answer(sender, *self._read(body))
            case _:
                self._handle_request(sender, body, frames, now)

    def _deny(self, sender: Sender, body: Any, why: str, usage: bool = True) -> None:
        if not isinstance(body, SlaveBeat | SlaveLeaving | FileChunk):
            self._answer(sender, Denied(why[:2000], usage, number=body.number))
        elif why != self._last_problem:  # slaves are not answered, and would repeat it every second
            self._last_problem = why
            self._log(f"{type(body).__name__} of slave {body.slave[:64]!r} was refused: {why}")

    def _report_failure(self, what: str, error: Exception) -> None:
        """A defect of the master itself: logged. What had been decided before it is executed."""
        text = "".join(traceback.format_exception(error))
        known, self._last_problem = text == self._last_problem, text
        self._log(f"{what} failed: {type(error).__name__}: {error}" + ("" if known else f"\n{text}"))
        self._execute(self._machine.after_failure())

    def _owns_name(self, sender: Sender, name: str) -> bool:
        """A slave's name belongs to the key that used it first, as long as that slave is here."""
        known = self._slaves.get(name)
        return known is None or known.key == sender.key or name not in self._machine.slaves

    def _handle_beat(self, sender: Sender, beat: SlaveBeat, now: float) -> None:
        """A heartbeat. One of a second slave with a name that is in use is refused, and that slave is told so."""
        check_name(beat.slave, "slave")
        if not self._owns_name(sender, beat.slave) or not 0 <= beat.slots <= MAX_SLOTS_PER_SLAVE:
            return
        known = self._machine.slaves.get(beat.slave)
        if known is not None and known.present and known.beat.boot != beat.boot and self._alive(known, now):
            self._refuse_second(sender, known.beat)
            return
        if known is None or not known.present:
            self._log(f"slave {beat.slave} at {beat.address} with {beat.slots} slots")
        self._slaves[beat.slave] = sender
        self._execute(self._machine.beat_received(beat, now))

    def _alive(self, slave: KnownSlave, now: float) -> bool:
        """Whether it sends heartbeats over an open connection; a slave that was killed does not keep its name from the
        next."""
        return not slave.silent(now) and self.server.reachable(self._slaves[slave.name])

    def _refuse_second(self, sender: Sender, running_slave: SlaveBeat) -> None:
        why = (
            f"A slave named {running_slave.slave} at {running_slave.address} is running already; choose another --name."
        )
        if why != self._last_problem:
            self._last_problem = why
            self._log(f"a second slave was refused: {why}")
        with contextlib.suppress(PeerRefused, PeerSlow):
            self.server.send(sender, SlaveRefused(why))

    def _handle_request(self, sender: Sender, body: Any, frames: tuple[bytes, ...], now: float) -> None:
        if isinstance(body, SubmitJob):
            self._store_code(body, frames)
        actions = self._machine.request_received(self._caller(sender, body), body, now)
        if isinstance(body, SubmitJob | CancelJob | ScaleJob | SuspendJob | ResumeJob):
            self._log(f"{type(body).__name__.lower()} by {self._caller(sender, body).name}: {_summary(actions)}")
        self._execute(actions, sender, body)

    def _caller(self, sender: Sender, body: Any) -> Caller:
        if sender.role == ANYBODY:
            return Caller(getattr(body, "user", "")[:MAX_NAME_CHARACTERS] or "anybody", admin=True)
        return Caller(sender.name or sender.key[:8], sender.admin, sender.key)

    def _store_code(self, body: SubmitJob, frames: tuple[bytes, ...]) -> None:
        """A user's source, under the hash of its content; never run here."""
        if not body.spec.code:
            return
        source = frames[0] if frames else b""
        if len(source) > MAX_SOURCE_BYTES:
            raise UsageError(f"The source of a class has at most {MAX_SOURCE_BYTES} bytes, not {len(source)}.")
        if hashlib.sha256(source).hexdigest() != body.spec.code:
            raise UsageError("The source of the class does not have the hash that was announced; submit it again.")
        path = self._folder / "code" / body.spec.code
        try:
            if not path.exists():
                write_atomically(path, source)
        except StorageError as error:
            raise UsageError(f"The master cannot store the source of the class: {error}") from None

    def _drop_code(self) -> None:
        """Remove source that no listed job needs."""
        needed = {job.spec.code for job in self._machine.table.jobs.values()}
        for path in (self._folder / "code").glob("*"):
            if path.name not in needed:
                path.unlink(missing_ok=True)

    # -- out -------------------------------------------------------------------------------------------------------

    def _execute(self, actions: list[Action], client: Sender | None = None, request: Any = None) -> None:
        """Write the facts of an event to the journal, then send its orders and answers (see the module)."""
        facts = [a.fact for a in actions if isinstance(a, RecordFact)]
        self._journal.append(facts)
        for fact in facts:
            self._log_fact(fact)
        for action in actions:
            match action:
                case SendTo(slave, order):
                    self._send(slave, order)
                case ReplyTo(answer) if client is not None:
                    answer.number = request.number
                    if isinstance(answer, JobList) and request.job:
                        view = answer.jobs[0]
                        view = msgspec.structs.replace(view, files=self._files(view.job, view.attempt))
                        answer.jobs = (view,)
                    elif isinstance(answer, JobList):
                        answer.jobs = listed(answer.jobs, MAX_JOB_LIST_BYTES)
                    self._answer(client, answer)
                case RemoveFiles(job):
                    shutil.rmtree(self._folder / "jobs" / job, ignore_errors=True)
                    self._drop_code()

    def _log_fact(self, fact: Any) -> None:
        """Log what the journal records about a job, for people."""
        formats = {
            "Placed": "is placed on {0.slave}",
            "Released": "waits again: {0.why}",
            "Ended": "{0.state}: {0.why}",
        }
        text = formats.get(type(fact).__name__)
        if text:
            self._log(f"job {fact.job} {text.format(fact)}")

    def _send(self, slave: str, order: Any) -> None:
        """Send an order, with the source of the class where it starts a coordinator. An order that can never be sent
        ends its job; one that a slow slave misses is decided again at its next heartbeat."""
        frames: tuple[bytes, ...] = ()
        try:
            if isinstance(order, LaunchCoordinator) and order.spec.code:
                frames = ((self._folder / "code" / order.spec.code).read_bytes(),)
            self.server.send(self._slaves[slave], order, frames)
        except (PeerRefused, PeerSlow):
            pass  # the order is repeated later, or the slave is lost
        except (OSError, UsageError) as error:
            why = f"The master cannot send {type(order).__name__} to {slave}: {in_words(error)}"
            self._log(why)
            if isinstance(order, LaunchCoordinator):
                self._execute(self._machine.cannot_launch(order.job, order.attempt, why, clock.now()))

    def _answer(self, client: Sender, answer: Any, frames: tuple[bytes, ...] = ()) -> None:
        with contextlib.suppress(PeerRefused, PeerSlow):  # a client that missed its answer asks again
            self.server.send(client, answer, frames)

    # -- files -----------------------------------------------------------------------------------------------------

    def _job_file(self, job: str, attempt: int, file: str, slave: str) -> Path:
        check_name(job, "job")
        if file:
            return self._folder / "jobs" / job / f"result.{attempt}" / check_name(file, "file")
        return self._folder / "jobs" / job / f"log.{attempt}.{check_name(slave, 'slave')}"

    def _handle_chunk(self, sender: Sender, body: FileChunk, frames: tuple[bytes, ...]) -> None:
        """Store a piece of a file and tell the slave how many bytes are stored; pieces that are not wanted are
        dropped."""
        content = frames[0] if frames else b""
        size = SIZE_ENDING_TRANSFER
        if body.file:
            check_name(body.file, "file")
        if (
            self._owns_name(sender, body.slave)
            and self._machine.accepts_file(body.job, body.attempt, body.slave, body.file)
            and len(content) <= FILE_CHUNK_BYTES
        ):
            path = self._job_file(body.job, body.attempt, body.file, body.slave)
            size = self._append(path, body.offset, content)
        with contextlib.suppress(PeerRefused, PeerSlow):
            self.server.send(sender, FileReceived(body.job, body.attempt, body.file, size))

    def _append(self, path: Path, offset: int, content: bytes) -> int:
        """Append a piece that begins where the file ends; returns the bytes of the file, for the slave to go on
        from."""
        path.parent.mkdir(parents=True, exist_ok=True)
        have = path.stat().st_size if path.exists() else 0
        if offset != have or have + len(content) > MAX_JOB_FILE_BYTES:
            return have if have + len(content) <= MAX_JOB_FILE_BYTES else SIZE_ENDING_TRANSFER
        try:
            with path.open("ab") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            self._log(f"could not store {path}: {error.strerror}")
            with contextlib.suppress(OSError):
                os.truncate(path, have)
            return have
        return have + len(content)

    def _files(self, job: str, attempt: int) -> tuple[str, ...]:
        folder = self._folder / "jobs" / job / f"result.{attempt}"
        return tuple(sorted(p.name for p in folder.iterdir())) if folder.is_dir() else ()

    def _read(self, request: ReadFile) -> tuple[FileContent, tuple[bytes, ...]]:
        """A piece of a log or of a file of the result; without a name, which logs there are."""
        job = self._machine.find(request.job)
        folder = self._folder / "jobs" / job.id
        if not request.file and not request.source:
            names = tuple(sorted(p.name.removeprefix("log.") for p in folder.glob("log.*")))
            return FileContent(0, names, number=request.number), ()
        if request.file:
            path = folder / f"result.{job.attempt}" / check_name(request.file, "file")
        else:
            path = folder / f"log.{check_name(request.source, 'log')}"
        if not path.is_file():
            raise UsageError(f"Job {job.id} has no {request.file or 'log of ' + request.source}.")
        size = path.stat().st_size
        with path.open("rb") as stream:
            stream.seek(min(max(request.offset, 0), size))
            content = stream.read(FILE_CHUNK_BYTES)
        return FileContent(size, number=request.number), (content,)


def _summary(actions: list[Action]) -> str:
    for action in actions:
        if isinstance(action, ReplyTo):
            answer: Any = action.answer
            return f"{getattr(answer, 'job', '')} {getattr(answer, 'text', '')}".strip() or "accepted"
    return ""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with scratch.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise StorageError(f"Could not write {path}: {error.strerror}.") from None
