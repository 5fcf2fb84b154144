"""Options of groups that need or exclude each other, or would do nothing: each is refused with one sentence. Pure."""

from __future__ import annotations

from flegel.errors import UsageError
from flegel.group_options import GroupSpec
from flegel.machine.group.quorum import parse_grace, parse_quorum
from flegel.options import options_of, parse_seconds
from flegel.wording import duration_option, option


def check_group_options(sites: GroupSpec) -> None:
    """What can be said before the algorithm and its rows are known."""
    of_workers = ("gate", "gate_data", "gate_of", "gate_failures")  # alone they are about each worker
    given = [one for one in options_of(GroupSpec).values() if one.value(sites) != one.default]
    given = [one for one in given if one.name not in of_workers]
    if given and not (sites.group or sites.bucket):
        first = given[0]
        shown = duration_option if first.about.parse is parse_seconds else option
        raise UsageError(
            f"{shown(first.name, first.value(sites))} is about groups at several sites; give {option('group')} and "
            f"{option('bucket')} as well, or omit it."
        )
    if sites.gate_of == "group" and not sites.group:
        raise UsageError(f"{option('gate_of', 'group')} is about a group; give {option('group')}, or omit it.")
    quorum = parse_quorum(str(sites.quorum))
    parse_grace(sites.grace)
    if quorum.count > sites.groups > 1:
        raise UsageError(
            f"{option('quorum', sites.quorum)} can never be reached by {option('groups', sites.groups)}; use a quorum "
            f"of at most {sites.groups}."
        )
    for name, other, is_without_effect in (
        ("grace", "quorum", sites.grace != "auto" and not quorum.given),
        ("gate_failures", "gate", sites.gate_failures != GroupSpec().gate_failures and not sites.gate),
    ):
        if is_without_effect:
            raise UsageError(
                f"{option(name, getattr(sites, name))} has no effect without {option(other)}; give that as well, or "
                "omit it."
            )


def check_exchange_options(sites: GroupSpec, exchange: str, algorithm: str) -> None:
    """Options about changes of θ, where groups exchange statistics. `algorithm`: its name."""
    if exchange != "statistics":
        return
    if sites.wire not in ("full", "auto"):
        raise UsageError(
            f"{option('wire')} rounds changes of θ, and groups exchange statistics of {algorithm}, which stay exact; "
            "omit it."
        )
    about_changes = {"fragments": sites.fragments > 1, "outliers": sites.outliers != "keep"}
    about_changes["outer"] = sites.outer != "auto"
    for name, is_given in about_changes.items():
        if is_given:
            raise UsageError(
                f"{option(name)} is about changes of θ, and groups exchange statistics of {algorithm}; omit it."
            )
