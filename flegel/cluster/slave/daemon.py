"""A slave: runs what the master orders on this host, and tells it what it runs. Decides nothing about jobs.

It goes on without a master: children are supervised, results are kept, and when a master answers again the next beat
tells it everything.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import select
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from flegel.cluster.master.message_budget import fitted, short
from flegel.cluster.slave import child_processes, coordinator_protocol
from flegel.cluster.slave.child_processes import ChildProcess, JobLog, Name, SpareProcess
from flegel.cluster.slave.coordinator_deadlines import CoordinatorDeadlines
from flegel.cluster.slave.data_access import why_refused
from flegel.cluster.slave.slave_folder import check_folder, is_plain, tidy
from flegel.cluster.transport.framing import ROOM, Limits
from flegel.cluster.transport.protocol import (
    CHUNK,
    COORDINATOR,
    ClusterJob,
    CoordinatorStatus,
    DrainWorkers,
    EndProcesses,
    FileChunk,
    FileReceived,
    ForgetProcesses,
    LaunchCoordinator,
    LaunchWorker,
    ProcessStatus,
    ResizeJob,
    SlaveBeat,
    SlaveLeaving,
    WorkerEnded,
    check_name,
)
from flegel.cluster.transport.secure_client import SecureClient
from flegel.errors import FlegelError, PeerRefused, PeerSlow, ProtocolError, UsageError
from flegel.runtime import clock
from flegel.runtime.transport.poller import Poller

BEAT = 1.0
MEASURE = 0.5
"""Seconds between two looks at the memory of the children."""
SHIP_AGAIN = 5.0
SPARE_AFTER = 2.0
"""Seconds after the last start when the next process is made ready: jobs have the processors first."""
DOUBT = 5.0
"""Seconds until a slave says that no master answers."""
MAX_DEBTS = 3
"""Beats that may be under way; a master that is away gets the next one when it is back, not all of them."""


@dataclass
class SlaveSettings:
    """How a slave was started."""

    name: str
    slots: int
    address: str
    folder: Path
    memory: int
    """Bytes that a process may use where its job does not say."""
    drain: float
    data: tuple[Path, ...] = ()
    """Folders that files may be read from; empty for all."""


@dataclass
class JobAttempt:
    """One attempt of a job on this slave."""

    job: str
    attempt: int
    folder: Path
    log: JobLog
    children: dict[tuple[int, int], ChildProcess] = field(default_factory=dict)
    dead: dict[tuple[int, int], ProcessStatus] = field(default_factory=dict)
    door: CoordinatorStatus | None = None
    spec: ClusterJob | None = None
    hours: CoordinatorDeadlines = field(default_factory=CoordinatorDeadlines)
    finished: coordinator_protocol.JobFinished | None = None
    shipped: dict[str, int] = field(default_factory=dict)
    """File → bytes that the master has; the log's name is empty."""
    sent_at: float | None = None

    @property
    def result(self) -> Path:
        return self.folder / f"result.{self.attempt}"

    @property
    def scratch(self) -> Path:
        return self.folder / f"scratch.{self.attempt}"

    @property
    def over(self) -> bool:
        return not any(c.alive for c in self.children.values())


