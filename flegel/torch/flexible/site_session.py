"""The leader of a site at the bucket: joins or begins the training there, and keeps the thread that synchronizes.

A leader that takes the place of one that was lost is a new life of the same group. Decides nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from flegel.core.pytree import Array
from flegel.errors import StorageError, UsageError
from flegel.machine.group.data_form import DataForm
from flegel.machine.group.events import ToCoordinator, ToGroup
from flegel.machine.group.group import Group, GroupSettings
from flegel.machine.group.quorum import parse_grace, parse_quorum
from flegel.machine.group.records import Package, encode
from flegel.runtime import clock
from flegel.runtime.group.bucket import open_bucket
from flegel.runtime.group.keys import read_key_file
from flegel.runtime.group.link import GroupLink
from flegel.runtime.group.own_life import beat_seconds, new_life
from flegel.runtime.group.package_store import GROUP_FORMAT, RANKS_OF_PYTORCH, PackageStore, StoredPackage
from flegel.runtime.group.peers import GroupMessenger
from flegel.torch.flexible.site import Site
from flegel.torch.flexible.site_exchange import SiteExchange


class SiteSession:
    """From the opened bucket to the last beat."""

    def __init__(self, site: Site, names: Sequence[str], theta: Sequence[Array], takes_over: bool) -> None:
        """`names`, `theta`: the fields that are exchanged. `takes_over`: the process that led this site before is
        lost, as its ranks have agreed."""
        self._site, self._spec = site, site.spec
        self._seal = read_key_file(self._spec.group_key, self._spec.group)
        self._bucket = open_bucket(self._spec.bucket)
        store = PackageStore(self._bucket, self._seal, self._spec.group)
        life = new_life(self._bucket, self._seal, store, self._spec, watches=not takes_over)
        found: StoredPackage | None = store.retried(store.read, "package")
        if found is None and takes_over:  # a second package would be another training
            raise StorageError(f"The training package is not in {self._bucket.place} any more.")
        if found is None:
            content = encode(self._package(names, theta), list(theta))
            found = store.retried(lambda: store.write(content, ""), "package")
        self._check_same(found.header, names, theta, found.arrays)
        self.exchange = SiteExchange(self._spec, site.every, found.arrays)
        self._news: deque[ToCoordinator] = deque()
        self._link = self._linked(found, life)
        self._link.start()

    @property
    def _outer(self) -> str:
        """`visits`: ranks of sites make different numbers of samples."""
        return "visits" if self._spec.outer == "auto" else self._spec.outer

    def _package(self, names: Sequence[str], theta: Sequence[Array]) -> Package:
        spec = self._spec
        return Package(
            format=GROUP_FORMAT,
            algorithm=RANKS_OF_PYTORCH,
            source="",
            hyper={},
            submitted={},
            parameter=("module", tuple(names)),
            data=DataForm(0, (), (), "float32", "none", "refuse"),
            exchange="parameters",
            outer=self._outer,
            every=spec.interval,
            made_by=spec.group,
            quorum=str(spec.quorum),
            fragments=spec.fragments,
            outliers=spec.outliers,
        )

    def _check_same(
        self, package: Package, names: Sequence[str], theta: Sequence[Array], theirs: Sequence[Array]
    ) -> None:
        """Raise `UsageError` with what differs between the training in the bucket and this site."""
        place, spec = self._bucket.place, self._spec
        if package.algorithm != RANKS_OF_PYTORCH:
            raise UsageError(f"The groups of {place} train {package.algorithm}, not a module of PyTorch.")
        own = [(name, array.shape) for name, array in zip(names, theta, strict=True)]
        if own != [(name, array.shape) for name, array in zip(package.parameter[1], theirs, strict=False)]:
            raise UsageError(
                f"The sites of {place} train a module with other parameters than this one; build the same one, with "
                "the same layers frozen."
            )
        given = (self._outer, parse_quorum(str(spec.quorum)), spec.fragments, spec.outliers)
        if given != (package.outer, parse_quorum(package.quorum), package.fragments, package.outliers):
            raise UsageError(
                f"The sites of {place} use outer={package.outer!r}, quorum={package.quorum!r}, "
                f"fragments={package.fragments} and outliers={package.outliers!r}; use the same."
            )

    def _linked(self, found: StoredPackage, life: int) -> GroupLink:
        spec = self._spec
        peers = GroupMessenger(spec.group_listen, self._seal, self._hinted) if spec.group_key else None
        settings = GroupSettings(
            name=spec.group,
            life=life,
            exchange="parameters",
            outer=self._outer,
            silence=spec.group_timeout,
            beat=beat_seconds(spec),
            least_groups=spec.groups,
            address=peers.address if peers is not None else "",
            package=found.sha256,
            largest=16 * sum(a.nbytes for a in found.arrays) + (1 << 20),  # θ and velocity in float64; headers
            fragments=spec.fragments,
            outliers=spec.outliers,
            quorum=parse_quorum(str(spec.quorum)),
            grace=parse_grace(spec.grace),
        )
        machine = Group(settings, [a.shape for a in found.arrays], found.arrays, clock.now())
        return GroupLink(machine, self._bucket, self._seal, spec.group_timeout, peers=peers)

    def _hinted(self, content: bytes) -> None:
        self._link.hinted(content)

    def look(self) -> None:
        """Take in news, which is also this leader's sign of life."""
        self._news.extend(event.news for event in self._link.arrivals())

    def next_news(self) -> ToCoordinator | None:
        """The oldest news that was taken in."""
        return self._news.popleft() if self._news else None

    def send(self) -> None:
        """What the exchange has for the other sites."""
        for body in self.exchange.out:
            self._link.take(ToGroup(body))
        self.exchange.out.clear()

    def summary(self) -> dict[str, Any]:
        """Rounds, and the traffic of this site with the bucket, since this process leads it."""
        link, exchange = self._link, self.exchange
        return {
            "group": self._spec.group,
            "groups": list(exchange.groups),
            "rounds": exchange.rounds,
            "ages": dict(exchange.ages),
            "outliers": dict(exchange.outliers),
            "wire": exchange.wire,
            "goodput": exchange.goodput,
            "bytes_sent": link.bytes_sent,
            "bytes_received": link.bytes_received,
        }

    def close(self, state: str) -> None:
        self._link.close(state)
