"""The number that tells a process of a group from earlier ones of the same name. Reads the group's last beat."""

from __future__ import annotations

from flegel.configuration.active import active
from flegel.errors import DecodeError, UsageError
from flegel.group_options import GroupSpec
from flegel.machine.group.group import ENDED_PHASES
from flegel.machine.group.records import MAX_BEAT_BYTES, MEMBERS, MemberBeat, decode
from flegel.runtime import clock
from flegel.runtime.group.bucket import Bucket
from flegel.runtime.group.keys import RefusedObject, Seal
from flegel.runtime.group.package_store import PackageStore


def beat_seconds(sites: GroupSpec) -> float:
    """Between two beats: five within the limit of silence."""
    return min(1.0, sites.group_timeout / 5)


def held_beat(bucket: Bucket, seal: Seal, key: str) -> MemberBeat | None:
    """The last beat that a process of a group wrote; None where there is none, or it cannot be read."""
    try:
        held = bucket.get(key, MAX_BEAT_BYTES)
        return None if held is None else decode(seal.open(key, held.content), MemberBeat)[0]
    except (RefusedObject, DecodeError):
        return None


def new_life(bucket: Bucket, seal: Seal, store: PackageStore, sites: GroupSpec, watches: bool = True) -> int:
    """Larger than the number of the last process of this group. Refused where that process still changes its beat,
    which is watched for a while."""
    key = MEMBERS + sites.group
    began = clock.now()
    first = store.retried(lambda: held_beat(bucket, seal, key), key)
    watched = active().groups.watched_beats * beat_seconds(sites) if watches else 0.0
    while first is not None and first.state not in ENDED_PHASES and clock.now() - began < watched:
        clock.sleep(0.1)
        held = store.retried(lambda: held_beat(bucket, seal, key), key)
        if held is not None and (held.life, held.beat) != (first.life, first.beat):
            raise UsageError(
                f"Another process takes part as {sites.group} in {bucket.place}; give this group another name, or end "
                "that one first."
            )
    return max(clock.microseconds(), 0 if first is None else first.life + 1)
