"""Parameter servers as a part of a coordinator: their events go to `ServerCare`, all others as ever. Pure.

What servers make of an event may be an event for the coordinator (a fold is done); training begins when the servers
are ready, too. Everything else is the coordinator's and does not know where θ is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flegel.machine.coordinator.events import Command, Done, Event, FromWorker, Send, Timer, WorkerDied
from flegel.machine.coordinator.part import CoordinatorPart, Handler
from flegel.machine.server.care import ServerCare
from flegel.messages import ShardLoaded, Train
from flegel.plan.placement.snapshot import plain


class ServersPart(CoordinatorPart):
    """Looks after the servers of one job; the coordinator's store is the group of these servers."""

    name = "servers"

    def __init__(self, care: ServerCare) -> None:
        self.care = care

    def start(self, now: float) -> None:
        state = self.coordinator.state
        self.care.start(now)
        state.out = self._with_servers(state.out)

    def around(self, handle: Handler) -> Handler:
        """Handle events of the parameter servers before the coordinator sees them. It begins when the servers are
        ready."""

        def handled(event: Event, now: float) -> list[Command]:
            """Events of servers go to `ServerCare`, all others to the coordinator, after `ServerCare` was told of
            workers that loaded or died. Training begins when the servers become ready."""
            state, care = self.coordinator.state, self.care
            if state.phase == "over":
                return []
            commands: list[Command] = []
            follow: list[Event] = []
            if care.concerns(event):
                was_ready = care.ready
                follow = care.handle(event, now)
                if care.ready and not was_ready:
                    state.out = commands
                    self.coordinator.begin(now)
            else:
                if isinstance(event, FromWorker) and isinstance(event.body, ShardLoaded):
                    care.worker_loaded(event.worker)
                elif isinstance(event, WorkerDied):
                    care.worker_gone(event.worker)
                elif event == Timer("watch"):
                    care.look(now)
                commands = handle(event, now)
            for each in follow:
                commands = commands + handle(each, now)
            care.ordered(now)
            return self._with_servers(commands)

        return handled

    def ready(self) -> bool:
        return self.care.ready

    def lost(self, worker: int) -> None:
        self.care.worker_gone(worker)

    def seen(self) -> Mapping[str, Any]:
        return {"servers": self.care.snapshot()}

    def section(self) -> dict[str, dict[str, Any]]:
        """Loads, measured links, and decisions with their reasons."""
        return {"servers": plain(self.care.snapshot())}

    def _with_servers(self, commands: list[Command]) -> list[Command]:
        """What servers are to hear besides; the end of the job stays last."""
        if self.coordinator.state.phase == "over":
            self.care.finish()
        else:
            self.care.give_up_hopeless()
            self._announce(commands)
        self.coordinator.notes += self.care.notes
        self.care.notes.clear()
        done = [command for command in commands if type(command) is Done]
        rest = [command for command in commands if type(command) is not Done]
        return [*rest, *self.care.take(), *done]

    def _announce(self, commands: list[Command]) -> None:
        """Tell the servers that all workers train one round: the next fold will probably have all their reports."""
        state = self.coordinator.state
        orders = {c.worker: c.body for c in commands if type(c) is Send and type(c.body) is Train}
        everybody = len(orders) > 1 and orders.keys() == state.view.workers.keys()
        if everybody and not any(order.linger for order in orders.values()):
            self.care.group.expect({worker: order.round for worker, order in orders.items()}, state.place)
