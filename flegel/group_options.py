"""Options of a job that trains one model together with jobs at other sites, as one record. Nothing acts."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from flegel.errors import UsageError, nearest
from flegel.options import Option, parse_seconds

GROUPS = "Groups at several sites"
"""Heading under which these options are listed."""
OUTER_STEPS = ("mean", "visits", "nesterov")
LEAST_GROUP_TIMEOUT_SECONDS = 2.0  # two heartbeats of a group


def check_group(value: str, shown: str) -> None:
    if value and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", value):
        raise UsageError(f"{shown} is no name of a group; use letters, digits, - and _.")


def check_outer(value: str, shown: str) -> None:
    if value not in OUTER_STEPS:
        raise UsageError(f"{shown} is not known{nearest(value, list(OUTER_STEPS))}")


def check_positive(value: int, shown: str) -> None:
    if value < 1:
        raise UsageError(f"{shown} must be at least 1.")


def check_silence(seconds: float, shown: str) -> None:
    if not LEAST_GROUP_TIMEOUT_SECONDS <= seconds < 86400:
        raise UsageError(f"{shown} must be {LEAST_GROUP_TIMEOUT_SECONDS:g} seconds or more, less than a day.")


class GroupSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of this group, where groups meet, and how often; without a name the job trains alone."""

    group: Annotated[
        str,
        Option(
            "Train one model together with other groups: the name of this one. Needs --bucket.",
            GROUPS,
            metavar="NAME",
            check=check_group,
            see="sites.md",
        ),
    ] = ""
    bucket: Annotated[
        str,
        Option(
            "Where the groups of a job meet: a folder, or an address such as s3://bucket/job.", GROUPS, see="sites.md"
        ),
    ] = ""
    every: Annotated[
        str,
        Option(
            "Synchronize groups every so many barriers (3), by time (30s), or at an interval that is found (auto).",
            GROUPS,
            metavar="T|DURATION|auto",
            see="sites.md",
        ),
    ] = "3"
    groups: Annotated[
        int,
        Option(
            "So many groups are expected: training is not over before they have taken part.",
            GROUPS,
            check=check_positive,
        ),
    ] = 1
    group_timeout: Annotated[
        float,
        Option(
            "A group without a sign of life for so long is not waited for any more.",
            GROUPS,
            metavar="DURATION",
            default="30s",
            parse=parse_seconds,
            check=check_silence,
        ),
    ] = 30.0
    outer: Annotated[
        str,
        Option(
            "How changes of θ are put together where gradients are trained: mean, visits or nesterov.",
            GROUPS,
            check=check_outer,
            see="sites.md",
        ),
    ] = "mean"
    gate: Annotated[
        str,
        Option(
            "Networks: send only what scores so well on --gate-data: best (so far), or a number such as 0.8.",
            GROUPS,
            metavar="best|X",
            cluster=False,
            see="sites.md",
        ),
    ] = ""
    gate_data: Annotated[
        str, Option("Rows that are not trained on, for --gate.", GROUPS, metavar="PATH", cluster=False)
    ] = ""
    gate_failures: Annotated[
        int, Option("Excluded after so many scores in a row that were not good enough.", GROUPS, check=check_positive)
    ] = 10
    group_key: Annotated[
        str,
        Option(
            "Key file of this group (`flegel keys groups`): what it writes is signed, and encrypted if asked for.",
            GROUPS,
            metavar="FILE",
            cluster=False,
            see="sites.md",
        ),
    ] = ""
    group_listen: Annotated[
        str,
        Option(
            "Host and port at which other groups reach this one, after the address to listen at where that is another: "
            "rounds are faster, and work without it.",
            GROUPS,
            metavar="[ADDRESS/]HOST:PORT",
            cluster=False,
            see="sites.md",
        ),
    ] = ""
