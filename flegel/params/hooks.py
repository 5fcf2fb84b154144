"""Calls of a user's hooks on the coordinator's side, with errors that say where. Decides nothing, reads no clock.

Hooks get read-only views: what they are given belongs to the engine, and a hook that wrote into it would train wrongly
in silence. Whoever must know that a hook runs, and for how long, is an observer; the runtime has one that ends hooks
which do not return.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.declarations.optional import PLAIN_DEFAULTS, defines, hook_named
from flegel.errors import AlgorithmError, FlegelError, HookTimeout, Terminated, own_traceback
from flegel.wording import option

Some = TypeVar("Some")


class HookObserver(Protocol):
    """Told of each hook that is entered and left."""

    def entered(self, algorithm: Algorithm, hook: str, extra: float) -> None:
        """`extra`: seconds that this call may take beyond the limit of a hook, because the engine works in it too."""
        ...

    def ended(self, algorithm: Algorithm) -> None:
        """The hook has raised, and its error is being told."""
        ...

    def left(self, algorithm: Algorithm) -> None: ...


hook_observers: list[HookObserver] = []
"""All of this process; each looks for its own algorithm."""


def call_hook(algorithm: Algorithm, place: str, name: str, *args: Any) -> Any:
    """What the hook returns. What it raises becomes an `AlgorithmError` with the user's own traceback; `place` is the
    round, for the message."""
    plain = PLAIN_DEFAULTS.get(name)
    if plain is not None and not defines(algorithm, plain):
        return plain(algorithm, *args)
    presented = [pytree.presented(a) if pytree.is_tree(a) else a for a in args]
    return guarded(algorithm, name, f"coordinator, {place}", lambda: hook_named(algorithm, name)(*presented))


def guarded(
    algorithm: Algorithm, name: str, where: str, call: Callable[[], Some], observed: bool = True, extra: float = 0.0
) -> Some:
    """What a call of user code returns; everything that it may do instead becomes one `AlgorithmError`."""
    watching = list(hook_observers) if observed else []
    for observer in watching:
        observer.entered(algorithm, name, extra)
    try:
        return call()
    except (FlegelError, KeyboardInterrupt, Terminated):
        raise
    except HookTimeout as late:
        for observer in watching:
            observer.ended(algorithm)
        text = (
            f"{name} has not returned in time ({where}; {late}); a longer {option('hook_timeout')} gives it more time."
        )
        raise AlgorithmError(text, own_traceback(late)) from None
    except SystemExit as end:
        text = f"{name} called sys.exit({end.code!r}) ({where}); a hook returns, and terminationCheck ends a job."
        raise AlgorithmError(text, own_traceback(end)) from None
    except BaseException as error:
        hint = "; hooks get read-only arrays, change a copy" if is_write_error(error) else ""
        text = f"{name} raised {type(error).__name__}: {error} ({where}{hint})"
        raise AlgorithmError(text, own_traceback(error)) from error
    finally:
        for observer in watching:
            observer.left(algorithm)


def is_write_error(error: BaseException) -> bool:
    """NumPy says this of arrays that are not to be changed."""
    return isinstance(error, ValueError) and "read-only" in str(error)
