"""What a joiner needs to take part, from the bucket alone: algorithm, settings, and how rows are treated.

The package carries the source of a user's class. It runs only past the code gate: where it is signed by a group whose
code the joiner's key file trusts (`flegel keys groups … --code paris`), or where the user has said so. What the joiner
must have is compared before that: the version, the libraries that the class imports, and memory. One that does not fit
is told in a sentence and leaves; it has written nothing into the bucket, so no round knows of it.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any, NamedTuple

from flegel.algorithm import Algorithm
from flegel.datasets.rows import memory
from flegel.errors import FlegelError, UsageError
from flegel.job import AlgorithmRef
from flegel.loading.class_source import imported_modules, instantiate
from flegel.loading.code_gate import Consent
from flegel.machine.group.records import MEMBERS, Package
from flegel.runtime.group.bucket import Bucket, open_bucket
from flegel.runtime.group.keys import Seal, read_key_file
from flegel.runtime.group.package_store import RANKS_OF_PYTORCH, PackageStore, StoredPackage
from flegel.wording import option


class FoundTraining(NamedTuple):
    """A training that can be joined."""

    algorithm: Algorithm
    options: dict[str, Any]
    """Options that all groups have in common, for a joiner that does not give them."""


def find_training(place: str, group: str, group_key: str = "", trust_code: bool = False) -> FoundTraining:
    """Read the package of a bucket and make its algorithm; raises `UsageError` where this process does not fit."""
    if not group:
        raise UsageError(f"{option('group')} names this site; give it.")
    seal = read_key_file(group_key, group)
    if "://" not in place or place.startswith("file://"):
        folder = Path(place.removeprefix("file://")).expanduser()
        if not folder.is_dir():
            raise UsageError(f"There is no folder {folder}; name the bucket of a training that others have begun.")
    bucket = open_bucket(place)
    store = PackageStore(bucket, seal, group)
    found: StoredPackage | None = store.retried(store.read, "package")
    if found is None:
        raise UsageError(
            f"There is no training in {bucket.place}; `flegel submit … --group {group} --bucket {place}` begins one."
        )
    package = found.header
    if package.algorithm == RANKS_OF_PYTORCH:
        raise UsageError(
            f"The training in {bucket.place} is one of PyTorch's ranks, and a job cannot take part in it: use "
            "FlexibleDDP(…, site=Site(…))."
        )
    check_memory(found, bucket)
    ref = AlgorithmRef(package.algorithm, dict(package.submitted), package.source)
    consent = _consent(found, seal, bucket.place, trust_code) if package.source else None
    _check_libraries(package, bucket.place)
    try:
        algorithm = instantiate(ref, consent)
    except FlegelError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a class of somebody else raises, or a missing built-in one
        raise UsageError(
            f"{package.algorithm} of the training in {bucket.place} cannot be made here: {type(error).__name__}: "
            f"{error}."
        ) from None
    options: dict[str, Any] = {"every": package.every, "quorum": package.quorum, "scale": package.data.scale}
    options["missing"] = package.data.gaps
    if package.outer:
        options |= {"outer": package.outer, "fragments": package.fragments, "outliers": package.outliers}
    return FoundTraining(algorithm, options)


def check_memory(found: StoredPackage, bucket: Bucket) -> None:
    """Refuse a training whose statistics and θ do not fit into the memory of this host, beside any rows. A group holds
    θ, the θ that was sent, that of the last result and one that is being read; its statistics, those that were sent
    and those of its last contribution; and the statistics of each other group."""
    others = len(bucket.names(MEMBERS))
    theta = sum(array.nbytes for array in found.arrays)
    needed = 4 * theta + (3 + others) * found.header.statistics_bytes
    free = memory.available()
    if needed > free:
        raise UsageError(
            f"The training in {bucket.place} needs about {needed / 1e9:.1f} GB for θ and the statistics of "
            f"{others + 1} groups, and {free / 1e9:.1f} GB are free here; join from a host with more memory."
        )


def _consent(found: StoredPackage, seal: Seal, place: str, trust_code: bool) -> Consent:
    """Why the class of a package may run here; raises `UsageError` where nothing allows it."""
    if trust_code:
        return Consent.TRUSTED
    if found.signer and found.signer in seal.code:
        return Consent.SIGNED
    name = found.header.algorithm
    if found.signer:
        why = f"it is signed by {found.signer}, whose code {option('group_key')} does not trust"
        cure = f"make key files with `flegel keys groups … --code {found.signer}`"
    else:
        why, cure = "it is not signed", f"use keys ({option('group_key')})"
    raise UsageError(
        f"The training in {place} brings its own class {name}, and {why}, so nothing of it was run; {cure}, or pass "
        f"{option('trust_code', True)} if you know where it comes from."
    )


def _check_libraries(package: Package, place: str) -> None:
    """Refuse a class that imports what is not installed here, before anything of it runs."""
    if not package.source:
        return
    known = {*sys.stdlib_module_names, *sys.builtin_module_names}
    names = sorted({name.partition(".")[0] for name in imported_modules(package.source)} - known)
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{package.algorithm} of the training in {place} needs {', '.join(missing)}, which "
            f"{'are' if len(missing) > 1 else 'is'} not installed here."
        )
