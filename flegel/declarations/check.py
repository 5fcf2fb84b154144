"""What a class declares, checked when it is defined: each declaration has its type, no name of earlier versions is
used, hooks are spelled as they are called, and a visit is said in one way."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from flegel.declarations.statistics import Statistics
from flegel.errors import UsageError

MOVED = {
    "sparse": "accepts = Accepts(sparse=…)",
    "weighted": "accepts = Accepts(weighted=…)",
    "supervised": 'accepts = Accepts(labels="required")',
    "labels_are_classes": 'accepts = Accepts(labels="classes")',
    "ignores_labels": 'accepts = Accepts(labels="ignored")',
    "takes_ratings": "accepts = Accepts(ratings=…)",
    "spent": "statistics = Statistics(spent=…)",
    "lagging": "statistics = Statistics(lagging=…)",
    "per_report": "statistics = Statistics(per_report=…)",
    "memoryless": "state = HiddenState(memoryless=…)",
    "keep_state": "state = HiddenState(kept=…)",
    "remakes_state": "state = HiddenState(remade=…)",
    "maximize": "learning = Learning(maximize=…)",
    "averaged": "learning = Learning(averaged=…)",
    "default_tolerance": "learning = Learning(tolerance=…)",
    "slow_gains": "learning = Learning(slow_gains=…)",
    "trivial": "learning = Learning(trivial=…)",
    "auxiliary": "learning = Learning(auxiliary=…)",
    "local_updates": "learning = Learning(local_updates=…)",
    "sharding": "placement = ParameterPlacement(sharding=…)",
    "unsharded": "placement = ParameterPlacement(unsharded=…)",
    "unsent": "placement = ParameterPlacement(unsent=…)",
    "additive": "placement = ParameterPlacement(additive=…)",
    "typed": "placement = ParameterPlacement(typed=…)",
    "starts_from_means": "placement = ParameterPlacement(starts_from_means=…)",
    "narrow_parameter": "kernels = Kernels(narrow_parameter=…)",
    "layout": "kernels = Kernels(layout=…)",
    "in_batches": "kernels = Kernels(in_batches=…)",
    "backend": "kernels = Kernels(backend=…)",
    "torch_program": "kernels = Kernels(torch_program=…)",
    "compiled_apart": "kernels = Kernels(compiled_apart=…)",
    "shown": "figures = ReportedFigures(shown=…)",
    "followed": "figures = ReportedFigures(followed=…)",
    "also_called": "hyper_names = HyperNames(also_called=…)",
    "instead": "hyper_names = HyperNames(instead=…)",
    "starting": "hyper_names = HyperNames(starting=…)",
}
"""Class attributes of earlier versions, and what says the same now."""


def check_declarations(cls: type, base: type, declared: Mapping[str, type]) -> None:
    """Raise `UsageError` for an attribute of an earlier version, or a declaration of another type. A hyper-parameter
    (an annotated attribute) or a method may have any name that is not declared here, and is no method of `base`."""
    hints = vars(cls).get("__annotations__", {})
    for name, value in {**dict.fromkeys(hints), **vars(cls)}.items():
        if name in MOVED and not _is_own(hints.get(name), value):
            raise UsageError(f"{cls.__name__}: write `{MOVED[name]}` in place of `{name}`; import it from flegel.")
        if name in MOVED and not callable(value) and not _reads(cls, name):
            warnings.warn(
                f"{cls.__name__}: no method reads the hyper-parameter `{name}`; to tell the engine, write "
                f"`{MOVED[name]}` in its place.",
                stacklevel=3,
            )
        right = next((known for known, kind in declared.items() if type(value) is kind), name)
        if right != name and name not in declared:
            raise UsageError(
                f"{cls.__name__}: `{name}` holds a flegel.{type(value).__name__}, which has no effect under this name; "
                f"write `{right} = …`."
            )
        if name in hints and not name.startswith("_") and callable(getattr(base, name, None)):
            raise UsageError(
                f"{cls.__name__}: `{name}` is a method of every algorithm; give this attribute another name."
            )
        kind = declared.get(name)
        if kind is not None and not isinstance(value, kind | property):
            raise UsageError(
                f"{cls.__name__}: `{name}` is what the class declares by a flegel.{kind.__name__}; give this attribute "
                "another name."
            )


def _reads(cls: type, name: str) -> bool:
    """Whether some method of the class, or of a class that it inherits from, mentions the attribute."""
    functions = (value for kind in cls.__mro__ for value in vars(kind).values())
    codes = (getattr(getattr(value, "fget", None) or value, "__code__", None) for value in functions)
    return any(code is not None and name in code.co_names for code in codes)


def _is_own(hint: Any, value: Any) -> bool:
    """A hyper-parameter or a method of the class that happens to have this name."""
    plain = hint is not None and "ClassVar" not in str(hint)
    return plain or callable(value) or isinstance(value, staticmethod | classmethod)


def check_spelling(cls: type, base: type, hooks: Iterable[str]) -> None:
    """Raise `UsageError` for a method that has the name of a hook but for capitals and underscores: nothing would call
    it. A class that defines that hook, too, may have such a method."""
    spelled = {_folded(name): name for name in hooks}
    for name, value in vars(cls).items():
        right = spelled.get(_folded(name), name)
        if right == name or name.startswith("_") or hasattr(base, name) or not callable(value):
            continue
        if getattr(cls, right, None) is getattr(base, right, None):
            raise UsageError(f"{cls.__name__} defines {name}, which nothing calls; did you mean {right!r}?")


def _folded(name: str) -> str:
    return name.replace("_", "").lower()


def check_complete(cls: type, base: type) -> None:
    """Raise `UsageError` for a class that lacks what no job can do without, and say which of its methods may be
    misspelt."""
    visits = ("contribution", "hidden", "updateDataPoint")
    lacking = [name for name in ("initParameter", "updateParameter") if _inherits(cls, base, name)]
    if all(_inherits(cls, base, name) for name in visits):
        lacking.insert(-1 if lacking else 0, visits[0])
    if not lacking:
        return
    known = {*dir(base), "contribution", "hidden", "statistics_of"}
    own = [name for name in dir(cls) if name not in known and callable(getattr(cls, name))]
    wanted = [*lacking, *(visits if visits[0] in lacking else ())]
    meant = [
        f"{near} may be meant for {name}" for name in wanted for near in difflib.get_close_matches(name, own, 1, 0.8)
    ]
    names = ", ".join(name.replace(visits[0], f"{visits[0]} (or {visits[2]})") for name in lacking)
    hint = f" Of its methods, {', '.join(meant)}." if meant else ""
    raise UsageError(f"{cls.__name__} does not define {names}, which every algorithm needs.{hint}")


def _inherits(cls: type, base: type, name: str) -> bool:
    """Whether the class has no method of its own of this name."""
    return getattr(cls, name, None) is getattr(base, name, None)


def check_visit(cls: type, base: type) -> None:
    """Raise `UsageError` where a class says in two ways, or in half a way, what a visit of a point does."""

    def own(name: str) -> bool:
        found = getattr(cls, name, None)
        return callable(found) and found is not getattr(base, name, None)

    given = [name for name in ("contribution", "hidden", "updateDataPoint") if own(name)]
    constant = isinstance(declared := getattr(cls, "statistics", None), Statistics) and declared.constant
    if own("contributions") and not constant:
        raise UsageError(
            f"{cls.__name__} defines contributions, which needs statistics that are the same under every θ; declare "
            "`statistics = Statistics(constant=True)`, or define contribution."
        )
    if constant and given and given[0] != "contribution":
        raise UsageError(
            f"{cls.__name__} declares constant statistics and defines {given[0]}; define contribution or contributions."
        )
    if len(given) > 1:
        raise UsageError(f"{cls.__name__} defines or inherits {given[0]} and {given[1]}; define one of them.")
    if own("hidden") != own("statistics_of"):
        there, lacking = ("hidden", "statistics_of") if own("hidden") else ("statistics_of", "hidden")
        raise UsageError(f"{cls.__name__} defines {there} without {lacking}; define both.")
    taken = [name for name in ("initState", "aggregate") if own(name)]
    if taken and given and given[0] != "updateDataPoint":
        raise UsageError(
            f"{cls.__name__} defines {given[0]} and {taken[0]}, but the engine keeps and adds contributions; omit "
            f"{taken[0]}, or define updateDataPoint, which returns the change."
        )
