"""`flegel slave`: runs what the master orders on this host, and reports what it runs. Decides nothing about jobs.

It continues without a master: children are supervised, results are kept, and when a master answers again the next
heartbeat tells it everything.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import select
import signal
from collections.abc import Callable
from typing import Any

import msgspec

from flegel.cluster.master.message_budget import fitted
from flegel.cluster.slave import child_processes
from flegel.cluster.slave.attempt_processes import SLAVE_PAUSE_SECONDS, AttemptProcesses
from flegel.cluster.slave.attempts import COORDINATOR_KEY, Attempts
from flegel.cluster.slave.file_shipping import FileShipping
from flegel.cluster.slave.settings import SlaveSettings
from flegel.cluster.slave.slave_folder import check_folder, tidy
from flegel.cluster.transport.framing import HEADER_RESERVE_BYTES, Limits
from flegel.cluster.transport.protocol import (
    CoordinatorStatus,
    DrainWorkers,
    EndProcesses,
    FileReceived,
    ForgetProcesses,
    LaunchCoordinator,
    LaunchWorker,
    ProcessStatus,
    ResizeJob,
    SlaveBeat,
    SlaveLeaving,
    SlaveRefused,
    StopAtBarrier,
    WorkerEnded,
    check_name,
)
from flegel.cluster.transport.secure_client import SecureClient
from flegel.core.own_pauses import OwnPauses
from flegel.errors import FlegelError, PeerRefused, PeerSlow, ProtocolError, UsageError
from flegel.runtime import clock
from flegel.runtime.system.descendants import adopt_orphans
from flegel.runtime.system.signals import raise_lost_signal
from flegel.runtime.transport.poller import Poller

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0
"""Between two heartbeats; the master counts six missing ones as silence."""
MEASUREMENT_SECONDS = 0.5
"""Between two checks of the memory and the time of child processes."""
NO_ANSWER_NOTICE_SECONDS = 5.0
"""From its start until a slave logs that no master answers."""
MASTER_SILENCE_SECONDS = 15.0
"""Without an answer for so long, a slave logs it: 15 heartbeats, more than a busy master takes for its journal."""
ADMISSION_SECONDS = 2.0
"""After the first answer; a master refuses a second slave of one name within them: two heartbeats."""
REFUSAL_SECONDS = 10.0
"""Of refusals, after which a slave ends because another one has its name; an earlier process of it may be ending."""
MAX_PENDING_HEARTBEATS = 3
"""That may be unacknowledged; a master that comes back gets the current state, not every heartbeat that it missed."""


class SlaveDaemon:
    """The loop of a slave: its connection to the master, its heartbeats and the orders that it gets."""

    def __init__(self, settings: SlaveSettings, dial: Callable[[], SecureClient]) -> None:
        """Lock the folder, end processes that an earlier slave of this folder has left, and tidy its files. `dial`
        opens a new connection to the master."""
        self._settings, self._dial = settings, dial
        self._boot = secrets.token_hex(8)
        self._client: SecureClient | None = None
        self._dial_at = 0.0
        self._master_answered, self._complain_at = False, clock.now() + NO_ANSWER_NOTICE_SECONDS
        self._answered_since: float | None = None
        self._master_silent = False
        self._beat_at = self._measure_at = 0.0
        self._heard_at = clock.now()
        self._pauses = OwnPauses(SLAVE_PAUSE_SECONDS)
        self._drain_until: float | None = None
        self._reported_draining = False
        self._stopping = False
        self._refused_at: float | None = None
        """Since when the master has refused this slave."""
        self._refusal = ""
        self._wakeup_read, self._wakeup_write = os.pipe()
        os.set_blocking(self._wakeup_read, False)
        os.set_blocking(self._wakeup_write, False)
        self._lock = self._lock_folder()
        owner = str(settings.folder.resolve())
        adopt_orphans()
        left = child_processes.kill_leftovers(owner)
        if left:
            self._log(f"ended {left} processes that an earlier slave had left")
        tidy(settings.folder / "jobs")
        self.attempts = Attempts(settings.folder / "jobs")
        self.processes = AttemptProcesses(settings, self.attempts, owner)
        self._shipping = FileShipping(settings.name, self.attempts, self._send)

    def _lock_folder(self) -> int:
        """Lock the folder of this slave; an error where another slave uses it. The lock is held while the descriptor is
        open."""
        folder = self._settings.folder
        check_folder(folder)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise UsageError(
                f"Another slave uses {folder}; give a second slave on this host a --name of its own (and "
                "another --folder, where one is given)."
            ) from None
        return lock

    # -- life cycle ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until a signal: SIGTERM drains, SIGINT ends at once. Its child processes have ended when it returns."""
        signal.signal(signal.SIGTERM, lambda *_: self._drain())
        signal.signal(signal.SIGINT, lambda *_: self._stop())
        raise_lost_signal()
        self._log(f"slave {self._settings.name}: {self._settings.slots} slots, {self._settings.folder}")
        try:
            while not self._stopping:
                self._turn()
        finally:
            self._close()
        if self._refusal:
            raise UsageError(self._refusal)

    def _drain(self) -> None:
        """Take nothing new, let running jobs leave, then end."""
        if self._drain_until is None:
            self._drain_until = clock.now() + self._settings.drain
            self._wake()

    def _stop(self) -> None:
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wakeup_write, b"!")

    def _close(self) -> None:
        """End all processes, tell the master, and release folder and descriptors."""
        self.processes.close()
        if self._client is not None:
            with contextlib.suppress(FlegelError):
                self._client.send(SlaveLeaving(self._settings.name, self._boot))
                self._client.drain(1.0)
            self._client.close()
        self.attempts.close()
        os.close(self._lock)
        os.close(self._wakeup_read)
        os.close(self._wakeup_write)

    def _turn(self) -> None:
        """One turn of the loop: wait, then handle whatever is due."""
        self._connect(clock.now())
        self._wait()
        self.processes.update()
        self._receive_orders()
        now = clock.now()
        self._excuse(self._pauses.look(now), now)
        self._report_connection(now)
        self._end_if_abandoned(now)
        if now >= self._measure_at:
            self._measure_at = now + MEASUREMENT_SECONDS
            self.processes.enforce_limits(now)
        self._shipping.send_next(now)
        if self._drain_until is None:
            self.processes.keep_spare(now)
        self._beat_if_due(now)
        if self._drain_until is not None and (now > self._drain_until or all(a.over for a in self.attempts)):
            waiting = any(attempt.unshipped for attempt in self.attempts)
            self._stopping = now > self._drain_until or not waiting

    def _wait(self) -> None:
        """Wait until a message, output of a process or a signal comes, or the next thing is due."""
        now = clock.now()
        living = self.attempts.living()
        pipes = [fd for child in living for fd in child.pipes]
        due = min(self._beat_at, self._measure_at, now + 1.0)
        if any(child.inbox for child in living):
            due = now + 0.02  # a child has not read all of its input yet: look again soon
        if self._client is not None:
            poller = Poller(self._client.socket, [self._wakeup_read, *pipes])
            poller.wait(max(due - now, 0.005))
            poller.close()
        else:
            select.select([self._wakeup_read, *pipes], [], [], max(due - now, 0.005))
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup_read, 4096)

    def _log(self, text: str) -> None:
        _log.info(text)

    # -- the connection to the master ------------------------------------------------------------------------------

    def _connect(self, now: float) -> None:
        if self._client is None and now >= self._dial_at:
            self._dial_at = now + 1.0
            self._client = self._dial()
            self._shipping.restart()

    def _report_connection(self, now: float) -> None:
        """Log whether the master answers, when that changes: a slave keeps trying, and would seem to work without one.
        A slave whose name is refused is never logged as one that the master answers."""
        if self._client is None:
            return
        self._heard_at = max(self._heard_at, self._client.heard_at or self._heard_at)
        if self._master_answered:
            self._report_silence(now)
        elif self._client.answered:
            self._answered_since = now if self._answered_since is None else self._answered_since
            refused = self._refused_at is not None and now - self._refused_at <= 2 * REFUSAL_SECONDS
            if not refused and now - self._answered_since >= ADMISSION_SECONDS:
                self._master_answered = True
                self._log(f"the master at {self._client.address} answers")
        elif now >= self._complain_at:
            self._complain_at = float("inf")
            self._log(f"no connection to {self._client.address} yet, still trying: {self._client.trouble}")

    def _report_silence(self, now: float) -> None:
        """Log once when the master stops answering, and once when it answers again."""
        assert self._client is not None
        silent = now - self._heard_at > MASTER_SILENCE_SECONDS
        if silent and not self._master_silent:
            self._log(
                f"the master at {self._client.address} has not answered for {MASTER_SILENCE_SECONDS:.0f} s; jobs "
                "continue here, and this slave keeps trying"
            )
        elif self._master_silent and not silent:
            self._log(f"the master at {self._client.address} answers again")
        self._master_silent = silent

    def _excuse(self, away: float, now: float) -> None:
        """This slave was stopped for `away` seconds, or its clock jumped: no limit on the master or on draining counts
        them."""
        self._heard_at = min(self._heard_at + away, now)
        if self._drain_until is not None:
            self._drain_until += away
        if self._refused_at is not None:
            self._refused_at = min(self._refused_at + away, now)

    def _end_if_abandoned(self, now: float) -> None:
        """A slave that was placed for one launch does not outlive it."""
        limit = self._settings.abandon
        if limit is not None and now - self._heard_at > limit:
            self._log(f"the master has not answered for {limit:.0f} s, so this slave ends")
            self._stopping = True

    def _receive_orders(self) -> None:
        if self._client is None:
            return
        try:
            for order, frames in self._client.receive(0.0):
                self._handle(order, frames)
        except ProtocolError as error:
            self._log(f"a message of the master was not understood and is ignored: {error}")
        except PeerRefused as error:
            self._log(str(error))
            self._client.close()
            self._client, self._dial_at = None, clock.now() + 2.0

    def _send(self, body: msgspec.Struct, frames: tuple[bytes, ...] = ()) -> bool:
        """False where the master does not keep up."""
        if self._client is None:
            return False
        try:
            self._client.send(body, frames)
        except PeerSlow:
            return False
        return True

    # -- orders ----------------------------------------------------------------------------------------------------

    def _handle(self, order: Any, frames: tuple[bytes, ...]) -> None:
        """Carry out one order. Whatever is wrong with it, later ones are handled and running processes continue."""
        try:
            self._execute(order, frames)
        except Exception as error:  # noqa: BLE001 - one bad order must not end all that runs here
            why = f"slave {self._settings.name} could not execute it: {type(error).__name__}: {error}"
            self._log(f"{type(order).__name__} {getattr(order, 'job', '')}: {why}")
            if not isinstance(order, LaunchCoordinator | LaunchWorker):
                return
            attempt = self.attempts.find(order.job, order.attempt)
            if attempt is not None and isinstance(order, LaunchCoordinator):
                self.processes.refuse_coordinator(attempt, why)
            elif attempt is not None and isinstance(order, LaunchWorker):
                self.processes.refuse_worker(attempt, order, why)

    def _execute(self, order: Any, frames: tuple[bytes, ...]) -> None:
        """Carry out one order; the next heartbeat, which shows its effect, is sent at once."""
        if not isinstance(order, FileReceived):
            self._beat_at = 0.0
        try:
            check_name(getattr(order, "job", "x"), "job")
        except UsageError as error:
            self._log(f"an order was refused: {error}")
            return
        match order:
            case LaunchCoordinator():
                self.processes.start_coordinator(order, frames)
            case LaunchWorker():
                self.processes.start_worker(order)
            case EndProcesses():
                self.processes.end(order)
            case ForgetProcesses(processes=names):
                for name in names:
                    self.attempts.forget_process(name)
            case WorkerEnded() | ResizeJob() | StopAtBarrier() | DrainWorkers():
                self.processes.forward(order)
            case FileReceived():
                self._file_received(order)
            case SlaveRefused(why=why):
                self._refused(why, clock.now())

    def _refused(self, why: str, now: float) -> None:
        """Another slave has this name; after `REFUSAL_SECONDS` of refusals this one ends with all its processes."""
        if self._refused_at is None or now - self._refused_at > 2 * REFUSAL_SECONDS:
            self._refused_at = now
            self._log(why)
        elif now - self._refused_at > REFUSAL_SECONDS:
            self._refusal, self._stopping = why, True

    def _file_received(self, order: FileReceived) -> None:
        attempt = self.attempts.find(order.job, order.attempt)
        if attempt is not None:
            attempt.shipped[order.file] = order.size
            attempt.sent_at = None
            if not self.attempts.forget_if_complete(attempt) and not attempt.unshipped:
                self._beat_at = 0.0

    # -- heartbeats ------------------------------------------------------------------------------------------------

    def _beat_if_due(self, now: float) -> None:
        draining = self._drain_until is not None  # set by a signal at any moment, so it is read once
        changed, self.processes.changed = self.processes.changed, False
        if changed or now >= self._beat_at or draining != self._reported_draining:
            self._beat_at, self._reported_draining = now + HEARTBEAT_SECONDS, draining
            self._beat()

    def _beat(self) -> None:
        """Send all that this slave runs, and what has ended since the master recorded it. A coordinator that is done
        counts as running until the master has its files."""
        if self._client is None or self._client.channel.pending > MAX_PENDING_HEARTBEATS:
            return
        processes: list[ProcessStatus] = []
        coordinators: list[CoordinatorStatus] = []
        for attempt in self.attempts:
            for key, child in attempt.children.items():
                if child.alive:
                    processes.append(ProcessStatus(attempt.job, attempt.attempt, *key))
            for key, status in attempt.ended.items():
                shipping = key == COORDINATOR_KEY and status.outcome == "done" and attempt.unshipped
                processes.append(ProcessStatus(attempt.job, attempt.attempt, *key) if shipping else status)
            if attempt.status is not None:
                coordinators.append(attempt.status)
        own = sum(process.alive for process in processes)
        load = max(os.getloadavg()[0] - own, 0.0) / (os.cpu_count() or 1)
        settings = self._settings
        beat = SlaveBeat(
            settings.name,
            self._boot,
            settings.slots,
            settings.address,
            round(load, 2),
            settings.memory,
            self._drain_until is not None,
            tuple(processes),
            tuple(coordinators),
        )
        try:
            self._send(fitted(beat, Limits().header - HEADER_RESERVE_BYTES))
        except UsageError as error:
            self._log(str(error))
