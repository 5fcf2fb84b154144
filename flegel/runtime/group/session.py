"""A job as one group of several: checks its options, joins through the training package, and makes its parts.

The first group writes the package (algorithm, hyper-parameters, θ(0), scaling); all others begin with that, so that
statistics mean the same everywhere. Source is compared by its hash, and never run from here: `joining.py` asks the code
gate for that. What the rows are is compared in one record (`flegel.machine.group.data_form`), before θ(0) is made and
when the package is used.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable
from functools import partial
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
from flegel.errors import DecodeError, UsageError
from flegel.job import Job
from flegel.loading.class_source import in_plain, reference
from flegel.machine.group.data_form import DataForm, difference
from flegel.machine.group.events import Offered
from flegel.machine.group.exchange import GroupExchange, additive_fields, exchange_of
from flegel.machine.group.fragments import Fragments
from flegel.machine.group.group import ENDED_PHASES, Group, GroupSettings
from flegel.machine.group.option_checks import check_exchange_options, check_group_options
from flegel.machine.group.outer_step import plus
from flegel.machine.group.quorum import parse_grace, parse_quorum
from flegel.machine.group.records import (
    CURRENT,
    MAX_BEAT_BYTES,
    MAX_RECORD_HEADER_BYTES,
    MEMBERS,
    NAME,
    PACKAGE_POINTER,
    STARTS,
    Contribution,
    Current,
    Package,
    RoundResult,
    StartRows,
    decode,
    digest_of,
    encode,
    finite,
    result_key,
)
from flegel.machine.group.schedule import parse_every
from flegel.machine.group.waiting import WaitReports, missing_groups
from flegel.machine.group.wire import restored
from flegel.messages import TreeLayout
from flegel.params.gate import Gate
from flegel.params.tree_layout import build, form_of
from flegel.runtime import clock
from flegel.runtime.group.bucket import open_bucket
from flegel.runtime.group.joining import check_memory
from flegel.runtime.group.keys import KeyMissing, RefusedObject, check_keys, read_key_file
from flegel.runtime.group.link import GroupLink
from flegel.runtime.group.own_life import beat_seconds, held_beat, new_life
from flegel.runtime.group.package_store import GROUP_FORMAT, PackageStore, StoredPackage
from flegel.runtime.group.peers import GroupMessenger, parse_listen
from flegel.runtime.job.gate_score import gate_scorer, new_gate
from flegel.wording import option

_log = logging.getLogger(__name__)

START_POLL_SECONDS = 0.05
"""Between two looks for the rows of other groups, from which θ(0) is made."""


class GroupSession:
    """One group at one site, from the options of its job to its end."""

    def __init__(self, job: Job, algorithm: Algorithm) -> None:
        """Check the options of the group, read its key file, and open its bucket."""
        self._job, self._algorithm = job, algorithm
        self.exchange_kind = exchange_of(algorithm)
        self._every = parse_every(job.sites.interval)
        self._quorum, self._grace = parse_quorum(str(job.sites.quorum)), parse_grace(job.sites.grace)
        check_exchange_options(job.sites, self.exchange_kind, type(algorithm).__name__)
        check_group_options(job.sites)
        check_keys(job.sites)
        self._seal = read_key_file(job.sites.group_key, job.sites.group)
        self._bucket = open_bucket(job.sites.bucket)
        self._store = PackageStore(self._bucket, self._seal, job.sites.group)
        self._gate = self._make_gate()
        """Whether a change of θ is good enough to be sent; None: all are."""
        if job.sites.group_listen:
            parse_listen(job.sites.group_listen)
        self._submitted_hyper = _plain(algorithm)
        """Hyper-parameters as the user gave them, before any hook ran: all groups must agree in them."""
        self._package: StoredPackage | None = None
        self._earlier: StoredPackage | None = None
        """Where this group begins a new training in the bucket of an earlier one: the package of that, with its last θ;
        None where its rows or settings are others than now, so that training begins afresh."""
        self._after = ""
        """Hash of the package of the earlier training; empty where there is none."""
        self._pointer_tag = ""
        """Of the object `job` that named the earlier package, which a new training replaces."""
        self._data_form: DataForm | None = None
        """What the rows of this group are; None until they are read."""
        self._ignored_objects: set[str] = set()
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
        sites = self._job.sites
        return new_gate(sites) if (sites.gate or sites.gate_data) and not sites.gates_workers else None

    # -- the training package ------------------------------------------------------------------------------

    def join(self, data: Dataset) -> None:
        """Read the package where there is one, and take the algorithm's settings from it."""
        self._data_form = form_of_data(data, self._job)
        self._life = new_life(self._bucket, self._seal, self._store, self._job.sites)
        found = self._store.retried(self._store.read, "package")
        if found is None:
            return
        if self._job.sites.new_training and self._store.retried(lambda: self._is_over(found), "current"):
            self._begin_after(found, data)
        else:
            self._use(found, data)

    def ended_groups(self) -> list[str]:
        """The groups of the training that this one joins, where all of them have ended."""
        if self._package is None:
            return []
        names = [name for name in self._bucket.names(MEMBERS) if NAME.fullmatch(name.removeprefix(MEMBERS))]
        found = {name.removeprefix(MEMBERS): held_beat(self._bucket, self._seal, name) for name in names}
        beats = {name: beat for name, beat in found.items() if beat and beat.package == self._package.sha256}
        return sorted(beats) if all(beat.state in ENDED_PHASES for beat in beats.values()) else []

    # -- an earlier training in the same bucket ------------------------------------------------------------

    def _is_over(self, found: StoredPackage) -> bool:
        """Whether the training of a package has ended: its last result is final, or nobody who takes part in it changes
        its beat. One without a result has just begun."""
        sha = found.sha256
        result, _ = self._newest_result(sha)
        return result is not None and (result.final or not self._somebody_trains(sha))

    def _newest_result(self, package: str) -> tuple[RoundResult | None, list[Array]]:
        """The result that `current` names, where it is of the training of this package."""
        held = self._bucket.get(CURRENT, MAX_BEAT_BYTES)
        if held is None:
            return None, []
        current, _ = decode(self._seal.open(CURRENT, held.content), Current)
        key = result_key(current.round)
        stored = self._bucket.get(key) if current.package == package else None
        if stored is None:
            return None, []
        return decode(self._seal.open(key, stored.content), RoundResult)

    def _somebody_trains(self, package: str) -> bool:
        """Whether the beat of a group with this package changes while it is watched."""
        names = [name for name in self._bucket.names(MEMBERS) if NAME.fullmatch(name.removeprefix(MEMBERS))]
        others = [name for name in names if name != MEMBERS + self._job.sites.group]
        first = {name: held_beat(self._bucket, self._seal, name) for name in others}
        watched = {n: b for n, b in first.items() if b and b.package == package and b.state not in ENDED_PHASES}
        until = clock.now() + active().groups.watched_beats * beat_seconds(self._job.sites)
        while watched and clock.now() < until:
            clock.sleep(0.1)
            for name, before in watched.items():
                held = held_beat(self._bucket, self._seal, name)
                if held is not None and (held.life, held.beat) != (before.life, before.beat):
                    return True
        return False

    def _begin_after(self, found: StoredPackage, data: Dataset) -> None:
        """Begin a new training with the last θ of an earlier one, where this group trains the same; else afresh."""
        self._after = found.sha256
        pointer = self._store.retried(lambda: self._bucket.get(PACKAGE_POINTER, MAX_BEAT_BYTES), PACKAGE_POINTER)
        self._pointer_tag = pointer.tag if pointer is not None else ""
        try:
            self._check_same(found.header, data)
        except UsageError as why:
            _log.warning("the new training in %s does not begin with θ of the earlier one: %s", self._bucket.place, why)
            return
        theta = self._store.retried(lambda: self._last_parameter(found), "current")
        if theta is not None:
            self._take_hyper(found.header)
            self._earlier = StoredPackage(found.header, [*theta, *found.arrays[len(theta) :]])

    def _last_parameter(self, found: StoredPackage) -> list[Array] | None:
        """The fields of θ after the last result of a training; None where they cannot be told from its objects."""
        result, arrays = self._newest_result(found.sha256)
        name, names = found.header.parameter
        fields = list(found.arrays[: max(len(names), 1)])
        if result is not None and result.fields:
            additive = self._algorithm.placement.additive
            held = [a for field, a in zip(names or (name,), fields, strict=True) if not names or field in additive]
            replaced = iter(self._merged(found.header.fragments, held, result, arrays))
            fields = [
                next(replaced, a) if not names or field in additive else a
                for field, a in zip(names or (name,), fields, strict=True)
            ]
        elif result is not None:
            for entry in result.entries:
                found_entry = self._bucket.get(entry.key)
                content = self._seal.open(entry.key, found_entry.content) if found_entry is not None else b""
                if digest_of(content) == entry.digest:
                    header, sent = decode(content, Contribution)
                    theta = sent[header.fields :]
                    if [a.shape for a in theta] == [a.shape for a in fields]:
                        return list(theta)
            return None
        return fields

    def _merged(self, count: int, base: list[Array], newest: RoundResult, arrays: list[Array]) -> list[Array]:
        """θ of a training: the newest value of each fragment, as far as its result can be read, else that of θ(0)."""
        fragments = Fragments([field.shape for field in base], count)
        for round_ in sorted(set(newest.exchanged_in) - {0}):
            result, parts = newest, arrays
            if round_ != newest.round:
                stored = self._bucket.get(result_key(round_))
                if stored is None:
                    continue
                result, parts = decode(self._seal.open(result_key(round_), stored.content), RoundResult)
            shapes = [shape for fragment in result.fragments for shape in fragments.shapes(fragment)]
            rest = restored(result.short, parts, shapes)[: result.fields] if result.fields else []
            for fragment in result.fragments if rest else ():
                many = len(fragments.shapes(fragment))
                if newest.exchanged_in[fragment] == round_:
                    base = fragments.put(fragment, base, rest[:many])
                rest = rest[many:]
        return base

    def _use(self, package_found: StoredPackage, data: Dataset) -> None:
        """Train what the first group trains: refuse another class, other hyper-parameters or another form of data."""
        self._check_same(package_found.header, data)
        check_memory(package_found, self._bucket)
        self._package = package_found
        self._take_hyper(package_found.header)

    def _check_same(self, package: Package, data: Dataset) -> None:
        """Raise `UsageError` with what differs between a package and this job."""
        algorithm, place = self._algorithm, self._bucket.place
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
        if package.exchange != self.exchange_kind or package.outer != self._outer_step:
            raise UsageError(f"The groups of {place} use {option('outer', package.outer or 'mean')}; use the same.")
        if parse_quorum(package.quorum) != self._quorum:
            raise UsageError(f"The groups of {place} use {option('quorum', package.quorum)}; use the same.")
        if (package.fragments, package.outliers) != (self._job.sites.fragments, self._job.sites.outliers):
            same = f"{option('fragments', package.fragments)} and {option('outliers', package.outliers)}"
            raise UsageError(f"The groups of {place} use {same}; use the same.")
        if why := difference(package.data, form_of_data(data, self._job), f"The groups of {place}"):
            raise UsageError(why)

    def _take_hyper(self, package: Package) -> None:
        """The hyper-parameters with which θ of the package was made."""
        algorithm = self._algorithm
        hyper = {k: v for k, v in package.hyper.items() if v is not None}
        for name, value in type(algorithm)(**hyper).hyper().items():
            setattr(algorithm, name, value)

    @property
    def _outer_step(self) -> str:
        """How changes of θ are applied to it (`--outer`); empty where groups exchange statistics."""
        if self.exchange_kind != "parameters":
            return ""
        if self._job.sites.outer != "auto":
            return self._job.sites.outer
        return "visits" if self._quorum.given else "mean"  # a late change may hold the work of several rounds

    def scaling(self) -> scale.Scaling | None:
        """How the first group scales its columns."""
        package = self._package or self._earlier
        if package is None or package.header.data.scale == "none":
            return None
        return scale.Scaling(*(np.array(a) for a in package.arrays[-2:]))

    def parameter(self) -> Tree | None:
        """θ(0) of the package, or the last θ of the training before; None where this is the first group."""
        stored = self._package or self._earlier
        if stored is None:
            return None
        package, arrays = stored.header, stored.arrays
        name, fields = package.parameter
        count = max(len(fields), 1)
        return build(TreeLayout(name, fields), tuple(np.array(a) for a in arrays[:count]), self._algorithm)

    def joint_sample(self, sample: Sample, waits: Callable[[str], None] = lambda why: None) -> Sample:
        """Weighted means of the rows of all groups, as far as they are expected and come in time; this group's own
        sample where the algorithm, the rows or scaled columns do not allow that. `waits` is told for whom it waits."""
        job = self._job
        if not self._algorithm.placement.starts_from_means or job.sites.groups < 2 or job.scale != "none":
            return self._own_start(sample)
        own = representatives(sample, np.random.default_rng(job.seed), job.sites.least_rows)
        if own is None or self._data_form is None:
            return self._own_start(sample)
        key = STARTS + job.sites.group
        content = self._seal.seal(key, encode(StartRows(job.sites.group, self._data_form, self._after), own))
        self._store.retried(lambda: self._bucket.put(key, content), key)
        began = clock.now()
        reports = WaitReports()
        while True:
            found = self._store.retried(self._starts, STARTS)
            waited_long = clock.now() - began > job.sites.group_timeout
            pointer = self._store.retried(lambda: self._bucket.get(PACKAGE_POINTER, MAX_BEAT_BYTES), PACKAGE_POINTER)
            # θ(0) has been chosen: this group will begin with that one
            package_exists = pointer is not None and pointer.tag != self._pointer_tag
            if len(found) >= job.sites.groups or waited_long or package_exists:
                break
            missing = missing_groups(len(found), job.sites.groups, job.sites.group_timeout)
            report = reports.look(f"{missing} to choose θ(0)", at_once=True, now=clock.now())
            if report is not None:
                waits(report.why)
            clock.sleep(START_POLL_SECONDS)
        found[job.sites.group] = list(own)  # also where it was damaged or removed meanwhile
        rows = np.concatenate([found[group][0] for group in sorted(found)])
        weights = np.concatenate([found[group][1] for group in sorted(found)])
        if not len(rows):
            return self._own_start(sample)
        return Sample(rows.astype(np.asarray(sample.features[:1]).dtype), None, len(rows), sample.columns, weights)

    def _own_start(self, sample: Sample) -> Sample:
        """The sample from which this group alone makes θ(0), where its rows may be shown."""
        least, alone = self._job.sites.least_rows, self.exchange_kind == "statistics" or self._job.scale != "none"
        if alone and sample.points < least:
            raise UsageError(
                f"This site has {sample.points} rows, fewer than {option('least_rows', least)}, and θ(0) would tell of "
                "them; start a larger site first."
            )
        return sample

    def _starts(self) -> dict[str, list[Array]]:
        """Means and weights by group, as far as they can be seen. Files that no group wrote are left alone; a group
        whose rows are others than these is named, and nothing of this group stays behind."""
        found: dict[str, list[Array]] = {}
        assert self._data_form is not None
        own, columns = self._job.sites.group, self._data_form.columns
        # Twice what float64 means and weights take.
        largest = 2 * 8 * active().starts.group_representatives * (columns + 1) + MAX_RECORD_HEADER_BYTES
        for key in self._bucket.names(STARTS):
            group = key.removeprefix(STARTS)
            try:
                held = self._bucket.get(key, largest) if NAME.fullmatch(group) and group != own else None
                if held is None:
                    continue
                header, arrays = decode(self._seal.open(key, held.content), StartRows)
            except KeyMissing:
                raise
            except (RefusedObject, DecodeError) as error:
                if key not in self._ignored_objects:
                    self._ignored_objects.add(key)
                    _log.warning("%s is not used for θ(0): %s", key, error)
                continue
            if header.group != group or header.after != self._after:
                continue
            if why := difference(header.data, self._data_form, group):
                self._store.retried(lambda: self._bucket.delete(STARTS + own), STARTS + own)
                raise UsageError(f"{why} If {group} does not take part, remove {key} from {self._bucket.place}.")
            means, weights = (*arrays, None, None)[:2]
            if _are_means(means, weights, columns):
                found[group] = arrays
        found[own] = []
        return found

    def publish(self, parameter: Tree, zero: Tree, scaling: scale.Scaling | None, data: Dataset) -> bool:
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
            every=self._job.sites.interval,
            made_by=self._job.sites.group,
            statistics_bytes=sum(a.nbytes for a in pytree.flatten(zero)),
            after=self._after,
            quorum=str(self._job.sites.quorum),
            fragments=self._job.sites.fragments,
            outliers=self._job.sites.outliers,
        )
        scales = [] if scaling is None else [np.asarray(column, dtype=np.float64) for column in scaling]
        content = encode(package, [*pytree.flatten(parameter), *scales])
        write = partial(self._store.write, content, self._pointer_tag)
        package_found: StoredPackage = self._store.retried(write, "package")
        is_own = package_found.sha256 == digest_of(content)
        self._use(package_found, data)
        return is_own

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
            outer=self._outer_step,
            fragments=job.sites.fragments,
            outliers=job.sites.outliers,
            quorum=self._quorum,
            grace=self._grace,
            silence=job.sites.group_timeout,
            beat=beat_seconds(self._job.sites),
            least_groups=job.sites.groups,
            address=peers.address if peers is not None else "",
            package=self._package.sha256 if self._package is not None else "",
            # more than any contribution takes; 1 MiB for headers.
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
        algorithm = self._algorithm
        model_score = gate_scorer(
            self._job, algorithm, self.scaling(), self._data_form.features if self._data_form is not None else ()
        )

        def score(offer: Offered) -> float:
            """How good θ of the offer is: its own where statistics are exchanged; else that of the last result plus the
            offered change, where fields that are not additive stay."""
            additive = iter([] if offer.parameter else self._changed(offer))
            named = zip(pytree.names(parameter), pytree.flatten(parameter), strict=True)
            bare = not pytree.is_bundle(parameter)
            theta = list(offer.parameter) or [
                next(additive) if name in algorithm.placement.additive or bare else a for name, a in named
            ]
            return model_score(pytree.unflatten(parameter, theta))

        return score

    def _changed(self, offer: Offered) -> list[Array]:
        """Additive fields of θ of the last result, with an offered change."""
        assert self.link is not None
        base = self.link.base
        fragments = Fragments([field.shape for field in base], self._job.sites.fragments)
        return fragments.put(offer.fragment, base, plus(fragments.take(offer.fragment, base), offer.arrays))

    def exchange(self) -> GroupExchange:
        """The coordinator's part."""
        sites = self._job.sites
        return GroupExchange(
            self._algorithm, self._every, sites.group_timeout, self._base, sites.least_rows, sites.wire, sites.fragments
        )

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
            "ages": dict(exchange.ages),
            "withheld": exchange.withheld,
            "fragments": exchange.fragments,
            "outliers": dict(exchange.outliers),
            "goodput": None if exchange.goodput is None else round(exchange.goodput, 4),
            "wire": exchange.form.wire or "full",
            "link_bytes_per_second": round(exchange.form.link),
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
