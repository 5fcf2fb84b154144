"""A job as one group of several: checks its options, joins through the training package, and makes its parts.

The first group writes the package (algorithm, hyper-parameters, θ(0), scaling); all others begin with that, so that
statistics mean the same everywhere. Source is compared by its hash and never run from the bucket; what the rows are is
compared in one record (`flegel.machine.group.data_form`), before θ(0) is made and when the package is used.
"""

from __future__ import annotations

import logging
import re
import statistics
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from flegel.algorithm import Algorithm, Sample
from flegel.algorithms.seeding import representatives
from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.datasets import Dataset
from flegel.datasets.rows import scale
from flegel.errors import DecodeError, StorageError, UsageError
from flegel.job import Job
from flegel.loading.class_source import in_plain, reference
from flegel.machine.group.data_form import DataForm, difference
from flegel.machine.group.events import Offered
from flegel.machine.group.exchange import GroupExchange, additive_fields, exchange_of
from flegel.machine.group.gate import Gate, parse_gate
from flegel.machine.group.group import ENDED_PHASES, Group, GroupSettings
from flegel.machine.group.outer_step import moved
from flegel.machine.group.records import (
    JOB,
    MAX_BEAT_BYTES,
    MAX_RECORD_HEADER_BYTES,
    MEMBERS,
    NAME,
    STARTS,
    MemberBeat,
    Package,
    PackageRef,
    StartRows,
    decode,
    digest_of,
    encode,
    finite,
)
from flegel.machine.group.schedule import parse_every
from flegel.machine.group.waiting import WaitReports, missing_groups
from flegel.messages import TreeLayout
from flegel.params.tree_layout import build, form_of
from flegel.runtime import clock
from flegel.runtime.group.bucket import Conflict, open_bucket
from flegel.runtime.group.keys import KeyMissing, RefusedObject, check_keys, read_key_file
from flegel.runtime.group.link import GroupLink
from flegel.runtime.group.peers import GroupMessenger, parse_listen
from flegel.runtime.job.request import open_job_data
from flegel.wording import option

_log = logging.getLogger(__name__)

GROUP_FORMAT = 2


