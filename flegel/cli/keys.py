"""`flegel keys`: new, show, add, revoke. Only shows and asks; files are the work of `flegel.cluster.transport.keys`."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import Annotated

import typer

from flegel.errors import FlegelError, UsageError

app = typer.Typer(
    help="Keys: who may submit jobs, run slaves or read, on the cluster whose master runs here.",
    no_args_is_help=True,
)

Role = Annotated[str, typer.Option(help="submit (run jobs), slave (offer this host), read (look), or master.")]


def _fail(error: FlegelError) -> typer.Exit:
    print(f"flegel: {error}", file=sys.stderr)
    return typer.Exit(error.exit_code)


@app.command()
def new(
    role: Annotated[str, typer.Option(help="What the key is for: submit, slave or read.")] = "submit",
    name: Annotated[str | None, typer.Option(help="File name of the key; the role by default.")] = None,
) -> None:
    """Make a key pair on this host, and say what to type on the master's.

    For example, on a host that will run a slave:

        flegel keys new --role slave
    """
    from flegel.cluster.transport import keys

    try:
        if role not in keys.ROLES:
            raise UsageError(f"A key can be made for {', '.join(keys.ROLES)}, not for {role[:40]!r}.")
        pair = keys.create(name or role)
    except FlegelError as error:
        raise _fail(error) from None
    print(f"The secret half is in {keys.folder() / (name or role)}.key and leaves this host never.")
    print("On the master's host, type:")
    print(f"    flegel keys add {pair.public} --role {role}")


@app.command()
def show(json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """This host's own public keys, and the keys that may come in."""
    from flegel.cluster.transport import keys

    own, others = keys.own_pairs(), keys.KeyRegistry().entries()
    if json:
        listed = [{"key": e.key, "role": e.role, "name": e.name, "address": e.address} for e in others]
        print(json_module.dumps({"own": own, "allowed": listed}, indent=1))
        return
    print(f"Own keys (public halves) in {keys.folder()}:")
    for name, public in own.items():
        print(f"    {name:16} {public or 'cannot be used: damaged, or others can read it'}")
    if not own:
        print("    none; `flegel keys new` makes one")
    print("Keys that may come in here:")
    for entry in others:
        if entry.role in keys.ROLES:
            print(f"    {entry.role:16} {entry.key} {entry.name}")
    trusted = [e for e in others if e.role == keys.MASTER]
    if trusted:
        print("Masters that are trusted here:")
        for entry in trusted:
            print(f"    {entry.address or 'any address':16} {entry.key} {entry.name}")


@app.command()
def add(
    key: Annotated[str, typer.Argument(help="A public key: 64 hexadecimal digits.")],
    role: Role = "submit",
    name: Annotated[str, typer.Option(help="Whose it is, for people.")] = "",
    address: Annotated[str, typer.Option(help="For role master: where it listens, tcp://HOST:PORT.")] = "",
) -> None:
    """Let a key in, at once, also while a master runs; or trust a master's key.

    For example:

        flegel keys add 4e2b49… --role slave --name node7

        flegel keys add 9ac1f0… --role master --address tcp://head:7077
    """
    from flegel.cluster.transport.framing import host_of
    from flegel.cluster.transport.keys import KeyRegistry

    try:
        if address:
            host_of(address)
        entry = KeyRegistry().add(key, role, name, address)
    except FlegelError as error:
        raise _fail(error) from None
    print(f"{entry.key} is known now, with role {entry.role}.")


@app.command()
def revoke(which: Annotated[str, typer.Argument(help="A key, its first 8 or more digits, or its name.")]) -> None:
    """Shut a key out, at once, also while a master runs: nothing that it says counts any more.

    For example:

        flegel keys revoke node7
    """
    from flegel.cluster.transport.keys import KeyRegistry

    try:
        entry = KeyRegistry().revoke(which)
    except FlegelError as error:
        raise _fail(error) from None
    print(f"{entry.key} (role {entry.role}) is not known any more.")


@app.command()
def groups(
    names: Annotated[list[str], typer.Argument(help="Names of the groups, as in --group.")],
    folder: Annotated[Path, typer.Option(help="Where the key files go; groups that have one there keep it.")] = Path(
        "group-keys"
    ),
    encrypt: Annotated[bool, typer.Option("--encrypt", help="Also encrypt what groups write.")] = False,
    code: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A group whose class the others run (`flegel join`); repeatable."),
    ] = None,
) -> None:
    """Make a key file for each group of a job at several sites. Bring each file to its site, and nowhere else.

    For example:

        flegel keys groups paris lyon oslo --encrypt

        flegel submit kmeans --data part.csv --group paris --bucket s3://b/job --group-key group-keys/paris.json
    """
    from flegel.runtime.group.keys import make_key_files

    try:
        for path in make_key_files(folder, names, encrypt, code or []):
            print(path)
    except FlegelError as error:
        raise _fail(error) from None
