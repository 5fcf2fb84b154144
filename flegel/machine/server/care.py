"""The servers of a job: started, watched, replaced; who holds which slice when one is lost or joins. Pure.

A lost server's slices go to the backups that hold their copies. These say which op their copy is after; the ops behind
it are sent again from the log, and workers push the reports again that are not stable. So the fold that was under way
is done with the same bits, and nothing is read from a checkpoint. Slices that no living server has come from the
coordinator's mirror. From then on all owners share one account: copies have totals only.

A server that joins holds copies first, made in the background; the map changes between two folds. A server that is to
leave keeps its slices until others have copies of all of them; then the map changes without it, and its process ends.
"""

from __future__ import annotations

from typing import Any

import msgspec

from flegel.configuration.active import active
from flegel.errors import AlgorithmError, WorkerLost
from flegel.machine.coordinator.events import (
    Command,
    Event,
    EvictWorker,
    FoldFinished,
    FromWorker,
    Milestone,
    Note,
    StartWorker,
    Timeouts,
    WorkerDied,
    WorkerJoined,
)
from flegel.machine.server.assignment import after_loss, copies_first
from flegel.machine.server.cutting import Cutting
from flegel.machine.server.events import ScaleServers
from flegel.machine.server.group import ServerGroup
from flegel.machine.server.network_plan import NetworkPlan
from flegel.messages import WorkerFailed
from flegel.plan.placement.assignment import first_map, levelled
from flegel.plan.placement.server_count import CountChange, ServerCount
from flegel.plan.placement.slice_map import SliceMap
from flegel.plan.placement.snapshot import PlacementSnapshot, ServerSnapshot
from flegel.server_messages import (
    AbandonFold,
    AnswerSeen,
    ChangeAccounts,
    CombinedSummary,
    FoldSlices,
    ServeJob,
    ServerMap,
    ServerReady,
    SlicesFolded,
    SlicesStable,
    SlicesTaken,
    SliceSummaries,
    TransfersSeen,
)

FIRST_SERVER = 960
"""Servers have the numbers from here on; a cluster has at most 1,024 processes."""
MAX_SERVERS = 64  # of a job: their numbers fit below 1,024
REMEMBERED_RECOVERIES = 100
"""Recoveries from losses."""


def is_server(number: int) -> bool:
    """Whether this is the number of a server, not of a worker."""
    return FIRST_SERVER <= number < FIRST_SERVER + MAX_SERVERS


