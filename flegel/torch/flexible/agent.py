"""The thread of a process that keeps it in touch with others: signs of life, proposals, connections of a generation.

All of it goes through a store of PyTorch (a TCPStore as a rule); decisions are `membership.py`'s. Works while the
process computes, so a slow rank is told from a lost one. Never sends gradients.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import torch
import torch.distributed as dist

from flegel.errors import FlegelError, UsageError
from flegel.runtime import clock
from flegel.torch.flexible.connection import Connection, reap
from flegel.torch.flexible.membership import (
    Generation,
    MembershipLimits,
    Observation,
    Seen,
    SignsOfLife,
    is_abandoned,
    next_generation,
)
from flegel.torch.flexible.rank_settings import rank_settings


class RankExcluded(FlegelError):
    """This process was silent for too long, so the others went on without it. `model.begin(…)` joins again."""


class TrainingEnded(FlegelError):
    """All others have left: nobody can give this process the training's state."""


def open_store(address: str) -> Callable[[], dist.Store]:
    """Makes clients of the store at this address: each thread has one of its own, because one that waits for a key
    blocks all users of its connection."""
    kind, _, place = address.partition("://")
    if kind == "tcp" and ":" in place:
        host, port = place.rsplit(":", 1)
        limit = clock.span(rank_settings().store_operation_seconds)
        return lambda: dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=limit)
    raise UsageError(f"{address!r} is no address of a store: give tcp://HOST:PORT, where `flegel ddp-store` runs.")


