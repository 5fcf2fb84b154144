"""`Site`: ranks of one place that train, by `FlexibleDDP`, one model together with ranks at other places.

Options of a group as for jobs, checked before anything is opened. Opens nothing itself.
"""

from __future__ import annotations

from typing import Any

from flegel.errors import UsageError, nearest
from flegel.group_options import GroupSpec
from flegel.machine.group.option_checks import check_group_options
from flegel.machine.group.schedule import parse_every
from flegel.options import check_options, with_options
from flegel.runtime.group.keys import check_keys

SITE_OPTIONS = (
    "every", "groups", "quorum", "grace", "group_timeout", "outer", "outliers", "fragments", "wire", "group_key",
    "group_listen",
)  # fmt: skip


class Site:
    """Where sites meet, and how often: `FlexibleDDP(net, site=Site("s3://models/job7", "oslo", every="30s"))`."""

    def __init__(self, bucket: str, group: str, **options: Any) -> None:
        """`bucket`: a folder or an address such as s3://bucket/job. `group`: the name of this site, the same on all of
        its ranks. `options`: those of groups, `every` (barriers of this site, or a time), `groups`, `quorum`, `grace`,
        `outer`, `fragments`, `wire`, `outliers`, `group_timeout`, `group_key` and `group_listen`."""
        if not (bucket and group):
            raise UsageError("Give the bucket where sites meet, and the name of this site: Site('s3://…', 'oslo').")
        for name in options:
            if name not in SITE_OPTIONS:
                raise UsageError(f"{name}= is no option of a site{nearest(name, list(SITE_OPTIONS))}")
        if isinstance(options.get("every"), int):
            options["every"] = str(options["every"])
        self.spec = with_options(GroupSpec(), {**options, "bucket": bucket, "group": group})
        check_options(self.spec)
        check_group_options(self.spec)
        self.every = parse_every(self.spec.interval)
        if self.every.auto:
            raise UsageError(
                "every='auto' weighs the cost of a round against the objective of a job, which a training loop does "
                "not tell; give a number of barriers such as 50, or a time such as '30s'."
            )
        check_keys(self.spec)
