"""One rank's part in the rounds of its site with other sites: when ranks move θ, and who exchanges it with the bucket.

The rank 0 of a generation leads its site. It announces a move in its report at one barrier, and at the next one the
move travels with the gradients, so all ranks make it at the same barrier or none does, whoever is lost meanwhile.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Sequence
from contextvars import copy_context
from typing import Any

import torch

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.errors import FlegelError, FlegelWarning, GroupReplaced, StorageError, UsageError
from flegel.runtime import clock
from flegel.torch.flexible.rank_settings import rank_settings
from flegel.torch.flexible.site import Site
from flegel.torch.flexible.site_exchange import Move
from flegel.torch.flexible.site_session import SiteSession

SILENT, ANNOUNCES, ADDS, REPLACES, ENDS, ENDS_ALONE, LEAVES = range(7)
"""What a leader says in its report; other ranks are silent."""
_LEFT = "The leader of this site, rank 0, cannot take part in the training of all sites; what it prints says why."


class SiteRounds:
    """Of one wrapped module."""

    def __init__(self, module: torch.nn.Module, site: Site) -> None:
        self.site = site
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        named += [(name, b) for name, b in module.named_buffers() if b.is_floating_point() and b.numel()]
        self._names, self._fields = [name for name, _ in named], [field for _, field in named]
        wide = any(field.dtype == torch.float64 for field in self._fields)
        self._dtype = torch.float64 if wide else torch.float32
        self.round = 0
        """The last round of all sites whose result is in θ; the same on all ranks."""
        self.has_begun = False
        """θ has been what all sites have in common; the same on all ranks."""
        self.ended = False
        """Training is over for this site; the same on all ranks."""
        self.agreed = False
        """And all sites that were there ended with this θ."""
        self._expects = True
        """The next barrier carries room for a move."""
        self._says = SILENT
        self._session: SiteSession | None = None
        self._opening: threading.Thread | None = None
        self._failed: BaseException | None = None
        """Why this leader cannot take part. Raised at a barrier, on all ranks: the next leader would fail likewise, and
        one that was frozen, and was replaced by a rank of its own site, learns there that it is excluded."""
        self._unreachable = ""
        """Why a leader that took over cannot open the bucket yet."""
        self._move: Move | None = None
        self._rests = self._told_alone = False
        self._patience = self._longest_reach = float("inf")
        """The times at which a leader at rest waits for the other sites, or for the bucket, no longer."""

    # -- who leads -----------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self._opening is not None

    def lead(self, leads: bool) -> None:
        """Members have changed. Whoever is rank 0 now opens the bucket, in a thread: the ranks train on meanwhile."""
        if leads and self._opening is None and not self.ended:
            theta, takes_over = self._theta(), self.has_begun
            opens = copy_context().run
            self._opening = threading.Thread(target=opens, args=(self._open, theta, takes_over), daemon=True)
            self._opening.start()
        elif not leads:
            self.close("left")

    def _open(self, theta: list[Array], takes_over: bool) -> None:
        session = self._opened(theta, takes_over)
        if session is not None and self._opening is threading.current_thread():
            self._session, self._unreachable = session, ""
        elif session is not None:  # this process leads no longer
            session.close("left")

    def _opened(self, theta: list[Array], takes_over: bool) -> SiteSession | None:
        """None where this leader cannot take part, or leads no longer. One that took over tries again while the bucket
        is away: its ranks train on."""
        while self._opening is threading.current_thread():
            try:
                return SiteSession(self.site, self._names, theta, takes_over)
            except StorageError as error:
                if not takes_over:
                    self._failed = error
                    return None
                if not self._unreachable:
                    told = f"{error} The ranks train on, and it is tried again."
                    print(f"flegel: site {self.site.spec.group}: {told}", file=sys.stderr)
                self._unreachable = str(error)
                clock.sleep(active().groups.max_retry_delay_seconds)
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that trains
                self._failed = error
                return None
        return None

    def await_first(self) -> None:
        """At the beginning of a training the first barrier of a leader brings what the sites have in common, where the
        bucket answers in time."""
        until = clock.now() + rank_settings().site_start_seconds
        while self.leads and not self.has_begun and self._move is None and clock.now() < until:
            self._hear()
            if self._failed is not None:
                return
            clock.sleep(rank_settings().site_poll_seconds)

    def close(self, state: str) -> None:
        """This process leads no longer."""
        session, self._session, self._opening, self._move = self._session, None, None, None
        self._failed, self._unreachable = None, ""
        if session is not None:
            session.close(state)

    def forget(self) -> None:
        """This process was excluded, and begins without state."""
        self.close("left")
        self.round, self.has_begun, self._expects, self._says = 0, False, True, SILENT

    # -- a barrier -----------------------------------------------------------------------------------------

    def report(self) -> float:
        """What this rank says at the barrier that begins. Called before `part`."""
        self._hear()
        self._says = SILENT
        move = self._move
        if self._failed is not None:
            self._says = LEAVES
        elif move is not None:
            self._says = (ENDS if move.ends else REPLACES if move.replaces else ADDS) if self._expects else ANNOUNCES
        elif self._rests and self._gives_up():
            self._says = ENDS_ALONE
        return float(self._says)

    def part(self) -> torch.Tensor | None:
        """What travels with the gradients: the move of the leader, and zeros of all others, so their sum is the move
        to the last bit. The round stands behind it."""
        if not self._expects:
            return None
        flat = torch.zeros(sum(field.numel() for field in self._fields) + 1, dtype=self._dtype)
        if self._says in (ADDS, REPLACES, ENDS) and self._move is not None:
            values = [torch.from_numpy(value.copy()).reshape(-1).to(self._dtype) for value in self._move.values]
            flat = torch.cat([*values, torch.tensor([float(self._move.round)], dtype=self._dtype)])
        return flat

    def settle(self, said: Sequence[float], part: torch.Tensor | None) -> None:
        """All ranks hold this barrier: make the move that it brings."""
        what = int(max(said, default=SILENT))
        self._expects = what == ANNOUNCES
        if what == LEAVES:
            failed = self._failed or UsageError(_LEFT)
            self.close("left")
            raise failed
        if what in (ADDS, REPLACES, ENDS) and part is not None:
            self._make(part, adds=what == ADDS)
            self.has_begun = True
            self._move = None
        self.agreed = self.agreed or what == ENDS
        self.ended = self.ended or what in (ENDS, ENDS_ALONE)
        if self.ended and self.leads:
            self.close("finished")

    def _make(self, part: torch.Tensor, adds: bool) -> None:
        at = 0
        with torch.no_grad():
            for field in self._fields:
                values = part[at : at + field.numel()].view_as(field).to(field.device, field.dtype)
                at += field.numel()
                if adds:
                    field.add_(values)
                else:
                    field.copy_(values)
        self.round = int(part[at])

    # -- what the leader does ------------------------------------------------------------------------------

    def _theta(self) -> list[Array]:
        dtype = self._dtype
        return [field.detach().to("cpu", dtype, copy=True).numpy() for field in self._fields]

    def look(self) -> None:
        """An iteration begins: a sign of life."""
        if self._session is not None:
            self._session.look()

    def _hear(self) -> None:
        """Take in news until one of them is a move, which the ranks make before the next is looked at."""
        session = self._session
        if session is None or self._failed is not None:
            return
        session.look()
        while self._move is None and (news := session.next_news()) is not None:
            self._move = session.exchange.heard(news, self._theta, clock.now())
        if session.exchange.fenced:
            self._failed = GroupReplaced(session.exchange.fenced)
        session.send()
        self._tell(session)

    def _tell(self, session: SiteSession) -> None:
        for text in session.exchange.told:
            print(f"flegel: site {self.site.spec.group}: {text}.", file=sys.stderr)
        session.exchange.told.clear()

    def at_barrier(self, samples: int, ranks: int) -> None:
        """All ranks have stepped. Nothing is sent while a move is on its way: θ has not made it yet."""
        self._hear()
        session = self._session
        if session is not None:
            session.exchange.at_barrier(samples, ranks, self._theta, self._move is not None, clock.now())
            self._sent(session)

    def _sent(self, session: SiteSession) -> None:
        """Pass on what the exchange has for the other sites; θ that is not finite must not go on unseen."""
        session.send()
        if session.exchange.not_finite:
            self._failed = FlegelError(session.exchange.not_finite)

    # -- the end -------------------------------------------------------------------------------------------

    def rest(self, patience: float) -> None:
        """The ranks have trained all they will."""
        limit = active().groups.stalled_after_silences * self.site.spec.group_timeout
        self._rests, self._patience, self._longest_reach = True, clock.now() + patience, clock.now() + limit

    def wait(self) -> None:
        """Before a barrier of ranks at rest: the leader waits a moment for news, and contributes where a round is
        open."""
        until = clock.now() + rank_settings().site_rest_seconds
        while self.leads and clock.now() < until:
            self._hear()
            if self._move is not None or self._failed is not None or self._gives_up():
                return
            if self._session is not None:
                self._session.exchange.rest(self._theta, clock.now())
                self._sent(self._session)
            clock.sleep(rank_settings().site_poll_seconds)

    def _gives_up(self) -> bool:
        """The leader does not wait for the other sites any longer."""
        if not self.leads:
            return False
        why = self._session.exchange.why_ended if self._session is not None else ""
        if not why and self._unreachable and clock.now() > self._longest_reach:
            why = self._unreachable.removesuffix(".")
        if not why and clock.now() > self._patience:
            met = self._session is not None and len(self._session.exchange.groups) > 1
            why = "they still train" if met else "no other site was in the last round"
        if why:
            if not self._told_alone:
                warnings.warn(f"This site ended without the others: {why}.", FlegelWarning, stacklevel=2)
            self._told_alone = True
        return bool(why)

    # -- for others ----------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Rounds, groups and bytes, on the rank that leads; empty on others."""
        return self._session.summary() if self._session is not None else {}

    def state(self) -> dict[str, Any]:
        """What a rank needs that joins."""
        return {"round": self.round, "has_begun": self.has_begun, "expects": self._expects}

    def load_state(self, state: dict[str, Any]) -> None:
        self.round, self.has_begun, self._expects = state["round"], state["has_begun"], state["expects"]
