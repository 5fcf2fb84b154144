"""Options of a job that trains one model together with jobs at other sites, as one record. Nothing acts."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from flegel.errors import UsageError, nearest
from flegel.options import Option, parse_seconds

GROUPS = "Groups at several sites"
"""Heading under which these options are listed."""
WIRES = ("full", "bf16", "int8", "int4")
"""How changes of θ are written, the most exact form first."""
CHOSEN_WIRES = ("auto", *WIRES)
OUTLIERS = ("keep", "clip", "damp", "exclude")
OUTER_STEPS = ("auto", "mean", "visits", "nesterov")
LEAST_GROUP_TIMEOUT_SECONDS = 2.0  # two heartbeats of a group


def check_group(value: str, shown: str) -> None:
    if value and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", value):
        raise UsageError(f"{shown} is no name of a group; use letters, digits, - and _.")


def check_outer(value: str, shown: str) -> None:
    kind, colon, rate = value.partition(":")
    if kind not in OUTER_STEPS:
        raise UsageError(f"{shown} is not known{nearest(kind, list(OUTER_STEPS))}")
    if colon and (kind == "auto" or not _is_rate(rate)):
        raise UsageError(f"{shown}: a rate such as 1.5, above 0 and at most 100, follows mean:, visits: or nesterov:.")


def _is_rate(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?", text)) and 0.0 < float(text) <= 100.0


def check_group_barrier(value: str, shown: str) -> None:
    if value not in ("beside", "wait"):
        raise UsageError(f"{shown} must be beside or wait.")


def check_gate_of(value: str, shown: str) -> None:
    if value not in ("", "worker", "group"):
        raise UsageError(f"{shown} must be worker or group.")


def check_outliers(value: str, shown: str) -> None:
    if value not in OUTLIERS:
        raise UsageError(f"{shown} is not known{nearest(value, list(OUTLIERS))}")


def check_wire(value: str, shown: str) -> None:
    if value not in CHOSEN_WIRES:
        raise UsageError(f"{shown} is not known{nearest(value, list(CHOSEN_WIRES))}")


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
    new_training: Annotated[
        bool,
        Option(
            "Where the training in the bucket is over: begin a new one with its θ, instead of joining the old one.",
            GROUPS,
            see="sites.md",
        ),
    ] = False
    every: Annotated[
        str | None,
        Option(
            "Synchronize groups every so many barriers (3), by time (30s), or at an interval that is found (auto).",
            GROUPS,
            metavar="T|DURATION|auto",
            default="3",
            see="sites.md",
        ),
    ] = None
    groups: Annotated[
        int,
        Option(
            "So many groups are expected: training is not over before they have taken part.",
            GROUPS,
            check=check_positive,
        ),
    ] = 1
    quorum: Annotated[
        int | str,
        Option(
            "A round of groups ends with so many contributions (2), or those of such a share of the groups (60%), and "
            "a grace window; all: with those of every group that is there.",
            GROUPS,
            metavar="K|SHARE|all",
            see="sites.md",
        ),
    ] = "all"
    grace: Annotated[
        str,
        Option(
            "So long a round that has its quorum waits for more contributions; auto: while that brings more than it "
            "costs.",
            GROUPS,
            metavar="DURATION|auto",
            see="sites.md",
        ),
    ] = "auto"
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
    group_barrier: Annotated[
        str,
        Option(
            "While groups synchronize: train on (beside), or wait for the result as in the paper (wait).",
            GROUPS,
            metavar="beside|wait",
            check=check_group_barrier,
            see="published.md",
        ),
    ] = "beside"
    outer: Annotated[
        str,
        Option(
            "How changes of θ are put together where gradients are trained: mean, visits, nesterov; auto: visits with "
            "a quorum, else mean. mean:2 makes the step twice as long.",
            GROUPS,
            metavar="auto|mean|visits|nesterov[:RATE]",
            check=check_outer,
            see="sites.md",
        ),
    ] = "auto"
    outliers: Annotated[
        str,
        Option(
            "Networks: what is done to a change of θ that is far larger than those which its group sent before: keep, "
            "clip (make it smaller), damp (weigh it less) or exclude.",
            GROUPS,
            metavar="|".join(OUTLIERS),
            check=check_outliers,
            see="sites.md",
        ),
    ] = "keep"
    fragments: Annotated[
        int,
        Option(
            "Networks: cut θ into so many parts and exchange one in a round, the one that changed most; so many rounds "
            "in the time of --every.",
            GROUPS,
            check=check_positive,
            see="sites.md",
        ),
    ] = 1
    wire: Annotated[
        str,
        Option(
            "Networks: changes of θ as float64 (full), bfloat16 (bf16), or integers of 8 or 4 bits with a scale for "
            "each 256 of them (int8, int4); auto: the most exact form for which the measured link is fast enough.",
            GROUPS,
            metavar="auto|full|bf16|int8|int4",
            check=check_wire,
            see="sites.md",
        ),
    ] = "full"
    least_rows: Annotated[
        int,
        Option(
            "Send nothing that tells of fewer rows of this site than so many.",
            GROUPS,
            metavar="ROWS",
            check=check_positive,
            see="sites.md",
        ),
    ] = 1
    gate: Annotated[
        str,
        Option(
            "Count only what scores so well on --gate-data: best (so far), or a number such as 0.8.",
            GROUPS,
            metavar="best|X",
            see="gate.md",
        ),
    ] = ""
    gate_data: Annotated[str, Option("Rows that are not trained on, for --gate.", GROUPS, metavar="PATH")] = ""
    gate_of: Annotated[
        str,
        Option(
            "Whose models pass the gate: those of each worker, or that of the group, which is meant where --group is "
            "given.",
            GROUPS,
            metavar="worker|group",
            default="worker, or group",
            check=check_gate_of,
            see="gate.md",
        ),
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

    @property
    def interval(self) -> str:
        """`every` as it was given, or its default; None tells that nobody gave it."""
        return "3" if self.every is None else self.every

    @property
    def gates_workers(self) -> bool:
        """The model of each worker is judged, not that of the group."""
        given = bool(self.gate or self.gate_data or self.gate_of)
        return given and (self.gate_of or ("group" if self.group else "worker")) == "worker"