class ServerCare:
    """The servers of one job, which are processes numbered from `FIRST_SERVER`, above those of all workers. `take`
    returns commands; events for the coordinator come from `handle`."""

    def __init__(
        self,
        group: ServerGroup,
        serve: ServeJob,
        count: int,
        replicas: int,
        timeouts: Timeouts,
        replace: bool = True,
        network: NetworkPlan | None = None,
        cutting: Cutting | None = None,
        count_rule: ServerCount | None = None,
    ) -> None:
        """`replicas`: copies of each slice, as far as there are servers for them. `network`: what is known of the
        links; None where loads are to be the same. `cutting`: how θ is to be cut, asked after each fold; None: as it
        is. `count_rule`: decides how many servers there are; None: whoever asks for another number."""
        self._cutting = cutting
        self._count_rule = count_rule
        self._optional: set[int] = set()
        """Servers that the rule asked for and that have not been up: where they cannot start, the job has fewer."""
        self._began_at = 0.0
        self._ordered_at: float | None = None
        """When the fold under way was ordered."""
        self._folded_at: float | None = None
        """When the last fold was done; None before it, and where servers came or went since."""
        self.network = network
        self.group, self._serve, self._replicas, self._replace = group, serve, replicas, replace
        self._timeouts = timeouts
        self.wanted = tuple(range(FIRST_SERVER, FIRST_SERVER + count))
        """Servers that the job should have; one that is up and not among them leaves."""
        self._starting: dict[int, float] = {}
        """By server that is not up yet: when it was started."""
        self._live: dict[int, str] = {}
        """Address of each server that is up."""
        self._heard_at: dict[int, float] = {}
        self._tries: dict[int, int] = {}
        """By server: starts since one succeeded."""
        self._losses: dict[int, int] = {}
        """By server: how often it was lost after a start that succeeded, without a fold in between."""
        self._workers: set[int] = set()
        """Workers that have loaded: they are told of each map."""
        self._map: ServerMap | None = None
        """Who holds which slice now; None until all servers are up."""
        self._stable: dict[int, int] = {}
        """By slice: the last op that its copies have, too."""
        self._unsure: set[int] = set()
        """Workers whose last report may be missing at a server that took a slice over since."""
        self._gone: set[int] = set()
        """Workers that are lost."""
        self._goal: SliceMap | None = None
        """Where slices are to be as soon as copies are complete."""
        self.lost = self._joins = self._left = 0
        self._lost_at: float | None = None
        """When the first server was lost since the last fold."""
        self._recoveries: list[float] = []
        """Seconds from losses to the end of the next fold."""
        self.notes: list[str] = []

    @property
    def most(self) -> int:
        """So many servers can each have a slice, however θ is cut."""
        return self.group.cuts_into(MAX_SERVERS).count if self._cutting else min(self.group.cuts.count, MAX_SERVERS)

    @property
    def ready(self) -> bool:
        return self._map is not None

    def concerns(self, event: Event) -> bool:
        if isinstance(event, ScaleServers):
            return True
        if isinstance(event, FromWorker) and isinstance(event.body, TransfersSeen):
            return True
        return isinstance(event, FromWorker | WorkerDied | WorkerJoined) and is_server(event.worker)

    # -- life cycle ----------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        self._began_at = now
        for number in self.wanted:
            self._start(number, now)

    def _start(self, number: int, now: float) -> None:
        self._tries[number] = self._tries.get(number, 0) + 1
        self._starting[number] = now
        self._command(StartWorker(number))

    def handle(self, event: Event, now: float) -> list[Event]:
        """What happened to a server; returns what the coordinator is to hear."""
        match event:
            case ScaleServers(servers):
                self._scale(servers, now)
            case WorkerJoined(number) if number in self._starting:
                self._heard_at[number] = now
                self.group.out.send(number, self._serve)
            case WorkerDied(number, why):
                self._lose(number, why, now)
            case FromWorker(number, TransfersSeen(transfers)):
                if self.network is not None:
                    self.network.seen(transfers)
            case FromWorker(number, body, arrays):
                self._heard_at[number] = now
                return self._answer(number, body, arrays, now)
        return []

    def _answer(self, number: int, body: Any, arrays: tuple[Any, ...], now: float) -> list[Event]:
        """What a server says; events for the coordinator where a fold or a recovery ended by it."""
        match body:
            case ServerReady(address, host) if number in self._starting:
                if self.network is not None:
                    self.network.runs_on(number, host)
                del self._starting[number]
                self._live[number] = address
                self._tries[number] = 0
                self._optional.discard(number)
                self._joined(number)
            case SlicesFolded():
                if body.paced:
                    self.group.out.send(number, AnswerSeen())
                self._losses[number] = 0
                return self._settle(self.group.folded(body, arrays), now)
            case SliceSummaries():
                self.group.combine(body, arrays)
            case SlicesTaken():
                return self._settle(self._taken(number, body), now)
            case SlicesStable():
                self._note_stable(body)
            case WorkerFailed(where=where, error=error, trace=trace):
                raise AlgorithmError(f"{error} (server {number - FIRST_SERVER}, {where})", trace)
        return []

    def look(self, now: float) -> None:
        """Once a second: who is silent, who does not start?"""
        for number in [n for n in self._live if now - self._heard_at[n] > self._timeouts.silence]:
            self._lose(number, f"was silent for {self._timeouts.silence:g} s", now)
        for number in [n for n, since in self._starting.items() if now - since > self._timeouts.start]:
            self._lose(number, f"did not start within {self._timeouts.start:.0f} s", now)
        if self._count_rule is not None and self._map is not None:
            self._follow_count(self._count_rule.at(now - self._began_at, len(self.wanted)), now)

    def ordered(self, now: float) -> None:
        """Something was handled; a fold may have been ordered by it."""
        if self.group.pending is None:
            self._ordered_at = None
        elif self._ordered_at is None:
            self._ordered_at = now

    def finish(self) -> None:
        """The job is over."""
        for number in (*self._live, *self._starting):
            self._command(EvictWorker(number, "is not needed any more", gently=True))

    def take(self) -> list[Command]:
        """What is to be done and sent."""
        commands, self.group.out.commands = self.group.out.commands, []
        return commands

    def _command(self, command: Command) -> None:
        self.group.out.commands.append(command)

    def snapshot(self) -> PlacementSnapshot | None:
        """What observers see of the servers; None before the servers are ready."""
        if self._map is None:
            return None
        network, loads = self.network, self._assignment().loads()
        servers = tuple(
            ServerSnapshot(number - FIRST_SERVER, loads.get(number, 0), network.rate(number) if network else 0.0)
            for number in self._order()
        )
        recoveries = tuple(round(seconds, 4) for seconds in self._recoveries)
        found = PlacementSnapshot(
            servers,
            self.group.cuts.count,
            self._map.version,
            lost=self.lost,
            joined=self._joins,
            left=self._left,
            wanted=len(self.wanted),
            most=self.most,
            recoveries=recoveries,
        )
        if network is None:
            return found
        cost, best = network.slice_cost(len(self._workers)), network.best_slice(len(self._workers))
        return msgspec.structs.replace(
            found,
            matrix=network.matrix(),
            reasons=tuple(network.reasons),
            moves=network.moves,
            slice_cost=cost or 0.0,
            best_slice=best,
        )

    # -- workers -------------------------------------------------------------------------------------------

    def worker_loaded(self, worker: int) -> None:
        self._workers.add(worker)
        self._gone.discard(worker)
        if self._map is not None:
            self.group.out.send(worker, self._map)

    def worker_gone(self, worker: int) -> None:
        self._workers.discard(worker)
        self._gone.add(worker)
        self.give_up_hopeless()

    def give_up_hopeless(self) -> None:
        """A slice was taken over, and a worker whose report it may lack is gone: the fold would wait for ever."""
        pending = self.group.pending
        if pending is None or self.group.log[pending.op].abandoned:
            return
        if self._unsure & self._gone & {worker for worker, _ in pending.reports}:
            self.group.log[pending.op].abandoned = True
            for server in self._live:
                self.group.out.send(server, AbandonFold(pending.op))

    def _settle(self, events: list[Event], now: float) -> list[Event]:
        """A fold may be done: what waited for that."""
        if self.group.pending is None:
            if any(isinstance(event, FoldFinished) for event in events):
                self._unsure.difference_update(self.group.last_folded)
                if self._lost_at is not None:
                    self._recoveries, self._lost_at = (
                        [*self._recoveries, now - self._lost_at][-REMEMBERED_RECOVERIES:],
                        None,
                    )
                self._follow_plan()
                self._cut_anew_where_wanted()
                self._count_anew(now)
            self._move_to_goal()
        return events

    def _count_anew(self, now: float) -> None:
        """After a fold: whether so many servers are the right number. Folds while servers come or go say nothing."""
        ordered, before, rule = self._ordered_at, self._folded_at, self._count_rule
        self._ordered_at = None
        steady = self._goal is None and self._live.keys() == set(self.wanted)
        self._folded_at = now if steady else None
        if rule is None:
            return
        self._follow_count(rule.at(now - self._began_at, len(self.wanted)), now)
        if steady and before is not None and ordered is not None:
            self._follow_count(rule.after_fold(now - ordered, now - before, len(self.wanted), self.most), now)

    def _follow_count(self, change: CountChange | None, now: float) -> None:
        """The rule's number, as far as θ can be cut into so many slices."""
        if change is None:
            return
        self._command(Note(f"servers: {change.reason}"))
        known = set(self.wanted)
        self._scale(min(change.servers, self.most), now)
        self._optional |= set(self.wanted) - known

    def _follow_plan(self) -> None:
        """Ask after each fold whether the measured rates call for another map of slices."""
        if self.network is None:
            return
        busy = self._goal is not None or self._live.keys() != set(self.wanted)
        decision = self.network.after_fold(self._assignment(), len(self._workers), self._replicas, busy)
        if decision is not None and decision.moves:
            self._command(Note(f"servers: {decision.reason}"))
            self._head_for(decision.chosen)

    def _cut_anew_where_wanted(self) -> None:
        """Other slices, where each server could not have one, or where another size makes rounds shorter."""
        servers = self._staying()
        if not self.group.may_be_cut_anew or (self._starting and self._map is not None):
            return
        if self._cutting is None:
            return
        cuts = self._cutting.anew(self.group.cuts, len(servers), len(self._workers), self._replicas, self.network)
        if cuts.slices == self.group.cuts.slices:
            return
        self._command(Note(f"servers: θ is cut into {cuts.count} slices, {self.group.cuts.count} before"))
        self._goal = None
        self.group.cut_anew(cuts)
        if self.network is not None:
            self.network.cut_anew(cuts.sizes)
        shares = self.network.shares(servers, len(self._workers)) if self.network is not None else None
        self._publish(first_map(cuts.sizes, servers, self._replicas, shares))
        for server in servers:
            self.group.hand_out(server, self._assignment().of_server(server), known=True)
        self._unsure |= self._workers | self._gone
        self._dismiss_leaving()

    def _staying(self) -> list[int]:
        """Servers that are up and do not leave; all that are up where only those are."""
        return [number for number in self._order() if number in self.wanted] or self._order()

    def _levelled(self) -> SliceMap:
        """Loads as the links ask for, where these are known; otherwise the same. Who leaves has none, unless nobody
        else is up."""
        servers = self._staying()
        shares = self.network.shares(servers, len(self._workers)) if self.network is not None else None
        return levelled(self._assignment(), servers, self._replicas, shares)

    # -- the map -------------------------------------------------------------------------------------------

    def _joined(self, number: int) -> None:
        """A server is ready. Before the first map: once all are, the map is published, and every server gets its slices
        from the coordinator. Later: it gets copies and then slices by a new plan; all slices where no other server that
        had some is up."""
        if self._map is None:
            self._begin_when_all_are_up()
            return
        self.notes.append(f"server {number - FIRST_SERVER} joined")
        self._joins += 1
        self._command(Milestone("server joined"))
        if not set(self._assignment().servers) & (set(self._live) - {number}):
            self._recover(all_lost=True)
        else:
            self._head_for(self._levelled())

    def _begin_when_all_are_up(self) -> None:
        """The first map, and with it the slices to their servers."""
        if self._live.keys() == set(self.wanted):
            self._publish(first_map(self.group.cuts.sizes, self._order(), self._replicas))
            for server in self._live:
                self.group.hand_out(server, self._assignment().of_server(server), known=True)

    def _scale(self, count: int, now: float) -> None:
        """Have so many servers from now on: start the missing ones, or let those with the highest numbers leave."""
        if not 1 <= count <= self.most:
            self._command(Note(f"{count} servers: this job can have 1 to {self.most}; it keeps {len(self.wanted)}"))
            return
        if count == len(self.wanted):
            return
        self._command(Note(f"servers: from {len(self.wanted)} to {count}"))
        known = [*self.wanted, *(number for number in self._order() if number not in self.wanted)]
        free = [number for number in range(FIRST_SERVER, FIRST_SERVER + MAX_SERVERS) if number not in known]
        self.wanted = tuple(sorted((*known, *free)[:count]))
        for number in self.wanted:
            if number not in self._live and number not in self._starting:
                self._tries[number] = self._losses[number] = 0
                self._start(number, now)
        for number in [number for number in self._starting if number not in self.wanted]:
            del self._starting[number]
            self._command(EvictWorker(number, "is not needed any more", gently=True))
        if self._map is None:
            for number in [number for number in self._live if number not in self.wanted]:
                self._dismiss(number)
            self._begin_when_all_are_up()
        elif not self._starting:
            self._head_for(self._levelled())

    def _dismiss(self, number: int) -> None:
        """This server holds nothing that others need: its process ends."""
        del self._live[number]
        if self.network is not None:
            self.network.forget(number)
        self._command(EvictWorker(number, "is not needed any more", gently=True))

    def _dismiss_leaving(self) -> None:
        """Those that the job does not want any more and that hold no slice and no copy by the map."""
        holders = set(self._assignment().servers)
        for number in [n for n in self._order() if n not in self.wanted and n not in holders]:
            self._dismiss(number)
            self.notes.append(f"server {number - FIRST_SERVER} left")
            self._left += 1
            self._command(Milestone("server left"))

    def _head_for(self, goal: SliceMap) -> None:
        """Slices are to move: copies come first, in the background."""
        before = self._assignment()
        self._goal = goal if goal != before else None
        if self._goal is not None:
            self._publish(copies_first(before, goal))
        else:
            self._dismiss_leaving()

    def _move_to_goal(self) -> None:
        """Copies are complete: between two folds they become the slices."""
        goal, complete = self._goal, len(self._stable) == self.group.cuts.count
        if goal is None or not complete or self.group.pending is not None:
            return
        self._goal = None
        moved = goal.primary != self._assignment().primary
        self._publish(goal)
        if moved:
            self._unsure |= self._workers | self._gone
            self.group.share()
        self._dismiss_leaving()

    def _publish(self, assignment: SliceMap) -> None:
        """The new map to all servers and workers."""
        self._map = self.group.new_map(assignment, self._live)
        self._stable.clear()
        for number in (*self._order(), *sorted(self._workers)):
            self.group.out.send(number, self._map)

    def _order(self) -> list[int]:
        return sorted(self._live)

    def _assignment(self) -> SliceMap:
        assert self.group.assignment is not None
        return self.group.assignment

    # -- losses --------------------------------------------------------------------------------------------

    def _lose(self, number: int, why: str, now: float) -> None:
        """A server is gone: replace it, unless it was to leave, and recover its slices, or fail where it is lost again
        and again."""
        was_live = self._live.pop(number, None) is not None
        if not was_live and number not in self._starting:  # it was lost already
            return
        self._starting.pop(number, None)
        if number in self._optional:
            self._do_without(number, why)
            return
        self.lost += 1
        if self.network is not None:
            self.network.forget(number)
        self.notes.append(f"server {number - FIRST_SERVER} {why}")
        self._command(EvictWorker(number, why))
        self._command(Milestone("server lost"))
        if was_live:
            self._lost_at = now if self._lost_at is None else self._lost_at
            self._losses[number] = self._losses.get(number, 0) + 1
        replace = self._replace and number in self.wanted
        often = max(self._tries[number], self._losses.get(number, 0))
        if often >= active().liveness.server_failed_starts:
            raise WorkerLost(f"Server {number - FIRST_SERVER} {why}, {often} times in a row.", why)
        if not (replace or self._live or self._starting):
            raise WorkerLost(f"Server {number - FIRST_SERVER} {why}, and no server is left.", why)
        if replace:
            self._start(number, now)
        if self._map is not None and was_live and self._live:
            self._recover()

    def _do_without(self, number: int, why: str) -> None:
        """A server that the job could have had, and that did not start: it keeps those that it has."""
        self._optional.discard(number)
        self._command(EvictWorker(number, why))
        self.wanted = tuple(other for other in self.wanted if other != number)
        self._command(Note(f"servers: {len(self.wanted)}; a further one did not start"))
        if self._map is not None and not self._starting:
            self._head_for(self._levelled())

    def _recover(self, all_lost: bool = False) -> None:
        """Slices of lost servers go to the holders of their copies; `all_lost`: the only server is a new one."""
        self._goal = None
        assignment, orphans = after_loss(self._assignment(), self._live, self._replicas)
        moved = all_lost or assignment.primary != self._assignment().primary
        self._publish(assignment)
        if moved:
            self._unsure |= self._workers | self._gone
            self.group.share()
        if orphans:
            self._command(Note(f"{len(orphans)} slices had no copy left; they continue from the coordinator's"))
        self.give_up_hopeless()
        if not self._starting:  # else when they are up
            self._head_for(self._levelled())

    def _taken(self, server: int, body: SlicesTaken) -> list[Event]:
        """A server says in which state it has the slices that it took over: it does again what came after."""
        group, events = self.group, []
        if self._map is None or body.map <= group.cut_version:
            return []  # of another cut, or handed out with the first map of this one
        for number, op in body.slices:
            if self._assignment().primary[number] != server:
                continue  # somebody else has it by now
            if op < 0 or (op < group.op and op + 1 not in group.log):  # no copy, or one that is too old
                group.hand_out(server, (number,), known=False)
                op = group.done_op
            else:
                events += group.skip(number, op)
            self._repeat(server, number, op)
        return events

    def _repeat(self, server: int, number: int, op: int) -> None:
        """Send a server again what it missed for slice `number`: all operations of the log after `op`."""
        group = self.group
        for at in range(op + 1, group.op + 1):
            entry = group.log[at]
            if entry.abandoned:
                group.out.send(server, AbandonFold(at))
            if entry.combined is not None:
                group.out.send(server, CombinedSummary(at), (entry.combined,))
            if isinstance(entry.body, FoldSlices | ChangeAccounts):
                group.out.send(server, msgspec.structs.replace(entry.body, only=(number,)))
            else:
                group.send_replacement(server, entry, (number,))

    def _note_stable(self, body: SlicesStable) -> None:
        """A server says up to which operation its slices are held by all their copies. Operations that are stable for
        every slice leave the log."""
        if self._map is None or body.map != self._map.version:
            return
        for number in body.slices:
            self._stable[number] = body.op
        if len(self._stable) == self.group.cuts.count:
            self.group.trim(min(self._stable.values()))
        self._move_to_goal()
