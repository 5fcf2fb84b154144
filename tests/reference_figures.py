"""Tables of docs/metrics.md and docs/messages.md, from the code: `tests/reference_tables.py` puts them there.

Metrics come from `flegel.metrics.families` with a job and a master that have something to say; messages from the unions
of the codecs, with the docstrings of their classes and fields.
"""

from __future__ import annotations

import ast
import inspect
import tokenize
from collections.abc import Iterator, Sequence
from functools import cache
from io import StringIO
from types import SimpleNamespace
from typing import Any, get_args

import msgspec

from flegel import messages, server_messages
from flegel.cluster.transport import protocol
from flegel.machine.coordinator.observation import JobSnapshot
from flegel.machine.group import records
from flegel.metrics.families import Family, JobFigures, cluster_families

SEEN = JobSnapshot("kmeans", "fsp", "training", 1, 1, estimate=1.0, interval=1.0)


def metric_rows() -> Iterator[str]:
    """A row for each family, those of a job first."""
    figures = JobFigures()
    figures.take(SEEN, [])
    job = figures.families()
    running = SimpleNamespace(job="…", state="running", snapshot=msgspec.to_builtins(SEEN))
    master = cluster_families([running], [SimpleNamespace(state="here", slots=1, used=0)])
    of_job, of_master = ({family.name for family in families} for families in (job, master))
    yield "| metric | kind | labels | of | meaning |"
    yield "|---|---|---|---|---|"
    for family in [*job, *(each for each in master if each.name not in of_job)]:
        name = f"{family.name}_total" if family.kind == "counter" else family.name
        places = [word for word, names in (("job", of_job), ("master", of_master)) if family.name in names]
        text = family.help.rstrip(".")
        yield f"| `{name}` | {family.kind} | {_labels(family)} | {', '.join(places)} | {text} |"


def _labels(family: Family) -> str:
    """Names of labels, and their values where they are words of a fixed set."""
    values: dict[str, list[str]] = {}
    for sample in family.samples:
        for name, value in sample.labels.items():
            values.setdefault(name, []).append(value)
    fixed = {name: ": " + ", ".join(found) if name in ("state", "use") else "" for name, found in values.items()}
    return "; ".join(f"`{name}`{words}" for name, words in fixed.items())


def message_tables() -> Iterator[str]:
    """A table for each pair of sender and receiver."""
    orders = [each for each in get_args(messages.Order) if each not in get_args(messages.ServerOrder)]
    peers = [each for each in get_args(messages.PeerMessage) if each not in get_args(messages.ServerBetween)]
    answers = [each for each in get_args(messages.Answer) if each not in get_args(messages.ServerAnswer)]
    groups: list[tuple[str, Sequence[type]]] = [
        ("Coordinator to worker", orders),
        ("Worker to coordinator", answers),
        ("Worker to worker, and to the process that serves rows", peers),
        ("Coordinator to parameter server", get_args(server_messages.ServerOrder)),
        ("Parameter server to coordinator", get_args(server_messages.ServerAnswer)),
        ("Between parameter servers and workers", get_args(server_messages.ServerBetween)),
        ("Master to slave", protocol.TO_SLAVE),
        ("Slave and client to master", tuple(protocol.RIGHTS)),
        ("Master to client", protocol.TO_CLIENT),
        ("Records of groups in a bucket", _records()),
    ]
    known = {each for _, kinds in groups for each in kinds}
    parts = [each for module in (messages, protocol) for each in _parts(module, known)]
    for title, kinds in [*groups, ("Parts of messages", parts)]:
        yield f"## {title}"
        yield ""
        yield "| message | meaning | fields |"
        yield "|---|---|---|"
        yield from map(_message, kinds)
        yield ""


def _records() -> list[type]:
    return [each for each in _structs(records) if not each.__name__.startswith("_")]  # frames are no records


def _parts(module: Any, known: set[type]) -> list[type]:
    """Typed parts that fields of messages have."""
    return [each for each in _structs(module) if each not in known and not each.__name__.startswith("_")]


def _structs(module: Any) -> list[type]:
    found = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    return [each for each in found if each.__module__ == module.__name__]


def _message(kind: type) -> str:
    meaning = " ".join((inspect.getdoc(kind) or "").split())
    fields = [field for base in reversed(kind.__mro__) if "__annotations__" in vars(base) for field in _fields(base)]
    return f"| `{kind.__name__}` | {_cell(meaning)} | {'; '.join(fields)} |"


def _fields(kind: type) -> Iterator[str]:
    """Name, type and meaning of each field that this class adds."""
    if not kind.__module__.startswith("flegel.") or kind.__module__ == "flegel.job":
        return
    tree, comments = _source(kind)
    named = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}  # as they travel
    for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        said = comments.get(statement.end_lineno or 0, "")
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            said = " ".join(str(following.value.value).split())
        about = f": {_cell(said)}" if said else ""
        name = named.get(statement.target.id, statement.target.id)
        yield f"`{name}: {_cell(ast.unparse(statement.annotation))}`{about}"


@cache
def _source(kind: type) -> tuple[ast.ClassDef, dict[int, str]]:
    """The class as it is written, and the comments behind its lines."""
    text = inspect.getsource(kind)
    (tree,) = ast.parse(text).body
    assert isinstance(tree, ast.ClassDef)
    tokens = tokenize.generate_tokens(StringIO(text).readline)
    return tree, {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}


def _cell(text: str) -> str:
    return text.strip().rstrip(".").replace("|", "\\|")
