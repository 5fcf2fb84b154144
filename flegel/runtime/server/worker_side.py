"""A worker whose θ lies on servers: what its I/O thread does with the slices. Decides nothing; `SliceClient` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.machine.server.client import Push, SliceClient
from flegel.machine.worker.executor import WorkerExecutor
from flegel.messages import Answer, LoadShard, Order, ReleaseJob, Report
from flegel.runtime import clock
from flegel.runtime.server.links import ServerLinks
from flegel.runtime.server.transfer_timer import TransferTimer, worth_timing
from flegel.runtime.system.freed_memory import return_freed_memory
from flegel.server_messages import ParameterSlices, ServerMap, TransferAnnounced


class ServedWorker:
    """Between the worker's executor and its servers, for one job."""

    def __init__(
        self,
        load: LoadShard,
        arrays: tuple[Array, ...],
        links: ServerLinks,
        executor: WorkerExecutor,
        send: Callable[[Answer, tuple[Array, ...]], None],
    ) -> None:
        """`load`, `arrays`: the order to load a shard, whose first arrays are θ. `send` sends to the coordinator."""
        first_theta_from_servers = bool(load.forms)
        if first_theta_from_servers:  # slices of a large θ come and go, and the C library would keep their memory
            return_freed_memory()
        # -1, before every version: what came with the order are zeros in the form of θ (`with_stand_ins`).
        version = -1 if first_theta_from_servers else load.version
        self._client = SliceClient(arrays[: len(load.parameter.fields) or 1], version)
        self._links, self._executor, self._send = links, executor, send
        self._retry_after, self._retry_at = active().transport.slice_retry_seconds, float("inf")
        self._timer = TransferTimer(links.sequencer.worker)

    def order(self, body: Order, arrays: tuple[Array, ...]) -> None:
        """An order waits its turn; the end of the job does not."""
        if isinstance(body, ReleaseJob):
            self._executor.order(body, arrays, clock.now())
            return
        self._push(self._client.order(body, arrays))
        self._go_on()

    def use_map(self, servers: ServerMap) -> None:
        self._links.use(servers.addresses)
        self._push(self._client.use_map(servers))

    def report(self, body: Report, arrays: tuple[Array, ...]) -> None:
        self._push(self._client.report(body, arrays))
        self._wait()

    def receive(self) -> None:
        """Handle what servers have sent: pass it to the client's machine, and send what it answers."""
        version = self._client.assembled
        for envelope, arrays in self._links.receive():
            if isinstance(envelope.body, TransferAnnounced):
                self._timer.announced(envelope.worker, clock.now())
            elif isinstance(envelope.body, ParameterSlices):
                self._timer.arrived(envelope.worker, arrays, clock.now())
            for body, frames in self._client.hear(envelope.worker, envelope.body, arrays):  # type: ignore[arg-type]
                self._send(body, frames)
        if self._client.assembled > version and (seen := self._timer.take()) is not None:
            self._send(seen, ())
        self._go_on()

    def retry(self, now: float) -> None:
        if self._client.waits and now >= self._retry_at:
            self._push(self._client.retry())
            self._retry_after *= 2
            self._retry_at = now + self._retry_after

    def _go_on(self) -> None:
        for body, arrays in self._client.ready_orders():
            self._executor.order(body, arrays, clock.now())
        self._wait()

    def _wait(self) -> None:
        if not self._client.waits:
            self._retry_after, self._retry_at = active().transport.slice_retry_seconds, float("inf")
        elif self._retry_at == float("inf"):
            self._retry_at = clock.now() + self._retry_after

    def _push(self, pushes: Sequence[Push]) -> None:
        announced: set[int] = set()
        for push in pushes:
            if push.server not in announced and worth_timing(push.arrays):
                announced.add(push.server)
                self._links.send(push.server, TransferAnnounced(), ())
            self._links.send(push.server, push.body, push.arrays)

    def close(self) -> None:
        self._links.close()
