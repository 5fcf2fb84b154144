"""One HTML page, a table for the terminal and figures for Prometheus about the ranks of a data-parallel training."""

from __future__ import annotations

from flegel.report.charts import ChartCurve, curves
from flegel.report.page import figure, heading, page, paragraph, table
from flegel.report.rank_sections import OWN_SECTIONS, SECTIONS, WatchReport

MAX_DRAWN_RANKS = 6  # colours of a chart
LEAST_TOLD_SECONDS = 0.05  # of waiting: less is 0.0 with one digit
MAX_TOLD_RANKS = 5  # in a sentence; the table has all of them


def verdict(report: WatchReport) -> str:
    """The answer in a few sentences."""
    found = report.slowest()
    nothing = report.lost < LEAST_TOLD_SECONDS
    lost = "no time was lost by waiting" if nothing else f"{report.lost:.1f} s of all ranks were lost by waiting"
    if found is None:
        told = [f"No rank is slow; {lost}."]
    else:
        rank, section = found
        scores = report.ranks[rank]
        since = f", since {report.after(scores.changes[-1][0]):.0f} s after the beginning" if scores.changes else ""
        caused = "" if nothing else f", {scores.caused:.1f} s of them for rank {rank}"
        told = [
            f"Rank {rank} is slow (score {scores.relative['all']:.2f}), mostly in {section} "
            f"({scores.relative[section]:.2f}){since}{'; but ' if nothing else '; '}{lost}{caused}."
        ]
    others = report.others_slow()
    if others:
        named = ", ".join(f"rank {rank} in {section} ({score:.2f})" for rank, section, score in others[:MAX_TOLD_RANKS])
        more = f" and {len(others) - MAX_TOLD_RANKS} more" if len(others) > MAX_TOLD_RANKS else ""
        told.append(f"Slow in one section: {named}{more}.")
    for rank, seconds in report.silent[:MAX_TOLD_RANKS]:
        told.append(f"Rank {rank} has written nothing for {seconds:.0f} s while others have: it ended, or is stuck.")
    if report.absent:
        named = ", ".join(map(str, report.absent[:MAX_TOLD_RANKS]))
        more = f" and {len(report.absent) - MAX_TOLD_RANKS} more" if len(report.absent) > MAX_TOLD_RANKS else ""
        told.append(f"There is no record of rank {named}{more}: copy the folders of all hosts together.")
    return " ".join(told)


def rank_rows(report: WatchReport) -> list[list[str]]:
    """Relative scores of each rank, by section, and its losses."""
    return [
        [
            str(rank),
            *(f"{one.relative[section]:.2f}" for section in ("all", *OWN_SECTIONS)),
            f"{one.history['all']:.2f}",
            f"{one.waited:.1f}",
            f"{one.caused:.1f}",
        ]
        for rank, one in report.ranks.items()
    ]


COLUMNS = ["rank", "all", *OWN_SECTIONS, "own past", "waited, s", "others waited for it, s"]


def text_of(report: WatchReport) -> str:
    """The report for a terminal."""
    rows = [COLUMNS, *rank_rows(report)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([verdict(report), "", *lines])


def html_of(report: WatchReport) -> str:
    """The whole page."""
    shown = sorted(report.ranks, key=lambda r: report.ranks[r].relative["all"])[:MAX_DRAWN_RANKS]
    lines = [
        ChartCurve(
            f"rank {rank}",
            [(report.after(one.window), 1e3 * one.busy()) for one in report.windows[rank]],
            colour,
        )
        for colour, rank in enumerate(sorted(shown))
    ]
    spent = [
        [
            str(rank),
            *(
                f"{1e3 * sum(o.seconds.get(s, 0.0) for o in own) / max(sum(o.iterations for o in own), 1):.2f}"
                for s in SECTIONS
            ),
        ]
        for rank, own in sorted(report.windows.items())
    ]
    changes = [
        [str(rank), f"{report.after(window):.0f}", f"{1e3 * before:.2f}", f"{1e3 * after:.2f}"]
        for rank, one in report.ranks.items()
        for window, before, after in one.changes
    ]
    body = [
        paragraph(verdict(report)),
        heading("Scores"),
        paragraph("Time of the median rank over that of this rank: 1 is as fast as most, 0.5 takes twice as long."),
        table(COLUMNS, rank_rows(report)),
        heading("Milliseconds of an iteration"),
        table(["rank", *SECTIONS], spent),
        figure(lambda width: curves(lines, width, "seconds", "ms of an iteration, without the exchange")),
        heading("Changes"),
        table(["rank", "after, s", "ms before", "ms after"], changes) if changes else paragraph("None was found."),
    ]
    return page("Ranks of a data-parallel training", body)


def prometheus_of(report: WatchReport) -> str:
    """In the text format: `--prometheus FILE`, for the collector of text files."""
    lines = []
    for name, kind, told in (
        ("flegel_ddp_score", "gauge", "Time of the median rank over that of this rank, 0 to 1."),
        ("flegel_ddp_history_score", "gauge", "Time of this rank's past over that of its last windows, 0 to 1."),
        ("flegel_ddp_waited_seconds_total", "counter", "Seconds in which this rank waited for later ones."),
        ("flegel_ddp_caused_seconds_total", "counter", "Seconds in which others waited for this rank."),
        ("flegel_ddp_section_seconds_total", "counter", "Seconds of this rank by section."),
    ):
        lines += [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]
        for rank, one in report.ranks.items():
            if name == "flegel_ddp_waited_seconds_total":
                lines.append(f'{name}{{rank="{rank}"}} {one.waited:.6f}')
            elif name == "flegel_ddp_caused_seconds_total":
                lines.append(f'{name}{{rank="{rank}"}} {one.caused:.6f}')
            elif name == "flegel_ddp_section_seconds_total":
                for s in SECTIONS:
                    total = sum(o.seconds.get(s, 0.0) for o in report.windows[rank])
                    lines.append(f'{name}{{rank="{rank}",section="{s}"}} {total:.6f}')
            else:
                scores = one.relative if name == "flegel_ddp_score" else one.history
                lines += [f'{name}{{rank="{rank}",section="{s}"}} {v:.4f}' for s, v in scores.items()]
    return "\n".join(lines) + "\n"
