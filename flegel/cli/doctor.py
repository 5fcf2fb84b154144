"""`flegel doctor`: whether this host is fit for jobs, what is wrong, and how to mend it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from flegel.errors import ExitCode
from flegel.terminal.reporting import errors_as_sentences


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at this host: cores, memory, compiled code, sockets, clock, GPUs; what is wrong and how to mend it.

    Exits with 1 where something is broken; a note says what could be better. Changes nothing.
    """
    with errors_as_sentences():
        from flegel.checks.host import examine_host

        found = list(examine_host())
        if as_json:
            print(json.dumps([asdict(finding) for finding in found], indent=1))
        else:
            for finding in found:
                print(f"{finding.state:6}  {finding.subject:13}  {finding.text}")
                if finding.mend:
                    print(f"{'':23}→ {finding.mend}")
        broken = [finding.subject for finding in found if finding.state == "broken"]
        if broken:
            print(f"flegel: jobs cannot run well here: {', '.join(broken)}.", file=sys.stderr)
            raise typer.Exit(ExitCode.FAILED)