class SlaveDaemon:
    """The daemon."""

    def __init__(self, settings: SlaveSettings, dial: Callable[[], SecureClient]) -> None:
        self._settings, self._dial = settings, dial
        self._boot = secrets.token_hex(8)
        self._cases: dict[tuple[str, int], JobAttempt] = {}
        self._line: SecureClient | None = None
        self._dial_at = 0.0
        self._met, self._doubt_at = False, clock.now() + DOUBT
        self._beat_at = self._measure_at = 0.0
        self._draining: float | None = None
        self._told_draining = False
        self._over = False
        self._spare: SpareProcess | None = None
        self._spare_at = 0.0
        self._bell, self._ring = os.pipe()
        os.set_blocking(self._ring, False)
        os.set_blocking(self._bell, False)
        folder = settings.folder
        check_folder(folder)
        self._mark = str(folder.resolve())
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise UsageError(f"Another slave uses {folder}; choose another --folder.") from None
        child_processes.adopt_orphans()
        left = child_processes.sweep(self._mark)
        if left:
            self._say(f"ended {left} processes that an earlier slave had left")
        tidy(folder / "jobs")

    # -- life ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until a signal; then nothing of it is left."""
        signal.signal(signal.SIGTERM, lambda *_: self._drain())
        signal.signal(signal.SIGINT, lambda *_: self._stop())
        self._say(f"slave {self._settings.name}: {self._settings.slots} slots, {self._settings.folder}")
        try:
            while not self._over:
                self._turn()
        finally:
            self._close()

    def _drain(self) -> None:
        """Take nothing new, let go what runs, then end."""
        if self._draining is None:
            self._draining = clock.now() + self._settings.drain
            self._wake()

    def _stop(self) -> None:
        self._over = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._ring, b"!")

    def _close(self) -> None:
        alive = [c for case in self._cases.values() for c in case.children.values() if c.alive]
        for child in alive:
            child_processes.ask(child, "was ended with its slave")
        until = clock.now() + child_processes.GRACE + 1.0
        while not all(child_processes.ended(c) for c in alive) and clock.now() < until:
            clock.sleep(0.02)
        for child in alive:
            child_processes.ask(child, "was ended with its slave", at_once=True)
            child_processes.clean_up(child)
        if self._spare is not None:
            self._spare.drop()
        child_processes.patrol([], None)
        if self._line is not None:
            with contextlib.suppress(FlegelError):
                self._line.send(SlaveLeaving(self._settings.name, self._boot))
                self._line.drain(1.0)
            self._line.close()
        for case in self._cases.values():
            case.log.close()
            shutil.rmtree(case.scratch, ignore_errors=True)
        os.close(self._lock)
        os.close(self._bell)
        os.close(self._ring)

    def _turn(self) -> None:
        now = clock.now()
        self._connect(now)
        living = [c for case in self._cases.values() for c in case.children.values() if c.alive]
        pipes = [fd for c in living for fd in c.pipes]
        due = min(self._beat_at, self._measure_at, now + 1.0)
        if any(c.inbox for c in living):
            due = now + 0.02
        if self._line is not None:
            sleeper = Poller(self._line.socket, [self._bell, *pipes])
            sleeper.wait(max(due - now, 0.005))
            sleeper.close()
        else:
            select.select([self._bell, *pipes], [], [], max(due - now, 0.005))
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell, 4096)
        self._hear_children()
        self._hear_master()
        now = clock.now()
        self._introduce(now)
        if now >= self._measure_at:
            self._measure_at = now + MEASURE
            self._police(now)
        self._ship(now)
        if self._spare is None and now >= self._spare_at and self._draining is None:
            with contextlib.suppress(OSError):  # the next start will tell why
                self._spare = child_processes.start_spare("any", self._mark, self._settings.folder)
        draining = self._draining is not None  # set by a signal, at any moment: not a time that this would overwrite
        if now >= self._beat_at or draining != self._told_draining:
            self._beat_at, self._told_draining = now + BEAT, draining
            self._beat()
        if self._draining is not None and (now > self._draining or all(c.over for c in self._cases.values())):
            waiting = any(self._unshipped(c) for c in self._cases.values())
            self._over = now > self._draining or not waiting

    def _connect(self, now: float) -> None:
        if self._line is None and now >= self._dial_at:
            self._dial_at = now + 1.0
            self._line = self._dial()
            for case in self._cases.values():
                case.sent_at = None

    def _introduce(self, now: float) -> None:
        """Say once whether the master answers: a slave goes on trying, and would seem to work without one."""
        if self._met or self._line is None:
            return
        if self._line.answered:
            self._met = True
            self._say(f"the master at {self._line.address} answers")
        elif now >= self._doubt_at:
            self._doubt_at = float("inf")
            self._say(f"no connection to {self._line.address} yet, and goes on trying: {self._line.trouble}")

    def _hear_master(self) -> None:
        if self._line is None:
            return
        try:
            for order, frames in self._line.receive(0.0):
                self._take(order, frames)
        except ProtocolError as error:
            self._say(f"something of the master was not understood, and left: {error}")
        except PeerRefused as error:
            self._say(str(error))
            self._line.close()
            self._line, self._dial_at = None, clock.now() + 2.0

    def _send(self, body: msgspec.Struct, frames: tuple[bytes, ...] = ()) -> bool:
        if self._line is None:
            return False
        try:
            self._line.send(body, frames)
        except PeerSlow:
            return False
        return True

    def _say(self, text: str) -> None:
        print(f"flegel: {text}", file=sys.stderr, flush=True)

    # -- orders --------------------------------------------------------------------------------------------------

    def _take(self, order: Any, frames: tuple[bytes, ...]) -> None:
        """One order. Whatever is wrong with it, the next ones are heard and what runs goes on."""
        try:
            self._obey(order, frames)
        except Exception as error:  # noqa: BLE001 - one bad order must not be the end of all that runs here
            why = f"slave {self._settings.name} could not obey: {type(error).__name__}: {error}"
            self._say(f"{type(order).__name__} {getattr(order, 'job', '')}: {why}")
            case = (
                self._cases.get((order.job, order.attempt))
                if isinstance(order, LaunchCoordinator | LaunchWorker)
                else None
            )
            if case is not None and isinstance(order, LaunchCoordinator):
                self._refuse(case, why)
            elif case is not None:
                self._refuse_worker(case, order, why)

    def _obey(self, order: Any, frames: tuple[bytes, ...]) -> None:
        if not isinstance(order, FileReceived):
            self._beat_at = 0.0
        try:
            check_name(getattr(order, "job", "x"), "job")
        except UsageError as error:
            self._say(f"an order was refused: {error}")
            return
        match order:
            case LaunchCoordinator():
                self._start(order, frames)
            case LaunchWorker():
                self._hire(order)
            case EndProcesses(job=job, attempt=attempt, worker=worker, life=life):
                case_ = self._cases.get((job, attempt))
                for name, child in list(case_.children.items()) if case_ else []:
                    if worker is None or name == (worker, life):
                        child_processes.ask(child, "was dismissed")
            case ForgetProcesses(parts=parts):
                for buried in parts:
                    self._bury(buried)
            case WorkerEnded() | ResizeJob() | DrainWorkers():
                case_ = self._cases.get((order.job, order.attempt))
                chief = case_.children.get((COORDINATOR, 0)) if case_ else None
                if chief is not None and chief.alive:
                    child_processes.tell(chief, coordinator_protocol.encode(order) + b"\n")
            case FileReceived(job=job, attempt=attempt, file=file, size=size):
                case_ = self._cases.get((job, attempt))
                if case_ is not None:
                    case_.shipped[file] = size
                    case_.sent_at = None
                    if not self._forget_if_empty(case_) and not self._unshipped(case_):
                        self._beat_at = 0.0

    def _case(self, job: str, attempt: int) -> JobAttempt:
        if (job, attempt) not in self._cases:
            folder = self._settings.folder / "jobs" / job
            log = JobLog(folder / f"log.{attempt}")
            self._cases[job, attempt] = JobAttempt(job, attempt, folder, log)
        return self._cases[job, attempt]

    def _start(self, order: LaunchCoordinator, frames: tuple[bytes, ...]) -> None:
        case = self._case(order.job, order.attempt)
        if (COORDINATOR, 0) in case.children or (COORDINATOR, 0) in case.dead:
            return
        content = frames[0] if frames else b""
        if order.spec.code and hashlib.sha256(content).hexdigest() != order.spec.code:
            self._refuse(case, "the source of its class is not what was submitted")
            return
        try:
            source = content.decode()
        except UnicodeDecodeError:
            self._refuse(case, "the source of its class is not UTF-8", usage=True)
            return
        refusal = self._forbidden(order.spec.data)
        if refusal:
            self._refuse(case, refusal, usage=True)
            return
        case.spec = order.spec
        case.hours = CoordinatorDeadlines(order.spec.criteria.max_seconds, order.spec.hook_timeout)
        case.door = CoordinatorStatus(order.job, order.attempt)
        shutil.rmtree(case.result, ignore_errors=True)
        if not order.resume:  # of an older job that had the same name
            shutil.rmtree(case.folder / "checkpoints", ignore_errors=True)
        code = case.folder / f"code.{case.attempt}"
        code.write_text(source, encoding="utf-8")
        errand = coordinator_protocol.JobAssignment(
            order.job, order.attempt, order.spec, str(code), order.workers, self._settings.address, str(case.result),
            str(case.folder / "checkpoints"), order.resume,
        )  # fmt: skip
        self._spawn(case, (COORDINATOR, 0), "coordinator", coordinator_protocol.encode(errand), order.spec.memory)

    def _hire(self, order: LaunchWorker) -> None:
        case = self._case(order.job, order.attempt)
        name = (order.worker, order.life)
        if name in case.children or name in case.dead:
            return
        refusal = self._forbidden(order.data)
        if refusal:
            self._refuse_worker(case, order, refusal)
            return
        self._spawn(case, name, "worker", order.birth.encode(), order.memory)

    def _spawn(self, case: JobAttempt, name: tuple[int, int], role: str, line: bytes, memory: int | None) -> None:
        full: Name = (case.job, case.attempt, *name)
        bound = memory if memory is not None else self._settings.memory
        try:
            egg, self._spare = self._spare, None
            if egg is not None and egg.dead:
                egg.drop()
                egg = None
            if egg is None:
                egg = child_processes.start_spare(role, self._mark, self._settings.folder)
            case.children[name] = child_processes.assign(egg, full, role, line, case.log, case.scratch, bound)
            self._spare_at = clock.now() + SPARE_AFTER
        except OSError as error:
            case.dead[name] = ProcessStatus(
                *full, alive=False, outcome="lost", why=f"could not be started: {error.strerror}"
            )

    def _refuse(self, case: JobAttempt, why: str, usage: bool = False) -> None:
        case.dead[COORDINATOR, 0] = ProcessStatus(
            case.job, case.attempt, COORDINATOR, alive=False, outcome="failed", why=why, usage=usage
        )

    def _refuse_worker(self, case: JobAttempt, order: LaunchWorker, why: str) -> None:
        case.dead[order.worker, order.life] = ProcessStatus(
            case.job, case.attempt, order.worker, order.life, alive=False, outcome="lost", why=why, fault=True
        )

    def _forbidden(self, data: str) -> str:
        refusal = why_refused(data, self._settings.data)
        return f"on slave {self._settings.name} {refusal}" if refusal else ""

    def _bury(self, name: Name) -> None:
        """It is on record: forget it, and its files with the last one."""
        case = self._cases.get(name[:2])
        if case is None:
            return
        part = case.dead.pop((name[2], name[3]), None)
        if name[2] == COORDINATOR and part is not None:
            case.children.pop((COORDINATOR, 0), None)
            case.door = None
            shutil.rmtree(case.result, ignore_errors=True)
            if part.outcome == "done":
                shutil.rmtree(case.folder / "checkpoints", ignore_errors=True)
        self._forget_if_empty(case)

    def _forget_if_empty(self, case: JobAttempt) -> bool:
        """Where nothing of it runs and the master has all that it said: True, and it is gone for good."""
        if case.dead or case.children or self._unshipped(case):
            return False
        del self._cases[case.job, case.attempt]
        case.log.close()
        for path in (case.log.path, case.folder / f"code.{case.attempt}"):
            path.unlink(missing_ok=True)
        shutil.rmtree(case.scratch, ignore_errors=True)
        with contextlib.suppress(OSError):
            case.folder.rmdir()
            tidy(case.folder.parent, {job for job, _ in self._cases})
        return True

    # -- children ------------------------------------------------------------------------------------------------

    def _hear_children(self) -> None:
        for case in list(self._cases.values()):
            for name, child in list(case.children.items()):
                if not child.alive:
                    continue
                child_processes.listen(child)
                child_processes.tell(child)
                for line in child_processes.reports(child):
                    self._hear_chief(case, line)
                child_processes.insist(child)
                if child_processes.ended(child):
                    for line in child_processes.reports(child):
                        self._hear_chief(case, line)
                    child_processes.clean_up(child)
                    self._note_end(case, name, child)

    def _hear_chief(self, case: JobAttempt, line: bytes) -> None:
        assert case.door is not None
        try:
            report = coordinator_protocol.read_up(line)
        except msgspec.MsgspecError:
            return  # user code wrote into what is not its own
        change: dict[str, Any] = {}
        match report:
            case coordinator_protocol.WorkersWanted(wants=wants, births=births, trouble=trouble):
                change = {"wants": wants, "births": births, "trouble": trouble}
            case coordinator_protocol.PhaseChanged(name=name, elastic=elastic, hook=hook):
                change = {"phase": name, "elastic": elastic}
                case.hours.told(name, hook, clock.now())
            case coordinator_protocol.ProgressSeen(glance=glance):
                change = {"glance": glance}
                case.hours.turned(clock.now())
            case coordinator_protocol.ProgressSaved():
                change = {"saved": case.door.saved + 1}
            case coordinator_protocol.JobFinished():
                case.finished = report
        case.door = msgspec.structs.replace(case.door, **change)
        if not isinstance(report, coordinator_protocol.ProgressSeen):
            self._beat_at = 0.0

    def _note_end(self, case: JobAttempt, name: tuple[int, int], child: ChildProcess) -> None:
        assert child.code is not None
        why, fault = child_processes.how(child.code)
        if child.verdict:
            why, fault = child.verdict, True
        full: Name = (case.job, case.attempt, *name)
        self._beat_at = 0.0
        del case.children[name]
        if name[0] == COORDINATOR and case.finished is not None and not child.verdict:
            said = case.finished
            outcome = "done" if said.done else "failed"
            part = ProcessStatus(*full, alive=False, outcome=outcome, why=said.why, trace=said.trace, usage=said.usage)
        else:
            who = "The coordinator" if name[0] == COORDINATOR else ""
            part = ProcessStatus(*full, alive=False, outcome="lost", why=f"{who} {why}".strip(), fault=fault)
        case.dead[name] = short(part)
        if name[0] == COORDINATOR:
            for other in case.children.values():
                child_processes.ask(other, "was dismissed with its coordinator")
        if case.over:
            shutil.rmtree(case.scratch, ignore_errors=True)

    def _police(self, now: float) -> None:
        """Limits of memory and time."""
        living = [c for case in self._cases.values() for c in case.children.values() if c.alive]
        child_processes.patrol(living, self._spare)
        for child in living:
            if child.memory is not None and child.used > child.memory:
                bound = f"{child.memory / 2**30:.2f} GiB"
                child_processes.ask(child, f"used more memory than its limit of {bound} (--memory)", at_once=True)
        for case in self._cases.values():
            chief = case.children.get((COORDINATOR, 0))
            if chief is None or not chief.alive or case.door is None:
                continue
            if why := case.hours.verdict(now, case.door.trouble):
                child_processes.ask(chief, why)

    # -- what the master gets ------------------------------------------------------------------------------------

    def _beat(self) -> None:
        if self._line is None or self._line.channel.pending > MAX_DEBTS:
            return
        parts: list[ProcessStatus] = []
        doors: list[CoordinatorStatus] = []
        for case in self._cases.values():
            for name, child in case.children.items():
                if child.alive:
                    parts.append(ProcessStatus(case.job, case.attempt, *name))
            for name, part in case.dead.items():
                chief = name[0] == COORDINATOR
                shipping = chief and part.outcome == "done" and self._unshipped(case)
                parts.append(ProcessStatus(case.job, case.attempt, *name) if shipping else part)
            if case.door is not None:
                doors.append(case.door)
        own = sum(p.alive for p in parts)
        cores = os.cpu_count() or 1
        load = max(os.getloadavg()[0] - own, 0.0) / cores
        settings = self._settings
        beat = SlaveBeat(
            settings.name, self._boot, settings.slots, settings.address, round(load, 2), settings.memory,
            self._draining is not None, tuple(parts), tuple(doors),
        )  # fmt: skip
        try:
            self._send(fitted(beat, Limits().header - ROOM))
        except UsageError as error:
            self._say(str(error))

    def _files(self, case: JobAttempt) -> dict[str, int]:
        """What the master should have of this case, in bytes."""
        found = {"": case.log.length}
        finished = (COORDINATOR, 0) in case.dead and case.dead[COORDINATOR, 0].outcome == "done"
        if finished:
            with contextlib.suppress(OSError):  # user code may have removed anything
                found.update((p.name, p.stat().st_size) for p in sorted(case.result.iterdir()) if is_plain(p))
        return found

    def _unshipped(self, case: JobAttempt) -> bool:
        return any(case.shipped.get(file, 0) < size for file, size in self._files(case).items())

    def _ship(self, now: float) -> None:
        for case in list(self._cases.values()):
            if case.sent_at is not None and now - case.sent_at < SHIP_AGAIN:
                continue
            for file, size in self._files(case).items():
                have = case.shipped.get(file, 0)
                if have < size:
                    content = self._piece(case, file, have)
                    if content is None:
                        case.shipped[file] = size
                        continue
                    body = FileChunk(self._settings.name, case.job, case.attempt, file, have)
                    if self._send(body, (content,)):
                        case.sent_at = now
                    break

    def _piece(self, case: JobAttempt, file: str, offset: int) -> bytes | None:
        if not file:
            return case.log.read(offset, CHUNK)
        try:
            with os.fdopen(os.open(case.result / file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
                stream.seek(offset)
                return stream.read(CHUNK)
        except OSError:
            return None
