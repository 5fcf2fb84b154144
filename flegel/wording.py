"""How messages name options and positions: as whoever reads them would type them. Knows no option, and reads nothing.

A process speaks to a Python program, or to a person at a command line. Commands say so once (`wording_for`); processes
of a job are told by the one that starts them. Messages are written once, with `option` and `number` in them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

Listener = Literal["python", "command-line"]
SPEAKS_TO = "FLEGEL_SPEAKS_TO"
"""Variable of the environment that tells processes of a job whom they speak to."""
_NONE: Any = object()
_listener: list[Listener] = ["python"]


def listener() -> Listener:
    """Whom this process speaks to."""
    return _listener[0]


def speak_to(who: str) -> None:
    """From now on; anything unknown is a Python program."""
    _listener[0] = "command-line" if who == "command-line" else "python"


@contextmanager
def wording_for(who: Listener) -> Iterator[None]:
    """Inside, messages are for these readers, in all threads."""
    before = listener()
    speak_to(who)
    try:
        yield
    finally:
        speak_to(before)


def counted(count: int, thing: str) -> str:
    """`1 worker`, `2,000 workers`: a number with what it counts, whose plural ends with an s."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def option(name: str, value: Any = _NONE) -> str:
    """An option, perhaps with a value: `--missing drop`, or `missing="drop"`; without a value `--missing`, or
    `missing=`."""
    if listener() == "python":
        return f"{name}=" if value is _NONE else f"{name}={_python(value)}"
    flag = f"--{name.replace('_', '-')}"
    if value is _NONE or value is True:
        return flag
    return f"{flag} {_word(value)}"


def duration_option(name: str, seconds: float) -> str:
    """An option whose value is a time, as it can be written: `--interval 50ms`, or `interval=0.05`."""
    if listener() == "python":
        return option(name, seconds)
    units = (("ms", 1e3), ("us", 1e6)) if 0 < seconds < 1 else ()
    unit, scale = next((each for each in units if seconds * each[1] >= 1), ("s", 1.0))
    return option(name, f"{seconds * scale:g}{unit}")


def setting(name: str, value: Any) -> str:
    """A hyper-parameter with a value: `k=3`, or `--set k=3`."""
    return f"{name}={_python(value)}" if listener() == "python" else f"--set {name}={_word(value)}"


def _python(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return f"{value:g}" if isinstance(value, float) else repr(value)


def _word(value: Any) -> str:
    if value is False:
        return "no"
    if isinstance(value, list | tuple):
        return ",".join(_word(one) for one in value)
    return f"{value:g}" if isinstance(value, float) else shlex.quote(str(value))


def number(index: int) -> int:
    """Of a row or column whose index is this: counted from 0 in Python, from 1 as people do elsewhere."""
    return index if listener() == "python" else index + 1
