"""What is said of one tuned number: its unit, what it is for, and which values make sense."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, get_type_hints


@dataclass(frozen=True)
class Setting:
    """The description of a field of a settings record."""

    unit: str
    """What 1 means: "seconds", "of a pass", "rounds"."""
    meaning: str
    """What the number decides and why it has this value; an ablation figure where one was measured
    (docs/results/ablation.md)."""
    low: float = 0.0
    high: float = 1e12
    """Smallest and largest value that is accepted, both included."""


@dataclass(frozen=True)
class DescribedSetting:
    """A setting with its place and its default."""

    name: str
    """With its subject: `interval.shortest_seconds`."""
    about: Setting
    default: float
    whole: bool
    """Its value is a whole number."""


def described(subject: str, record: Any) -> list[DescribedSetting]:
    """The settings of a record, in the order of its fields; its values are the defaults."""
    hints = get_type_hints(type(record), include_extras=True)
    return [
        DescribedSetting(
            f"{subject}.{field.name}",
            hints[field.name].__metadata__[0],
            getattr(record, field.name),
            hints[field.name].__origin__ is int,
        )
        for field in dataclasses.fields(record)
    ]
