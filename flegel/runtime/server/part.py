"""Parameter servers of a job (`--servers`): θ is kept by processes of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flegel.core import pytree
from flegel.core.pytree import Tree
from flegel.machine.coordinator.events import Event
from flegel.machine.server.events import ScaleServers
from flegel.machine.server.part import ServersPart
from flegel.params.protocol import ParameterStore
from flegel.runtime.job.part import Part
from flegel.runtime.job.warm_clusters import Kind
from flegel.runtime.server.file_arrays import FileArrays
from flegel.runtime.server.job_servers import check_servers_fit, server_care, unsent_forms


class ServersOfJob(Part):
    """The coordinator's store is the group of servers, and workers send their reports to these."""

    def check(self) -> None:
        check_servers_fit(self.request)

    def workers_in(self) -> Kind:
        return "processes"

    def place_parameter(self, parameter: Tree) -> Tree:
        files, arrays = FileArrays(), pytree.flatten(parameter)
        return pytree.unflatten(parameter, [files.moved(a) for a in arrays])

    def machine(self) -> ServersPart:
        running = self.running
        self._care = server_care(self.request, running.prepared, running.cluster, running.timeouts)
        self.request.control.most_servers = self._care.most
        self._forms = unsent_forms(self.request, running.prepared)
        return ServersPart(self._care)

    def asks(self) -> Iterable[Event]:
        wanted = self.request.control.take_servers()
        return () if wanted is None else (ScaleServers(wanted),)

    def store(self) -> ParameterStore:
        return self._care.group

    def load_options(self, worker: int) -> dict[str, Any]:
        return {"version": 0, "forms": self._forms, "alone": False, "growing": False}
