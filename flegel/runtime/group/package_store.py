"""The training package in the bucket: read and written, within bounds. Runs nothing of what is in it.

The object `job` names the package by its hash and says in which format it is. That is read first, so that a group of
another version is told which one it needs, whatever else has changed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from flegel import __version__
from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.errors import DecodeError, StorageError, UsageError, in_words
from flegel.machine.group.records import (
    MAX_BEAT_BYTES,
    PACKAGE_POINTER,
    Package,
    PackageRef,
    decode,
    digest_of,
    encode,
)
from flegel.runtime import clock
from flegel.runtime.group.bucket import Bucket, Conflict
from flegel.runtime.group.keys import KeyMissing, RefusedObject, Seal
from flegel.wording import option

RANKS_OF_PYTORCH = "flegel.torch:Site"
"""In place of the name of a class, where the groups are ranks of PyTorch: such a package holds no code."""
GROUP_FORMAT = 7  # version of the objects of a group, and of the lock of a folder


class StoredPackage(NamedTuple):
    """The training package that all groups begin with."""

    header: Package
    arrays: list[Array]
    """The fields of θ(0), then shift and factor of each column where columns are scaled."""
    signer: str = ""
    """The group whose key has signed it; empty without keys."""

    @property
    def sha256(self) -> str:
        """By which beats, results and `current` name the training."""
        return digest_of(encode(self.header, self.arrays))


class PackageStore:
    """Package and pointer of one bucket, for one group."""

    def __init__(self, bucket: Bucket, seal: Seal, group: str) -> None:
        self._bucket, self._seal, self._group = bucket, seal, group

    def read(self) -> StoredPackage | None:
        """What the first group stored for all: the class and θ(0). None while there is nothing yet."""
        pointer = self._bucket.get(PACKAGE_POINTER, MAX_BEAT_BYTES)
        if pointer is None:
            return None
        ref, _ = decode(self._seal.open(PACKAGE_POINTER, pointer.content), PackageRef)
        if ref.format != GROUP_FORMAT:
            raise UsageError(
                f"The groups of {self._bucket.place} use Flegel {ref.version or 'of an earlier version'} with objects "
                f"of format {ref.format}, and this one is {__version__} with format {GROUP_FORMAT}; use one version at "
                "all sites."
            )
        key = f"package/{ref.sha256}"
        if not re.fullmatch("[0-9a-f]{64}", ref.sha256):
            raise RefusedObject("job names no package")
        held = self._bucket.get(key)
        if held is None:
            raise OSError(f"{key} is not there")
        content = self._seal.open(key, held.content)
        if digest_of(content) != ref.sha256:
            raise RefusedObject(f"{key} is not what its name says")
        return StoredPackage(*decode(content, Package), self._seal.signer(held.content))

    def write(self, content: bytes, replaced_tag: str) -> StoredPackage:
        """The package that all groups use: this one, unless somebody was first. `replaced_tag`: of the object `job` of
        an earlier training, which is replaced; empty: there is none."""
        sha = digest_of(content)
        key = f"package/{sha}"
        self._bucket.put(key, self._seal.seal(key, content))
        pointer = self._seal.seal(PACKAGE_POINTER, encode(PackageRef(sha, GROUP_FORMAT, __version__)))
        with contextlib.suppress(Conflict):  # somebody was first, or this is the second try of a put that has happened
            self._bucket.put(PACKAGE_POINTER, pointer, "swap" if replaced_tag else "create", replaced_tag)
        found = self.read()
        if found is None:
            raise OSError("job was removed as soon as it was written")
        return found

    def retried(self, call: Callable[[], Any], what: str) -> Any:
        """What `call` returns, tried again while the bucket fails, for `store_start_seconds`; after that, and for
        objects that are refused, an error. `what`: the name of the object, for its sentence."""
        began, place = clock.now(), self._bucket.place
        while True:
            try:
                return call()
            except KeyMissing:
                raise UsageError(
                    f"The objects in {place} are signed, and this group has no key; give {option('group_key')} with "
                    f"the key file of {self._group}."
                ) from None
            except (RefusedObject, DecodeError) as error:
                told = "The training package" if what == "package" else what
                raise StorageError(f"{told} in {place} was refused: {error}; use a new bucket for a new job.") from None
            except OSError as error:
                if clock.now() - began > active().groups.store_start_seconds:
                    raise StorageError(f"{place} cannot be used as a bucket ({in_words(error)}).") from None
                clock.sleep(0.2)
