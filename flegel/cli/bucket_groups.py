"""`flegel groups`: the state of a bucket in which groups at several sites train. Changes nothing."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from flegel.options import parse_seconds
from flegel.terminal.reporting import errors_as_sentences


def groups(
    bucket: Annotated[str, typer.Argument(help="A folder, or an address such as s3://bucket/job.")],
    group_key: Annotated[str, typer.Option(help="Key file of a group, where objects are signed.")] = "",
    watch: Annotated[str, typer.Option(help="Compare beats over so long: a group whose beat stays is silent.")] = "3s",
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the groups of a bucket: rounds, who is waited for, ages of contributions, bytes.

    For example:

        flegel groups s3://models/job7
    """
    with errors_as_sentences():
        from flegel.machine.group.overview import told
        from flegel.runtime.group.bucket_state import BucketReader

        reader = BucketReader(bucket, group_key)
        training, found = reader.look(parse_seconds(watch))
        if json_:
            print(json.dumps({"bucket": reader.place, "training": training, **found}))
        else:
            print("\n".join(told(reader.place, training, found)))
