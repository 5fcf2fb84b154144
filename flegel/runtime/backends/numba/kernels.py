"""The kernel of an algorithm for processors: a hand-written one, a compiled loop over its hooks, or an interpreted one.

Imports no compiler: hand-written kernels whose code is in the cache run without.
"""

from __future__ import annotations

from dataclasses import dataclass

from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.core.code_folder import take_turns
from flegel.core.pytree import Tree
from flegel.core.shard import Shard
from flegel.core.stop_flag import new_flag
from flegel.declarations.kernels import Kernel, KernelHooks
from flegel.declarations.optional import hook
from flegel.runtime.backends.numba.compile_turns import check_memory, turn
from flegel.runtime.backends.numba.interpreted_loop import interpreted
from flegel.runtime.worker.current_hook import EnteredHook

take_turns(turn, check_memory)


@dataclass(frozen=True)
class Built:
    """A kernel and how it came about: `hand-written` (`note` says which of several), `compiled` or `interpreted`
    (`note` says why)."""

    kernel: Kernel
    kind: str
    note: str = ""


def build_kernel(
    algorithm: Algorithm, shard: Shard, parameter: Tree, zero: Tree, interpret: bool = False, cold: bool = False
) -> Built:
    """The fastest kernel this algorithm has, warmed: called once with the types that training will use.

    `cold`: nobody will call it here, so a hand-written one, which compiles for certain, is left as it is.
    """
    with EnteredHook("kernel"):
        own = hook(algorithm, KernelHooks.kernel)(shard)
    if own is not None and not interpret:
        if not cold:
            warm(own, shard, parameter, zero)
        return Built(own, "hand-written", choice_of(algorithm, shard))
    if not interpret:
        from flegel.runtime.backends.numba.compiler import compile_loop  # numba takes a second to import

        compiled = compile_loop(algorithm, shard, parameter, zero)
        try:
            warm(compiled, shard, parameter, zero)
            return Built(compiled, "compiled")
        except Exception as error:  # noqa: BLE001 - the flag is up: no hook ran, so it is numba that gave up
            return Built(interpreted(algorithm), "interpreted", _first_line(error))
    return Built(interpreted(algorithm), "interpreted", "as asked")


def another(algorithm: Algorithm, built: Built, shard: Shard) -> Kernel:
    """The same kernel for another thread of a team: they keep something between or during calls, so each thread has its
    own. A compiled loop makes others like itself."""
    if built.kind == "compiled":
        made: Kernel = built.kernel.another()  # type: ignore[attr-defined]
        return made
    with EnteredHook("kernel"):
        own = hook(algorithm, KernelHooks.kernel)(shard)
    assert own is not None
    return own


def choice_of(algorithm: Algorithm, shard: Shard) -> str:
    """Which of its kernels a class takes for these rows, and why."""
    return str(hook(algorithm, KernelHooks.kernel_choice)(shard))


def warm(kernel: Kernel, shard: Shard, parameter: Tree, zero: Tree) -> None:
    """Compile or load from the cache without training: the flag is up, so no point is touched."""
    flag = new_flag()
    flag[0] = 1
    kernel(shard, pytree.read_only(parameter), pytree.zeros_like(zero, typed=True), 0, shard.points, 0, flag)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    useful = [line for line in lines if not line.startswith(("Failed in", "During:", "File ", "<source"))]
    return " ".join(useful[:2])[:300] if useful else type(error).__name__
