"""Settings of placement: how slices of θ are cut, and when they move between servers (plan/placement, machine/server).

The placement paper is the one on which network awareness in docs/servers.md is based (003 elsewhere in the code).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class PlacementSettings:
    """Sizes of slices, forecasts of links, and how sure a gain has to be."""

    first_slice_cost: Annotated[
        float,
        Setting(
            "parameters",
            "Fixed cost of transferring a slice, until transfers of two sizes were seen (α of the placement "
            "paper, Section 3.1).",
            1e-9,
        ),
    ] = 1.2e5
    fewest_slices_each_server: Annotated[
        int, Setting("slices", "Slices of a server at least: those of a lost server can go to two others.", 1)
    ] = 2
    most_slices_each_server: Annotated[
        int,
        Setting(
            "slices",
            "Slices of a server at most, whatever their cost is: 64 divide a load to 1.6 %, which is finer than "
            "`load_tolerance`.",
            1,
        ),
    ] = 64
    slice_time_tolerance: Annotated[
        float,
        Setting(
            "of a round's transfers",
            "Slices may be smaller than the best size as far as they cost so little more (placement paper, Eq. 1): "
            "smaller ones divide loads more finely.",
            0,
            1,
        ),
    ] = 0.05
    slice_cost_transfers: Annotated[
        float,
        Setting("transfers", "So many are seen before the fitted cost of a slice counts, less those forgotten.", 2, 49),
    ] = 30.0
    probe_parameters: Annotated[
        int,
        Setting(
            "parameters",
            "Size of the small slices by which the links of servers that carry nothing are measured (placement paper, "
            "Section 5.2).",
            0,
        ),
    ] = 10_000
    probe_share: Annotated[
        float,
        Setting("ratio", "`--server-load published`: γ in the chance of a piece of θ to be a probe (Eq. 5).", 0, 1),
    ] = 0.6
    slice_cost_memory: Annotated[
        float,
        Setting(
            "of the past", "Weight of the past when one more transfer is seen: the last 50 count for most.", 0, 0.9999
        ),
    ] = 0.98
    load_tolerance: Annotated[float, Setting("of its share", "A load that is so near its share stays as it is.")] = 0.05
    measuring_slices: Annotated[
        int,
        Setting(
            "slices",
            "Slices that a server with a share of 0 keeps, so that its link is measured (placement paper, Section"
            " 3.2).",
        ),
    ] = 2
    peak_share: Annotated[
        float,
        Setting(
            "of a node's bytes",
            "The rate of a node is the largest one at which at least this part was carried: a burst is no throughput.",
            0,
            1,
        ),
    ] = 0.1
    newest_weight: Annotated[
        float, Setting("of a mean", "Weight of the last round in the forecast of a link's rate.", 0, 1)
    ] = 0.5
    first_noise: Annotated[
        float,
        Setting(
            "relative",
            "Assumed error of a rate that was measured once: on equal links under load single rounds differ by up"
            " to 15 %.",
        ),
    ] = 0.2
    changed_link: Annotated[
        float, Setting("ratio", "A rate that changed by this factor replaces the forecast: the link has changed.", 1)
    ] = 2.0
    savings_over_cost: Annotated[
        float,
        Setting("ratio", "A move must save so many times what it costs in the remaining rounds: both are forecasts."),
    ] = 2.0
    pairwise_similar_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "`--server-load published`: Algorithm 1 of 003 ends when the times of all links are as near; the paper's.",
            0,
            86400,
        ),
    ] = 1.0
    pairwise_steps_each_server: Annotated[
        int,
        Setting(
            "steps for each server",
            "`--server-load published`: bound of Algorithm 1, which the paper says takes half a step for each server.",
            1,
        ),
    ] = 50
    least_gain: Annotated[
        float,
        Setting("of a round's transfers", "Slices move only where that saves at least this part."),
    ] = 0.05
    noise_multiple: Annotated[
        float,
        Setting(
            "times the noise",
            "A gain must exceed so many times the error of the rates where plans are not tried first. (A trial: "
            "what would the plan have saved in later rounds?) On four equal links whose rates differ by 25 % from"
            " round to round, this rule moved slices in 15 of 20 simulated jobs of 40 rounds, trials in 3. Where "
            "one link has 60 % of the others' rate, trials move slices within 6 rounds in half of the jobs.",
        ),
    ] = 2.0
    least_bytes: Annotated[
        int, Setting("bytes", "θ and statistics below it are no load for a network: nothing is measured or moved.")
    ] = 1_000_000
    first_remaining_rounds: Annotated[
        int, Setting("rounds", "A job is assumed to have as many rounds left as it has done, and at least so many.", 1)
    ] = 5
    shortest_measured_wait_seconds: Annotated[
        float,
        Setting(
            "seconds",
            "Shorter waits are within the delay of a thread that has to be woken, and of what a library read ahead.",
        ),
    ] = 0.010
    load_folds: Annotated[
        int,
        Setting("folds", "`--server-count load`: the load of servers is that of so many folds.", 1),
    ] = 20
    busy_servers: Annotated[
        float,
        Setting(
            "of the time",
            "`--server-count load`: a job that waits longer for its servers gets one more.",
            0,
            1,
        ),
    ] = 0.2
    idle_servers: Annotated[
        float,
        Setting(
            "of the time",
            "`--server-count load`: one server leaves where the wait would stay shorter without it; less than half of "
            "`busy_servers`, so that no server comes and goes.",
            0,
            1,
        ),
    ] = 0.05
    server_gain: Annotated[
        float,
        Setting(
            "of the wait",
            "`--server-count load`: a further server that shortens the wait by less than this leaves again.",
            0,
            1,
        ),
    ] = 0.1
    virtual_nodes: Annotated[
        int,
        Setting(
            "places on the ring",
            "Per server. With 8 servers a plain ring of 64 has max/mean 1.30; the quota of `assignment.py` "
            "brings it to 1.06.",
            1,
            4096,
        ),
    ] = 64
