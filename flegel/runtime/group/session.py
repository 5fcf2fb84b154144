"""A job as one group of several: checks its options, joins through the training package, and makes its parts.

The first group writes the package (algorithm, hyper-parameters, θ(0), scaling); all others begin with that, so that
statistics mean the same everywhere. Source is compared by its hash and never run from the bucket.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from flegel.algorithm import Algorithm, Sample
from flegel.algorithms.seeding import representatives
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.datasets import Dataset, scale
from flegel.errors import DecodeError, StorageError, UsageError
from flegel.job import Job
from flegel.machine.group.events import Offered
from flegel.machine.group.exchange import GroupExchange, additive_fields, exchange_of
from flegel.machine.group.gate import Gate, parse_gate
from flegel.machine.group.group import Group, GroupSettings
from flegel.machine.group.outer_step import moved
from flegel.machine.group.records import (
    JOB,
    STARTS,
    Package,
    PackageRef,
    StartRows,
    decode,
    digest_of,
    encode,
    finite,
)
from flegel.machine.group.schedule import parse_every
from flegel.messages import TreeLayout
from flegel.params.tree_layout import build, form_of
from flegel.runtime import clock
from flegel.runtime.group.bucket import Conflict, open_bucket
from flegel.runtime.group.keys import RefusedObject, read_key_file
from flegel.runtime.group.link import GroupLink
from flegel.runtime.group.peers import PeerMessages, parse_listen
from flegel.runtime.job.class_source import in_plain, reference
from flegel.runtime.job.request import open_job_data
from flegel.wording import option

FORMAT = 1
PATIENCE = 20.0  # seconds for the bucket to answer at the start


class GroupSession:
    """One group, from its options to its end."""

    def __init__(self, job: Job, algorithm: Algorithm) -> None:
        self._job, self._algorithm = job, algorithm
        self.kind = exchange_of(algorithm)
        self._every = parse_every(job.sites.every)
        self._seal = read_key_file(job.sites.group_key, job.sites.group)
        self._bucket = open_bucket(job.sites.bucket)
        self._gate = self._make_gate()
        if job.sites.group_listen:
            parse_listen(job.sites.group_listen)
            if not job.sites.group_key:
                raise UsageError(
                    f"{option('group_listen')} needs {option('group_key')}: without keys anybody could send "
                    "wrong messages."
                )
        self._submitted = _plain(algorithm)
        self._package: tuple[Package, list[Array]] | None = None
        self._base: list[Array] = []
        self.link: GroupLink | None = None
        self.ended = "left"
        """What the last beat says; `finished` once there is a result."""

    def _make_gate(self) -> Gate | None:
        job = self._job
        if not job.sites.gate and not job.sites.gate_data:
            return None
        if self.kind == "statistics":
            raise UsageError(
                f"{option('gate')} cannot be used with {type(self._algorithm).__name__}: groups exchange its "
                "statistics, and "
                "points that are withheld would be missing in the sums."
            )
        if not (job.sites.gate and job.sites.gate_data):
            raise UsageError(
                f"{option('gate')} says which score is good enough, {option('gate_data')} names rows to "
                "score; give both."
            )
        return Gate(parse_gate(job.sites.gate), job.sites.gate_failures)

    # -- the training package ------------------------------------------------------------------------------

    def join(self, data: Dataset) -> None:
        """Read the package where there is one, and take the algorithm's settings from it."""
        found = self._patiently(self._read_package)
        if found is not None:
            self._use(found, data)

    def _read_package(self) -> tuple[Package, list[Array]] | None:
        pointer = self._bucket.get(JOB)
        if pointer is None:
            return None
        ref, _ = decode(self._seal.open(JOB, pointer[0]), PackageRef)
        key = f"package/{ref.sha256}"
        held = self._bucket.get(key)
        if held is None:
            raise OSError(f"{key} is not there")
        content = self._seal.open(key, held[0])
        if digest_of(content) != ref.sha256:
            raise RefusedObject(f"{key} is not what its name says")
        return decode(content, Package)

    def _use(self, found: tuple[Package, list[Array]], data: Dataset) -> None:
        package, algorithm, place = found[0], self._algorithm, self._bucket.place
        ref = reference(algorithm)
        if (ref.name, digest_of(ref.source.encode())) != (package.algorithm, digest_of(package.source.encode())):
            same = "another version of it" if ref.name == package.algorithm else package.algorithm
            raise UsageError(f"The groups of {place} train {same}, not this {type(algorithm).__name__}.")
        for name, theirs in package.submitted.items():
            if self._submitted.get(name) != theirs:
                own = self._submitted.get(name)
                raise UsageError(
                    f"The groups of {place} train with {name}={theirs!r}, and this one has {own!r}; use the same."
                )
        if package.format != FORMAT or package.exchange != self.kind or package.outer != self._outer:
            raise UsageError(f"The groups of {place} use {option('outer', package.outer or 'mean')}; use the same.")
        if data.columns != package.columns or (package.features and _features(data) != package.features):
            raise UsageError(f"{data.name} has other columns than the data of the groups of {place}.")
        if package.classes and tuple(data.classes or ()) != package.classes:
            raise UsageError(
                f"{data.name} has other classes than the data of the groups of {place}: labels that are words must be "
                "the same words everywhere; write numbers instead."
            )
        self._package = found
        hyper = {k: v for k, v in package.hyper.items() if v is not None}
        for name, value in type(algorithm)(**hyper).hyper().items():
            setattr(algorithm, name, value)

    @property
    def _outer(self) -> str:
        return self._job.sites.outer if self.kind == "parameters" else ""

    def scaling(self) -> scale.Scaling | None:
        """How the first group scales its columns."""
        if self._package is None or not self._package[0].scaled:
            return None
        return scale.Scaling(*(np.array(a) for a in self._package[1][-2:]))

    def parameter(self) -> Tree | None:
        """θ(0) of the package; None where this is the first group."""
        if self._package is None:
            return None
        package, arrays = self._package
        name, fields = package.parameter
        count = max(len(fields), 1)
        return build(TreeLayout(name, fields), tuple(np.array(a) for a in arrays[:count]), self._algorithm)

    def joint_sample(self, sample: Sample) -> Sample:
        """Weighted means of the rows of all groups, as far as they are expected and come in time; this group's own
        sample where the algorithm, the rows or scaled columns do not allow that."""
        job = self._job
        if not self._algorithm.starts_from_means or job.sites.groups < 2 or job.scale != "none":
            return sample
        own = representatives(sample, np.random.default_rng(job.seed))
        if own is None:
            return sample
        key = STARTS + job.sites.group
        self._patiently(lambda: self._bucket.put(key, self._seal.seal(key, encode(StartRows(job.sites.group), own))))
        began = clock.now()
        while True:
            found = self._patiently(self._starts)
            late = clock.now() - began > job.sites.group_timeout
            if len(found) >= job.sites.groups or late or self._patiently(lambda: self._bucket.get(JOB)) is not None:
                break
            clock.sleep(0.05)
        rows = np.concatenate([found[group][0] for group in sorted(found)])
        weights = np.concatenate([found[group][1] for group in sorted(found)])
        return Sample(rows.astype(np.asarray(sample.features[:1]).dtype), None, len(rows), sample.columns, weights)

    def _starts(self) -> dict[str, list[Array]]:
        """Means and weights by group, as far as they can be seen."""
        found: dict[str, list[Array]] = {}
        for key in self._bucket.names(STARTS):
            held = self._bucket.get(key)
            if held is not None:
                header, arrays = decode(self._seal.open(key, held[0]), StartRows)
                if STARTS + header.group == key and len(arrays) == 2 and finite(arrays):
                    found[header.group] = arrays
        return found

    def publish(self, parameter: Tree, scaling: scale.Scaling | None, data: Dataset) -> bool:
        """Write the package, unless somebody was first; False: prepare again with theirs."""
        if self._package is not None:
            return True
        ref, form = reference(self._algorithm), form_of(parameter)
        package = Package(
            format=FORMAT, algorithm=ref.name, source=ref.source, hyper=_plain(self._algorithm),
            submitted=self._submitted, parameter=(form.name, tuple(form.fields)), columns=data.columns,
            features=_features(data), classes=tuple(data.classes or ()), scaled=scaling is not None,
            exchange=self.kind, outer=self._outer, every=self._job.sites.every, made_by=self._job.sites.group,
        )  # fmt: skip
        scales = [] if scaling is None else [np.asarray(column, dtype=np.float64) for column in scaling]
        content = encode(package, [*pytree.flatten(parameter), *scales])
        self._patiently(lambda: self._write_package(content))
        found = self._patiently(self._read_package)
        assert found is not None, "a package was written"
        mine = digest_of(encode(found[0], found[1])) == digest_of(content)
        self._use(found, data)
        return mine

    def _write_package(self, content: bytes) -> None:
        sha, seal = digest_of(content), self._seal
        key = f"package/{sha}"
        self._bucket.put(key, seal.seal(key, content))
        try:
            self._bucket.put(JOB, seal.seal(JOB, encode(PackageRef(sha))), "create")
        except Conflict:
            return  # somebody was first, or this is the second try of a put that has happened

    def _patiently(self, call: Callable[[], Any]) -> Any:
        """The answer, after some tries; a sentence where the bucket does not answer."""
        began = clock.now()
        while True:
            try:
                return call()
            except (RefusedObject, DecodeError) as error:
                raise StorageError(f"The training package in {self._bucket.place} was refused: {error}.") from None
            except OSError as error:
                if clock.now() - began > PATIENCE:
                    raise StorageError(f"{self._bucket.place} cannot be used as a bucket ({error}).") from None
                clock.sleep(0.2)

    # -- training ------------------------------------------------------------------------------------------

    def start(self, parameter: Tree, zero: Tree) -> None:
        """Begin to synchronize; from now on other groups see this one."""
        job = self._job
        first = self.parameter()
        self._base = additive_fields(self._algorithm, parameter if first is None else first)
        self._base = self._base if self.kind == "parameters" else []
        sent = self._base if self.kind == "parameters" else pytree.flatten(zero)
        peers = self._peers()
        settings = GroupSettings(
            name=job.sites.group,
            life=clock.microseconds(),
            exchange=self.kind,
            outer=job.sites.outer,
            silence=job.sites.group_timeout,
            beat=min(1.0, job.sites.group_timeout / 5),
            least_groups=job.sites.groups,
            address=peers.address if peers is not None else "",
        )
        machine = Group(settings, [a.shape for a in sent], self._base, clock.now())
        score = self._scorer(parameter) if self._gate is not None else None
        self.link = GroupLink(machine, self._bucket, self._seal, job.sites.group_timeout, self._gate, score, peers)
        self.link.start()

    def _peers(self) -> PeerMessages | None:
        """Direct messages, where what arrives can be told from what a stranger sends."""
        job = self._job
        if not job.sites.group_key:
            return None

        def heard(content: bytes) -> None:
            if self.link is not None:
                self.link.hinted(content)

        return PeerMessages(job.sites.group_listen, self._seal, heard)

    def _scorer(self, parameter: Tree) -> Callable[[Offered], float]:
        rows = open_job_data(self._job, self._job.sites.gate_data, self._algorithm).read()
        algorithm = self._algorithm

        def score(offer: Offered) -> float:
            """The accuracy where there is one, else minus the objective."""
            fields = iter(moved(self._score_base, offer.arrays, [np.zeros(())] * len(offer.arrays)))
            named = zip(pytree.names(parameter), pytree.flatten(parameter), strict=True)
            bare = not pytree.is_bundle(parameter)
            theta = [next(fields) if name in algorithm.additive or bare else a for name, a in named]
            found = algorithm.evaluate(rows.features, rows.labels, pytree.unflatten(parameter, theta))
            if found is None:
                raise UsageError(
                    f"{option('gate')} needs `evaluate`, which {type(algorithm).__name__} does not define."
                )
            return float(found.metrics.get("accuracy", -found.objective))

        return score

    @property
    def _score_base(self) -> list[Array]:
        """θ of the last result."""
        assert self.link is not None
        return self.link.base

    def exchange(self) -> GroupExchange:
        """The coordinator's part."""
        return GroupExchange(self._algorithm, self._every, self._job.sites.group_timeout, self._base)

    def summary(self, exchange: GroupExchange) -> dict[str, Any]:
        """Rounds, and the traffic of this group with the bucket, for the result of the job."""
        link = self.link
        assert link is not None
        took = [applied - offered for _, offered, applied in link.rounds]
        return {
            "group": self._job.sites.group, "groups": list(exchange.groups), "rounds": exchange.rounds,
            "bytes_sent": link.bytes_sent, "bytes_received": link.bytes_received, "requests": link.requests,
            "messages_received": link.messages_received,
            "sync_seconds": round(statistics.median(took), 4) if took else None,
        }  # fmt: skip

    def close(self) -> None:
        if self.link is not None:
            self.link.close(self.ended)


def open_group(job: Job, algorithm: Algorithm) -> GroupSession | None:
    """None for a job that trains alone."""
    if not job.sites.group and not job.sites.bucket:
        return None
    if not (job.sites.group and job.sites.bucket):
        raise UsageError(f"{option('group')} names this site and {option('bucket')} where groups meet; give both.")
    if job.topology != "coordinator" or str(job.servers) != "0":
        raise UsageError(
            f"Groups need their statistics in one place; omit {option('topology')} and {option('servers')}."
        )
    return GroupSession(job, algorithm)


def _plain(algorithm: Algorithm) -> dict[str, Any]:
    """Hyper-parameters as MessagePack gives them back."""
    plain = in_plain(reference(algorithm)).hyper
    return dict(msgspec.msgpack.decode(msgspec.msgpack.encode(plain)))


def _features(data: Dataset) -> tuple[str, ...]:
    return tuple(str(name) for name in data.treatment.feature_names or ())
