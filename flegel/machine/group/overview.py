"""What a bucket of groups says about a training, for people: who is there, who is waited for, rounds and ages. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from flegel.machine.group.records import MemberBeat, RoundResult

ENDED_STATES = ("finished", "left", "excluded")


def overview(
    before: Mapping[str, MemberBeat],
    beats: Mapping[str, MemberBeat],
    result: RoundResult | None,
    sizes: Mapping[str, int],
    refused: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """`before`: beats at an earlier look, by group; one that has not changed since is silent. `result`: the newest.
    `sizes`: bytes of contributions, by name. `refused`: objects that cannot be used, and why."""
    rounds = {entry.group: entry.round for entry in result.entries} if result is not None else {}
    last = result.round if result is not None else 0
    groups = []
    for name, beat in sorted(beats.items()):
        earlier = before.get(name)
        changed = earlier is None or (beat.life, beat.beat) != (earlier.life, earlier.beat)
        counted = result.counted_of(name) if result is not None else (0, 0)
        sent = bool(beat.sent) and (beat.life, beat.sent_round) > counted
        groups.append(
            {
                "group": name,
                "state": beat.state if changed or beat.state in ENDED_STATES else f"{beat.state}, silent",
                "round": beat.round,
                "sent": sent,
                "age": last - rounds[name] if name in rounds else None,
                "workers": beat.workers,
                "commits": beat.commits,
                "bytes": sizes.get(beat.sent),
                "lacks": list(beat.lacks),
                "waited_for": changed and beat.state in ("training", "resting") and not sent,
            }
        )
    return {
        "results": last,
        "final": result is not None and result.final,
        "why": result.why if result is not None else "",
        "groups": groups,
        "refused": dict(refused),
        "waited_for": [group["group"] for group in groups if group["waited_for"]],
    }


def told(place: str, training: str, found: Mapping[str, Any]) -> list[str]:
    """Lines for a terminal."""
    end = "training is over" if found["final"] else f"round {found['results'] + 1} is open"
    lines = [f"{place}: {training}; {found['results']} results, {end}"]
    if found["why"]:
        lines.append(f"the last round ended: {found['why']}")
    lines.append(f"{'group':16} {'state':20} {'round':>6} {'sent':>5} {'age':>4} {'workers':>8} {'bytes':>12}")
    for group in found["groups"]:
        age = "-" if group["age"] is None else str(group["age"])
        size = "-" if group["bytes"] is None else f"{group['bytes']:,}"
        sent = "yes" if group["sent"] else "no"
        row = f"{group['group']:16} {group['state']:20} {group['round']:6} {sent:>5} {age:>4} {group['workers']:8}"
        lines.append(f"{row} {size:>12}")
        if group["lacks"]:
            lines.append(f"  cannot read {', '.join(group['lacks'])}")
    lines += [f"refused: {key} ({why})" for key, why in sorted(found["refused"].items())]
    if found["waited_for"] and not found["final"]:
        lines.append(f"waits for: {', '.join(found['waited_for'])}")
    return lines
