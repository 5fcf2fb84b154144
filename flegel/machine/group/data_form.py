"""What the rows of a group are, in one record: groups whose records differ must not add their statistics. Pure."""

from __future__ import annotations

import msgspec


class DataForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Columns and how they became numbers; compared when groups meet."""

    columns: int
    features: tuple[str, ...]
    """Names in their order; empty where the rows have none."""
    classes: tuple[str, ...]
    """Labels that are words, in the order of their numbers."""
    dtype: str
    scale: str
    """The method of --scale."""
    gaps: str
    """The method of --missing."""
    treatment: tuple[tuple[str, str], ...] = ()
    """Name and treatment of each column of a table that is not a plain number, categories included."""


def difference(theirs: DataForm, own: DataForm, who: str) -> str:
    """One sentence that says what differs and what to do; empty where nothing does. `who`: whose record it is."""
    if theirs.columns != own.columns:
        return (
            f"{who} {_has(who)} {theirs.columns} columns, and this group has {own.columns}; give all groups the same "
            "columns in the same order."
        )
    if theirs.features != own.features:
        pairs = enumerate(zip(theirs.features, own.features, strict=False))
        at = next((i for i, (one, other) in pairs if one != other), 0)
        return (
            f"Column {at + 1} of {who} is {_name(theirs.features, at)}, and of this group {_name(own.features, at)}; "
            "give all groups the same columns in the same order."
        )
    if theirs.scale != own.scale:
        return f"{who} {_use(who)} --scale {theirs.scale}, and this group --scale {own.scale}; use the same."
    if theirs.classes != own.classes:
        return (
            f"{who} {_has(who)} other classes than this group ({_words(theirs.classes)}; here {_words(own.classes)}): "
            "labels that are words must be the same words everywhere; write numbers instead."
        )
    if theirs.gaps != own.gaps:
        return f"{who} {_use(who)} --missing {theirs.gaps}, and this group --missing {own.gaps}; use the same."
    for one, other in zip(theirs.treatment, own.treatment, strict=False):
        if one != other:
            return (
                f"{who} {_use(who)} column {one[0]} as {one[1]}, and this group uses {other[0]} as {other[1]}; give "
                "all groups columns that are treated alike, for example numbers instead of words."
            )
    if len(theirs.treatment) != len(own.treatment):
        longer = max(theirs.treatment, own.treatment, key=len)
        name, how = longer[min(len(theirs.treatment), len(own.treatment))]
        return f"Column {name} is {how} in one of {who} and this group, and a number in the other; treat it alike."
    if theirs.dtype != own.dtype:
        return f"The rows of {who} are {theirs.dtype}, and those of this group {own.dtype}; use one type everywhere."
    return ""


def _has(who: str) -> str:
    return "have" if who.startswith("The groups") else "has"


def _use(who: str) -> str:
    return "use" if who.startswith("The groups") else "uses"


def _name(names: tuple[str, ...], at: int) -> str:
    return repr(names[at]) if at < len(names) else "without a name"


def _words(classes: tuple[str, ...]) -> str:
    return ", ".join(repr(word) for word in classes[:5]) + (", …" if len(classes) > 5 else "") or "numbers"
