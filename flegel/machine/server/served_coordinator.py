"""A coordinator whose θ lies on parameter servers: events of servers go to `ServerCare`, all others as ever. Pure.

What servers make of an event may be an event for the coordinator (a fold is done); training begins when the servers
are ready, too. Everything else is the coordinator's and does not know where θ is.
"""

from __future__ import annotations

from typing import Any

from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import Command, Done, Event, FromWorker, Send, Timer, WorkerDied
from flegel.machine.server.care import ServerCare
from flegel.messages import ShardLoaded, Train


class ServedCoordinator(Coordinator):
    """Build it like a `Coordinator`, with the group of `servers` as its store."""

    def __init__(self, *, servers: ServerCare, **options: Any) -> None:
        self.servers = servers
        super().__init__(**options)

    def start(self, now: float) -> list[Command]:
        commands = super().start(now)
        self.servers.start(now)
        return self._with_servers(commands)

    def handle(self, event: Event, now: float) -> list[Command]:
        if self.state.phase == "over":
            return []
        servers = self.servers
        commands: list[Command] = []
        follow: list[Event] = []
        if servers.concerns(event):
            was_ready = servers.ready
            follow = servers.handle(event, now)
            if servers.ready and not was_ready:
                self.state.out = commands
                self._begin(now)
        else:
            if isinstance(event, FromWorker) and isinstance(event.body, ShardLoaded):
                servers.worker_loaded(event.worker)
            elif isinstance(event, WorkerDied):
                servers.worker_gone(event.worker)
            elif event == Timer("watch"):
                follow = servers.look(now)
            commands = super().handle(event, now)
        for each in follow:
            commands = commands + super().handle(each, now)
        return self._with_servers(commands)

    def _with_servers(self, commands: list[Command]) -> list[Command]:
        """What servers are to hear besides; the end of the job stays last."""
        if self.state.phase == "over":
            self.servers.finish()
        else:
            self.servers.give_up_hopeless()
            self._announce(commands)
        self.notes += self.servers.notes
        self.servers.notes.clear()
        done = [command for command in commands if type(command) is Done]
        rest = [command for command in commands if type(command) is not Done]
        return [*rest, *self.servers.take(), *done]

    def _announce(self, commands: list[Command]) -> None:
        """Everybody trains one round: the next fold will probably have all their reports."""
        orders = {c.worker: c.body for c in commands if type(c) is Send and type(c.body) is Train}
        everybody = len(orders) > 1 and orders.keys() == self.state.view.workers.keys()
        if everybody and not any(order.linger for order in orders.values()):
            self.servers.group.expect({worker: order.round for worker, order in orders.items()}, self.state.place)

    def _begin(self, now: float) -> None:
        if self.servers.ready:
            super()._begin(now)

    def _lost(self, worker: int, why: str, fault: bool, now: float, silent: bool = False) -> None:
        self.servers.worker_gone(worker)
        super()._lost(worker, why, fault, now, silent)
