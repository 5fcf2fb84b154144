"""Audits of a job's statistics (`--audit`): what workers keep for them, and their part of the coordinator."""

from __future__ import annotations

from typing import Any

from flegel.machine.audit.audit import Audit
from flegel.machine.audit.part import AuditPart
from flegel.runtime.job.part import Part


class Audits(Part):
    """The statistics are checked while the job trains and when it is over."""

    def load_options(self, worker: int) -> dict[str, Any]:
        return {"audit": True}

    def machine(self) -> AuditPart:
        wanted = self.request.job.audit
        return AuditPart(Audit(int(wanted) if wanted.isdigit() else None, self.request.resumed))