class Agent:
    """One membership of one process: from its wish to join until it leaves or is excluded."""

    def __init__(
        self,
        connect: Callable[[], dist.Store],
        run: str,
        limits: MembershipLimits,
        device: torch.device | None = None,
        of_site: bool = False,
    ) -> None:
        """`device`: a GPU whose sums go by NCCL. `of_site`: other sites know the training's state, so that ranks begin
        again where all were lost."""
        self._device, self._of_site = device, of_site
        self._connect, self._prefix, self._limits = connect, f"flegel/heal/{run}", limits
        self._store = self._client()
        self.own = int(self._store.add("identities", 1))
        self._changed, self._born = threading.Condition(), clock.now()
        self._latest, self._groups = Generation(), dict[int, Connection]()
        self._former: frozenset[int] = frozenset()
        self._building = 0
        self._wants, self._beat = "join", 0
        self._waits: tuple[int, float] | None = None
        self._compiling, self._signing = False, threading.Lock()
        self.entered = 0
        """The generation in which this process trains."""
        self._known: set[int] = set()
        """Identities whose signs are read."""
        self._signs = SignsOfLife(self._born)
        self._gone: set[int] = set()
        self._failed: dict[int, float] = {}
        self._ended: BaseException | None = None
        self._sign()
        self._membership = threading.Thread(target=self._run, name="flegel-membership", daemon=True)
        self._connecting: list[threading.Thread] = []
        self._membership.start()

    def _client(self) -> dist.Store:
        return dist.PrefixStore(self._prefix, self._connect())

    # -- for the training's thread ---------------------------------------------------------------------------

    def wait_for(self, position: int) -> None:
        """This process waits for others at a position of the log."""
        self._waits = (position, clock.now())

    def goes_on(self) -> None:
        self._waits = None

    def compiles(self, begins: bool) -> None:
        """PyTorch begins to compile, or has ended. The beginning is told at once: this process's own thread may not get
        Python's lock for a while."""
        self._compiling = begins
        if begins:
            with contextlib.suppress(RuntimeError, dist.DistError):
                self._sign(self._client())

    def check(self) -> None:
        """Raises what has ended this membership, if anything."""
        if self._ended is not None:
            raise self._ended

    def is_broken(self, number: int) -> bool:
        """Whether messages of a generation cannot be completed any more."""
        return number <= self._latest.broken

    def prepared(self) -> int:
        """The latest generation whose members this process is connected to."""
        with self._changed:
            return max(self._groups, default=0)

    def await_generation(self, after: int) -> tuple[Generation, Connection]:
        """The newest one above this number, once it is connected; the store's answer decides about its end."""
        rules = rank_settings()
        with self._changed:
            while True:
                self.check()
                found, number = self._groups.get(self._latest.number), self._latest.number
                if found is not None and number > after:
                    for old in [n for n in self._groups if n < number]:
                        self._groups.pop(old).leave()
                    return self._latest, found
                if not self._latest.number and clock.now() - self._born > rules.first_meeting_seconds:
                    raise FlegelError(
                        f"Fewer than {self._limits.ranks} ranks came within {rules.first_meeting_seconds:.0f} s: "
                        "start all of them with the same address and run, or give join(…, ranks=…) a smaller number."
                    )
                self._changed.wait(rules.sign_of_life_seconds)

    def report_failure(self, number: int) -> None:
        """A message failed in this generation."""
        with contextlib.suppress(RuntimeError, dist.DistError):
            self._client().set(f"failed/{number}", "1")

    def propose(self, generation: Generation) -> None:
        """The store keeps the first proposal of each number."""
        with contextlib.suppress(RuntimeError, dist.DistError):
            self._client().compare_set(f"generation/{generation.number}", "", generation.to_text())

    def mark_begun(self) -> None:
        """From now on the training has a state that could be lost."""
        self._client().set("begun", "1")

    def has_begun(self) -> bool:
        return bool(self._client().check(["begun"]))

    def was_left(self) -> bool:
        """Whether a rank has ended its training, so that who finds no state has come too late."""
        return bool(self._client().check(["left"]))

    def mark_ended(self) -> None:
        """The training of this site is over: who comes later does not begin it again."""
        with contextlib.suppress(RuntimeError, dist.DistError):  # without the store nobody comes later
            self._client().set("ended", "1")

    def has_ended(self) -> bool:
        return bool(self._client().check(["ended"]))

    def enter(self, number: int) -> None:
        self._wants, self.entered = "train", number

    def leave(self) -> None:
        """The training has ended for this process."""
        if self._ended is None:
            self._wants = "leave"
            self._ended = FlegelError("This process has left the training.")
            with contextlib.suppress(RuntimeError, dist.DistError):
                self._client().set("left", "1")
                self._sign(self._client())
        with self._changed:
            self._changed.notify_all()
            while self._groups:
                self._groups.popitem()[1].leave()
        self._await_threads()

    def _await_threads(self) -> None:
        """A thread that comes back from PyTorch's store while Python is finalized aborts the process (up to Python
        3.13), after all training was done. One that connects may wait for a rank that has left, which does not come:
        it stays where it is."""
        self._membership.join(rank_settings().store_operation_seconds)
        limit = clock.now() + self._limits.silence
        for one in self._connecting:
            one.join(max(0.0, limit - clock.now()))

    # -- in a thread of its own ------------------------------------------------------------------------------

    def _run(self) -> None:
        """Until the end. Whatever ends this thread ends the membership, and is raised where the training waits: nobody
        else would notice that signs of life have stopped."""
        try:
            self._keep_in_touch()
        except (RuntimeError, dist.DistError) as error:
            self._end(
                FlegelError(
                    f"The store at which ranks meet is gone ({str(error).splitlines()[0][:120]}): start it again, "
                    "and all ranks from a checkpoint."
                )
            )
        except Exception as error:  # noqa: BLE001 - raised in the training's thread
            self._end(error)

    def _keep_in_touch(self) -> None:
        """Sign that this process lives, see who else does, propose or follow the next generation."""
        rules = rank_settings()
        while self._ended is None:
            self._sign()
            view = self._look(clock.now())
            self._follow()
            if is_abandoned(self.own, view, self._limits) and (error := self._why_abandoned(view)) is not None:
                self._end(error)
                return
            reap()
            proposal = next_generation(self.own, view, self._limits)
            if proposal is not None and proposal.number == self._latest.number + 1:
                self._store.compare_set(f"generation/{proposal.number}", "", proposal.to_text())
                self._follow()
            with self._changed:
                self._changed.wait(
                    rules.urgent_sign_of_life_seconds if self._is_urgent() else rules.sign_of_life_seconds
                )

    def _why_abandoned(self, view: Observation) -> FlegelError | None:
        """Why a process that nobody can give a state does not go on waiting; None where ranks may begin again."""
        longest = rank_settings().first_meeting_seconds
        if not view.can_begin_again:
            return TrainingEnded("The training has ended: all its ranks have left it, or are lost.")
        if clock.now() - self._born > longest:
            return FlegelError(
                f"All ranks of this site were lost, and fewer than {self._limits.ranks} came within {longest:.0f} s to "
                "begin again: start all of them, or give join(…, ranks=…) a smaller number."
            )
        return None

    def _is_urgent(self) -> bool:
        """Ranks wait for the next generation."""
        return any(number > self._latest.broken for number in self._failed) or (
            self._building > max(self._groups, default=0) and self._latest.broken == self._latest.number - 1
        )

    def _sign(self, store: dist.Store | None = None) -> None:
        """Write this process's sign of life into the store, from one thread at a time, so the last one is the newest.
        `store`: another connection than that of this process's own thread."""
        with self._signing:
            self._beat += 1
            waits = self._waits
            sign = f"{self._beat} {self._wants} {waits[0] if waits else -1} {int(self._compiling)}"
            (store or self._store).set(f"alive/{self.own}", sign)

    def _look(self, now: float) -> Observation:
        """Read the signs of life of all other processes."""
        count = int(self._store.add("identities", 0))
        for identity in range(1, count + 1):
            known = identity in self._known or identity in self._gone
            if not known and self._store.check([f"alive/{identity}"]):
                self._known.add(identity)
        self._signs.look(now, self._limits)
        known_ones = sorted(self._known)
        seen: dict[int, Seen] = {}
        for identity, value in zip(known_ones, self._store.multi_get([f"alive/{i}" for i in known_ones]), strict=True):
            try:
                _, wants, arrived, compiling = value.decode().split()
            except ValueError:
                raise FlegelError(
                    f"Process {identity} writes its signs of life in another way: start all ranks with the same "
                    "version of Flegel."
                ) from None
            seen[identity] = self._signs.read(identity, value, wants, int(arrived), compiling == "1")
        self._forget_the_long_gone(seen)
        waits, latest = self._waits, self._latest
        return Observation(
            latest,
            seen,
            self.entered,
            self._failure(latest, now),
            now - waits[1] if waits else 0.0,
            waits[0] if waits else -1,
            self._former,
            self._of_site and self.own not in latest.members and not self._store.check(["ended"]),
        )

    def _forget_the_long_gone(self, seen: dict[int, Seen]) -> None:
        """Processes that ended long ago are asked no more; identities are not used again."""
        for identity, one in seen.items():
            if identity not in self._latest.members and one.silent > 10 * self._limits.silence:
                self._known.remove(identity)
                self._signs.forget(identity)
                self._gone.add(identity)

    def _failure(self, latest: Generation, now: float) -> float | None:
        """Seconds since a message failed in a generation that is not known to be broken."""
        for number in range(latest.broken + 1, latest.number + 1):
            if number not in self._failed and self._store.check([f"failed/{number}"]):
                self._failed[number] = now
        open_ = [at for number, at in self._failed.items() if number > latest.broken]
        return now - min(open_) if open_ else None

    def _follow(self) -> None:
        """The newest generation; connections are made in a thread, because a member may be lost meanwhile."""
        while self._store.check([f"generation/{self._latest.number + 1}"]):
            text = self._store.get(f"generation/{self._latest.number + 1}")
            with self._changed:
                was_member = self.own in self._latest.members
                self._latest = Generation.from_text(text)
                self._former |= frozenset(self._latest.members)
                self._changed.notify_all()
            if was_member and self.own not in self._latest.members:
                self._end(
                    RankExcluded(
                        f"The other ranks went on without this one at generation {self._latest.number} "
                        f"({self._latest.reason}): call model.begin(…) again to rejoin, or start the process again."
                    )
                )
                return
        latest = self._latest
        if self.own in latest.members and self._building < latest.number:
            self._building = latest.number
            self._connecting = [one for one in self._connecting if one.is_alive()]
            self._connecting.append(
                threading.Thread(target=self._build, args=(latest,), name="flegel-connect", daemon=True)
            )
            self._connecting[-1].start()

    def _build(self, generation: Generation) -> None:
        """Connections between all members: a gloo backend with a prefix of its own in the store."""
        limit = max(self._limits.timeout, 4 * self._limits.silence)
        try:
            store = dist.PrefixStore(f"connect/{generation.number}", self._client())
            rank = generation.members.index(self.own)
            group = Connection(store, rank, len(generation.members), limit, self._device)
        except (RuntimeError, dist.DistError):
            self.report_failure(generation.number)
            return
        with self._changed:
            if self._latest.number == generation.number and self._ended is None:
                self._groups[generation.number] = group
                self._changed.notify_all()
                return
        group.leave()

    def _end(self, error: BaseException) -> None:
        with self._changed:
            self._ended = self._ended or error
            self._changed.notify_all()