class GroupSession:
    """One group at one site, from the options of its job to its end."""

    def __init__(self, job: Job, algorithm: Algorithm) -> None:
        """Check the options of the group, read its key file, and open its bucket."""
        self._job, self._algorithm = job, algorithm
        self.exchange_kind = exchange_of(algorithm)
        self._every = parse_every(job.sites.every)
        check_keys(job.sites)
        self._seal = read_key_file(job.sites.group_key, job.sites.group)
        self._bucket = open_bucket(job.sites.bucket)
        self._gate = self._make_gate()
        """Whether a change of θ is good enough to be sent; None: all are."""
        if job.sites.group_listen:
            parse_listen(job.sites.group_listen)
        self._submitted_hyper = _plain(algorithm)
        """Hyper-parameters as the user gave them, before any hook ran: all groups must agree in them."""
        self._package: tuple[Package, list[Array]] | None = None
        self._data_form: DataForm | None = None
        """What the rows of this group are; None until they are read."""
        self._ignored: set[str] = set()
        """Objects that were not used for θ(0), and were told of."""
        self._life = 0
        """Tells this process from earlier ones with the name of this group: it is larger than theirs."""
        self._base: list[Array] = []
        """Where groups exchange changes of θ: the fields of θ(0) from which they are counted; else empty."""
        self.link: GroupLink | None = None
        self.ended = "left"
        """What the last beat says; `finished` once there is a result."""

    def _make_gate(self) -> Gate | None:
        """The check of this group's own changes against its rows for the gate, before they are sent; None where the job
        asks for none."""
        job = self._job
        if not job.sites.gate and not job.sites.gate_data:
            return None
        if self.exchange_kind == "statistics":
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
        self._data_form = form_of_data(data, self._job)
        self._life = self._new_life()
        found = self._with_retries(self._read_package, "package")
        if found is not None:
            self._use(found, data)

    def _new_life(self) -> int:
        """The number that tells this process of the group from earlier ones: larger than that of the last one. Refused
        where that process still changes its beat."""
        name, key = self._job.sites.group, MEMBERS + self._job.sites.group
        began = clock.now()
        first = self._with_retries(lambda: self._held_beat(key), key)
        watched = active().groups.watched_beats * self._beat_seconds
        while first is not None and first.state not in ENDED_PHASES and clock.now() - began < watched:
            clock.sleep(0.1)
            held = self._with_retries(lambda: self._held_beat(key), key)
            if held is not None and (held.life, held.beat) != (first.life, first.beat):
                raise UsageError(
                    f"Another process takes part as {name} in {self._bucket.place}; give this group another name, or "
                    "end that one first."
                )
        return max(clock.microseconds(), 0 if first is None else first.life + 1)

    def _held_beat(self, key: str) -> MemberBeat | None:
        """The last beat that a process of this group wrote; None where there is none, or it cannot be read."""
        try:
            held = self._bucket.get(key, MAX_BEAT_BYTES)
            return None if held is None else decode(self._seal.open(key, held[0]), MemberBeat)[0]
        except (RefusedObject, DecodeError):
            return None

    @property
    def _beat_seconds(self) -> float:
        return min(1.0, self._job.sites.group_timeout / 5)

    def _read_package(self) -> tuple[Package, list[Array]] | None:
        """What the first group stored for all: the class and θ(0). None while there is nothing yet."""
        pointer = self._bucket.get(JOB, MAX_BEAT_BYTES)
        if pointer is None:
            return None
        ref, _ = decode(self._seal.open(JOB, pointer[0]), PackageRef)
        key = f"package/{ref.sha256}"
        if not re.fullmatch("[0-9a-f]{64}", ref.sha256):
            raise RefusedObject("job names no package")
        held = self._bucket.get(key)
        if held is None:
            raise OSError(f"{key} is not there")
        content = self._seal.open(key, held[0])
        if digest_of(content) != ref.sha256:
            raise RefusedObject(f"{key} is not what its name says")
        return decode(content, Package)

    def _use(self, found: tuple[Package, list[Array]], data: Dataset) -> None:
        """Train what the first group trains: refuse another class, other hyper-parameters or another form of data."""
        package, algorithm, place = found[0], self._algorithm, self._bucket.place
        ref = reference(algorithm)
        if (ref.name, digest_of(ref.source.encode())) != (package.algorithm, digest_of(package.source.encode())):
            same = "another version of it" if ref.name == package.algorithm else package.algorithm
            raise UsageError(f"The groups of {place} train {same}, not this {type(algorithm).__name__}.")
        for name, theirs in package.submitted.items():
            if self._submitted_hyper.get(name) != theirs:
                own = self._submitted_hyper.get(name)
                raise UsageError(
                    f"The groups of {place} train with {name}={theirs!r}, and this one has {own!r}; use the same."
                )
        if (
            package.format != GROUP_FORMAT
            or package.exchange != self.exchange_kind
            or package.outer != self._outer_step
        ):
            raise UsageError(f"The groups of {place} use {option('outer', package.outer or 'mean')}; use the same.")
        if why := difference(package.data, form_of_data(data, self._job), f"The groups of {place}"):
            raise UsageError(why)
        self._package = found
        hyper = {k: v for k, v in package.hyper.items() if v is not None}
        for name, value in type(algorithm)(**hyper).hyper().items():
            setattr(algorithm, name, value)

    @property
    def _outer_step(self) -> str:
        """How changes of θ are applied to it (`--outer`); empty where groups exchange statistics."""
        return self._job.sites.outer if self.exchange_kind == "parameters" else ""

    def scaling(self) -> scale.Scaling | None:
        """How the first group scales its columns."""
        if self._package is None or self._package[0].data.scale == "none":
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

    def joint_sample(self, sample: Sample, waits: Callable[[str], None] = lambda why: None) -> Sample:
        """Weighted means of the rows of all groups, as far as they are expected and come in time; this group's own
        sample where the algorithm, the rows or scaled columns do not allow that. `waits` is told for whom it waits."""
        job = self._job
        if not self._algorithm.placement.starts_from_means or job.sites.groups < 2 or job.scale != "none":
            return sample
        own = representatives(sample, np.random.default_rng(job.seed))
        if own is None or self._data_form is None:
            return sample
        key = STARTS + job.sites.group
        content = self._seal.seal(key, encode(StartRows(job.sites.group, self._data_form), own))
        self._with_retries(lambda: self._bucket.put(key, content), key)
        began = clock.now()
        reports = WaitReports()
        while True:
            found = self._with_retries(self._starts, STARTS)
            late = clock.now() - began > job.sites.group_timeout
            made = self._with_retries(lambda: self._bucket.get(JOB, MAX_BEAT_BYTES), JOB)
            if len(found) >= job.sites.groups or late or made is not None:
                break
            missing = missing_groups(len(found), job.sites.groups, job.sites.group_timeout)
            report = reports.look(f"{missing} to choose θ(0)", at_once=True, now=clock.now())
            if report is not None:
                waits(report.why)
            clock.sleep(0.05)
        found[job.sites.group] = list(own)  # also where it was damaged or removed meanwhile
        rows = np.concatenate([found[group][0] for group in sorted(found)])
        weights = np.concatenate([found[group][1] for group in sorted(found)])
        return Sample(rows.astype(np.asarray(sample.features[:1]).dtype), None, len(rows), sample.columns, weights)

    def _starts(self) -> dict[str, list[Array]]:
        """Means and weights by group, as far as they can be seen. Files that no group wrote are left alone; a group
        whose rows are others than these is named, and nothing of this group stays behind."""
        found: dict[str, list[Array]] = {}
        assert self._data_form is not None
        own, columns = self._job.sites.group, self._data_form.columns
        largest = 2 * 8 * active().starts.group_representatives * (columns + 1) + MAX_RECORD_HEADER_BYTES
        for key in self._bucket.names(STARTS):
            group = key.removeprefix(STARTS)
            try:
                held = self._bucket.get(key, largest) if NAME.fullmatch(group) and group != own else None
                if held is None:
                    continue
                header, arrays = decode(self._seal.open(key, held[0]), StartRows)
            except KeyMissing:
                raise
            except (RefusedObject, DecodeError) as error:
                if key not in self._ignored:
                    self._ignored.add(key)
                    _log.warning("%s is not used for θ(0): %s", key, error)
                continue
            if header.group != group:
                continue
            if why := difference(header.data, self._data_form, group):
                self._with_retries(lambda: self._bucket.delete(STARTS + own), STARTS + own)
                raise UsageError(f"{why} If {group} does not take part, remove {key} from {self._bucket.place}.")
            means, weights = (*arrays, None, None)[:2]
            if _are_means(means, weights, columns):
                found[group] = arrays
        found[own] = []
        return found

    def publish(self, parameter: Tree, scaling: scale.Scaling | None, data: Dataset) -> bool:
        """Write the training package to the bucket, and use the one that is there afterwards. True where that is this
        group's own; False where another group was first: its θ(0) and scaling are then to be prepared again."""
        if self._package is not None:
            return True
        ref, form = reference(self._algorithm), form_of(parameter)
        package = Package(
            format=GROUP_FORMAT,
            algorithm=ref.name,
            source=ref.source,
            hyper=_plain(self._algorithm),
            submitted=self._submitted_hyper,
            parameter=(form.name, tuple(form.fields)),
            data=form_of_data(data, self._job),
            exchange=self.exchange_kind,
            outer=self._outer_step,
            every=self._job.sites.every,
            made_by=self._job.sites.group,
        )
        scales = [] if scaling is None else [np.asarray(column, dtype=np.float64) for column in scaling]
        content = encode(package, [*pytree.flatten(parameter), *scales])
        found = self._with_retries(lambda: self._written_package(content), "package")
        mine = digest_of(encode(found[0], found[1])) == digest_of(content)
        self._use(found, data)
        return mine

    def _written_package(self, content: bytes) -> tuple[Package, list[Array]]:
        """The package that all groups use: this one, unless somebody was first."""
        self._write_package(content)
        found = self._read_package()
        if found is None:
            raise OSError("job was removed as soon as it was written")
        return found

    def _write_package(self, content: bytes) -> None:
        """Store the package under its checksum, and the object that names it, unless there is one already."""
        sha, seal = digest_of(content), self._seal
        key = f"package/{sha}"
        self._bucket.put(key, seal.seal(key, content))
        try:
            self._bucket.put(JOB, seal.seal(JOB, encode(PackageRef(sha))), "create")
        except Conflict:
            return  # somebody was first, or this is the second try of a put that has happened

    def _with_retries(self, call: Callable[[], Any], what: str) -> Any:
        """What `call` returns, tried again while the bucket fails, for `BUCKET_START_SECONDS`; after that, and for
        objects that are refused, an error. `what`: the name of the object, for its sentence."""
        began = clock.now()
        while True:
            try:
                return call()
            except KeyMissing:
                raise UsageError(
                    f"The objects in {self._bucket.place} are signed, and this group has no key; give "
                    f"{option('group_key')} with the key file of {self._job.sites.group}."
                ) from None
            except (RefusedObject, DecodeError) as error:
                told = "The training package" if what == "package" else what
                raise StorageError(
                    f"{told} in {self._bucket.place} was refused: {error}; use a new bucket for a new job."
                ) from None
            except OSError as error:
                if clock.now() - began > active().groups.store_start_seconds:
                    raise StorageError(f"{self._bucket.place} cannot be used as a bucket ({error}).") from None
                clock.sleep(0.2)

    # -- training ------------------------------------------------------------------------------------------

    def start(self, parameter: Tree, zero: Tree) -> None:
        """Begin to synchronize; from now on other groups see this one."""
        job = self._job
        first = self.parameter()
        self._base = additive_fields(self._algorithm, parameter if first is None else first)
        self._base = self._base if self.exchange_kind == "parameters" else []
        sent = self._base if self.exchange_kind == "parameters" else pytree.flatten(zero)
        peers = self._peers()
        settings = GroupSettings(
            name=job.sites.group,
            life=self._life,
            exchange=self.exchange_kind,
            outer=job.sites.outer,
            silence=job.sites.group_timeout,
            beat=self._beat_seconds,
            least_groups=job.sites.groups,
            address=peers.address if peers is not None else "",
            package=digest_of(encode(*self._package)) if self._package is not None else "",
            largest=8 * sum(a.nbytes for a in (*pytree.flatten(zero), *pytree.flatten(parameter))) + (1 << 20),
        )
        machine = Group(settings, [a.shape for a in sent], self._base, clock.now())
        score = self._scorer(parameter) if self._gate is not None else None
        self.link = GroupLink(machine, self._bucket, self._seal, job.sites.group_timeout, self._gate, score, peers)
        self.link.start()

    def _peers(self) -> GroupMessenger | None:
        """Direct messages, where what arrives can be told from what a stranger sends."""
        job = self._job
        if not job.sites.group_key:
            return None

        def heard(content: bytes) -> None:
            if self.link is not None:
                self.link.hinted(content)

        return GroupMessenger(job.sites.group_listen, self._seal, heard)

    def _scorer(self, parameter: Tree) -> Callable[[Offered], float]:
        """A function that scores an offered change on this group's rows for the gate."""
        rows = open_job_data(self._job, self._job.sites.gate_data, self._algorithm).read()
        algorithm = self._algorithm

        def score(offer: Offered) -> float:
            """The accuracy where there is one, else minus the objective."""
            fields = iter(moved(self._score_base, offer.arrays, [np.zeros(())] * len(offer.arrays)))
            named = zip(pytree.names(parameter), pytree.flatten(parameter), strict=True)
            bare = not pytree.is_bundle(parameter)
            theta = [next(fields) if name in algorithm.placement.additive or bare else a for name, a in named]
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
            "group": self._job.sites.group,
            "groups": list(exchange.groups),
            "rounds": exchange.rounds,
            "objective_of": sorted({self._job.sites.group, *exchange.evaluated}),
            "agreed_in": exchange.round - 1 if exchange.agreed and exchange.together else None,
            "without": exchange.without(),
            "bytes_sent": link.bytes_sent,
            "bytes_received": link.bytes_received,
            "requests": link.requests,
            "messages_received": link.messages_received,
            "sync_seconds": round(statistics.median(took), 4) if took else None,
        }

    def close(self) -> None:
        if self.link is not None:
            self.link.close(self.ended)


def open_group(job: Job, algorithm: Algorithm) -> GroupSession:
    """The group of a job that does not train alone; refuses options that do not fit together."""
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


def form_of_data(data: Dataset, job: Job) -> DataForm:
    """What the rows are, for comparison with those of other groups."""
    how = data.treatment
    special = [column for column in how.inputs if column.use != "number"]
    return DataForm(
        columns=data.columns,
        features=tuple(str(name) for name in how.feature_names or ()),
        classes=tuple(data.classes or ()),
        dtype=data.dtype.name,
        scale=scale.check_method(job.scale),
        gaps=job.missing,
        treatment=tuple((c.name, f"{c.use} ({', '.join(c.categories)})" if c.categories else c.use) for c in special),
    )


def _are_means(means: Array | None, weights: Array | None, columns: int) -> bool:
    """Whether arrays of another group are weighted means of rows with this many columns: shapes fit, all numbers are
    finite, no weight is negative."""
    return (
        means is not None
        and weights is not None
        and means.ndim == 2
        and means.shape[1] == columns
        and weights.shape == means.shape[:1]
        and finite([means, weights])
        and bool((weights >= 0).all())
    )
