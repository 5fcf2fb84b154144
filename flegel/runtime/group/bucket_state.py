"""Reads what a bucket of groups holds, for `flegel groups`. Writes nothing, and is no group."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from flegel.errors import DecodeError, StorageError, UsageError, in_words
from flegel.machine.group.overview import overview
from flegel.machine.group.records import (
    CURRENT,
    MAX_BEAT_BYTES,
    MEMBERS,
    NAME,
    Current,
    MemberBeat,
    RoundResult,
    decode,
    result_key,
)
from flegel.runtime import clock
from flegel.runtime.group.bucket import Bucket, open_bucket
from flegel.runtime.group.keys import KeyMissing, RefusedObject, Seal, read_key_file
from flegel.runtime.group.package_store import PackageStore
from flegel.wording import option

Record = TypeVar("Record", MemberBeat, Current, RoundResult)


class BucketReader:
    """One bucket, read with a key file or without one."""

    def __init__(self, place: str, key_file: str = "") -> None:
        if "://" not in place and not Path(place).expanduser().is_dir():
            raise UsageError(f"{place} is no folder; name the bucket of a training, or an address such as s3://b/job.")
        self._seal: Seal = read_key_file(key_file, "")
        self._bucket: Bucket = open_bucket(place)
        self.place = self._bucket.place
        self._refused: dict[str, str] = {}
        """Objects that could not be used in the last look, and why."""

    def look(self, seconds: float) -> tuple[str, dict[str, Any]]:
        """What is trained, and the state of its groups; beats are compared over so many seconds."""
        try:
            return self._look(seconds)
        except KeyMissing:
            raise UsageError(
                f"The objects in {self.place} are signed; give {option('group_key')} with the key file of a group."
            ) from None
        except (RefusedObject, DecodeError) as error:
            raise StorageError(f"The training package in {self.place} was refused: {error}.") from None
        except OSError as error:
            raise StorageError(f"{self.place} cannot be read ({in_words(error)}).") from None

    def _look(self, seconds: float) -> tuple[str, dict[str, Any]]:
        package = PackageStore(self._bucket, self._seal, "").read()
        if package is None:
            raise UsageError(f"No training has begun in {self.place}: it holds no object `job`.")
        self._refused = {}
        before = self._beats(package.sha256)
        clock.sleep(seconds)
        beats = self._beats(package.sha256)
        sizes = {beat.sent: size for beat in beats.values() if beat.sent and (size := self._size(beat.sent))}
        header = package.header
        training = f"{header.algorithm}, {header.exchange} every {header.every}, quorum {header.quorum}"
        return training, overview(before, beats, self._newest(package.sha256), sizes, self._refused)

    def _beats(self, package: str) -> dict[str, MemberBeat]:
        """Of the groups of this training, by name."""
        found: dict[str, MemberBeat] = {}
        for key in self._bucket.names(MEMBERS):
            name = key.removeprefix(MEMBERS)
            beat = self._read(key, MemberBeat, MAX_BEAT_BYTES) if NAME.fullmatch(name) else None
            if beat is not None and beat.package == package:
                found[name] = beat
        return found

    def _size(self, key: str) -> int:
        """Bytes of a contribution; 0 where there is none."""
        try:
            held = self._bucket.get(key)
        except (RefusedObject, ValueError) as error:  # `ValueError`: no name of an object
            self._refused[key] = str(error)
            return 0
        return len(held.content) if held is not None else 0

    def _newest(self, package: str) -> RoundResult | None:
        """The newest result of this training, as far as it can be read."""
        current = self._read(CURRENT, Current, MAX_BEAT_BYTES)
        if current is None or current.package != package:
            return None
        return self._read(result_key(current.round), RoundResult, 0)

    def _read(self, key: str, kind: type[Record], largest: int) -> Record | None:
        """An object; None where it is not there, or is refused, which is noted."""
        try:
            held = self._bucket.get(key, largest)
            return None if held is None else decode(self._seal.open(key, held.content), kind)[0]
        except KeyMissing:
            raise
        except (RefusedObject, DecodeError) as error:
            self._refused[key] = str(error)
            return None
