"""The benchmark suite as files: which there are, what they answer, what they need. Reads sources; runs nothing.

A benchmark is a program in `bench/figures` or `bench/micro`. Its docstring's first line is the question it answers;
`FIGURE` names the paper's figure, `NEEDS` what the engine must have, such as "algorithm:gmm", "sync:psp",
"option:balance", "package:torch", and `WEIGHT` how large a part of the time for all it should get.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.common.paper_figures import BY_NAME, PAPERS, figure_named
from bench.common.record import figure_order
from flegel.compare.candidate import supported
from flegel.errors import UsageError, nearest

UNDER_WAY = "it was still running when this was written"
TOLD = ".told"
"""Behind the name of a plan: the file that says which benchmarks of one process have ended."""
FOLDERS = ("figures", "micro")
"""Folders of bench/ in which benchmarks are looked for."""

DEVICES = {"gpu": ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg")}
"""What the system shows where it has such a device."""


@dataclass(frozen=True)
class Script:
    """One file of the suite."""

    name: str
    path: Path
    question: str
    figure: str
    needs: tuple[str, ...]
    flags: tuple[str, ...]
    """Options that it understands, of those that `python -m bench.run_suite run` may pass on."""
    weight: float = 1.0
    parts: tuple[str, ...] = ()
    """The parts that were asked for, by the figures that they measure; all where empty."""

    @property
    def module(self) -> str:
        """Its name for `python -m`, from the folder `root`."""
        return ".".join((*self.path.parts[-3:-1], self.path.stem))

    @property
    def root(self) -> Path:
        return self.path.parents[2]

    @property
    def missing(self) -> list[str]:
        return [why for need in self.needs if (why := lacking(need))]


FLAGS = ("--scale", "--workers", "--repeat", "--out", "--seed", "--budget", "--cache", "--only", "--json")
OURS = FLAGS[:-1]


def scripts(place: Path) -> list[Script]:
    """All benchmarks, figures of the paper first, in their order."""
    files = [path for folder in FOLDERS for path in sorted((place / folder).glob("*.py"))]
    found = [read_script(path) for path in files if "__main__" in path.read_text(encoding="utf-8")]
    return sorted(found, key=lambda s: (not s.figure, figure_order(s.figure), s.name))


def read_script(path: Path) -> Script:
    """From the source alone; nothing is imported."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    named: dict[str, object] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="FIGURE" | "NEEDS" | "WEIGHT" as name)], value=value):
                named[name] = ast.literal_eval(value)
    question = re.split(r"(?<=[.?])\s", ast.get_docstring(tree) or path.stem)[0]
    ours = any(isinstance(n, ast.ImportFrom | ast.Import) and "suite" in ast.dump(n) for n in tree.body)
    flags = OURS if ours else tuple(f for f in FLAGS[1:] if f'"{f}"' in text and f != "--out")
    if not ours and re.search(r"--out \S+\.json", ast.get_docstring(tree) or ""):
        flags = (*flags, "--out FILE")
    needs = named.get("NEEDS", ())
    return Script(
        path.stem,
        path,
        question,
        str(named.get("FIGURE", "")),
        tuple(map(str, needs)) if isinstance(needs, tuple) else (),
        flags,
        float(str(named.get("WEIGHT", 1))),
    )


def choose(all_scripts: Sequence[Script], words: Sequence[str]) -> list[Script]:
    """By name, by figure of the fifth paper, or by paper and figure: `skew`, `fig9`, `004-fig9`; a figure that is a
    part of a benchmark chooses that part, and a panel (`004-fig2b`) its figure. `all` is the whole evaluation, every
    one that answers a figure."""
    if list(words) == ["all"]:
        return [script for script in all_scripts if script.figure]
    chosen: dict[str, Script] = {}
    for word in words:
        wanted = word.lower()
        figure = figure_named(wanted)
        if figure is not None and not figure.program:
            raise UsageError(f"{wanted} is {figure.differs}; {figure.shows}.")
        if figure is not None:
            hits = [
                replace(s, parts=(figure.part,) * bool(figure.part)) for s in all_scripts if s.name == figure.program
            ]
        else:
            hits = [s for s in all_scripts if s.name == wanted or wanted in _aliases(s.figure)]
        if not hits and wanted in PAPERS:
            named = [name for name, figure in BY_NAME.items() if figure.paper == wanted and figure.program]
            raise UsageError(f"{wanted} is a paper; name its figures: {', '.join(named)}.")
        if not hits:
            known = [*(s.name for s in all_scripts), *BY_NAME]
            raise UsageError(f"No benchmark is called {word!r}{nearest(word, known)}")
        for hit in hits:
            before = chosen.get(hit.name)
            both = before is not None and before.parts and hit.parts
            parts = tuple(dict.fromkeys((*before.parts, *hit.parts))) if before is not None and both else ()
            chosen[hit.name] = replace(hit, parts=hit.parts if before is None else parts)
    return list(chosen.values())


def check_only(names: str) -> None:
    """`--only`: algorithms with commas between; a word that fits none would leave everything out."""
    from flegel.algorithms import BUILTINS

    for name in filter(None, names.split(",")):
        if name not in BUILTINS:
            raise UsageError(f"--only {name!r} is no built-in algorithm{nearest(name, list(BUILTINS))}")


def _aliases(figure: str) -> set[str]:
    """'Fig. 7' is also fig7 and 7."""
    joined = "".join(c for c in figure.lower() if c.isalnum())
    return {joined, joined.removeprefix("fig")} if figure else set()


def lacking(need: str) -> str:
    """Why a need is not met; empty where it is."""
    kind, _, name = need.partition(":")
    if kind == "algorithm":
        from flegel.algorithms import BUILTINS

        if name not in BUILTINS:
            return f"the algorithm {name} is not built in yet"
        networks = BUILTINS[name].startswith("flegel.torch.")
        return (
            f"{name} needs PyTorch (the extra torch)" if networks and importlib.util.find_spec("torch") is None else ""
        )
    if kind == "sync":
        from flegel.sync import models

        return "" if name in models() else f"the synchronization model {name} is not there yet"
    if kind == "option":
        return "" if supported(name) else f"flegel.run has no {name} yet"
    if kind == "package":
        return "" if importlib.util.find_spec(name) else f"{name} is not installed"
    if kind == "device":
        found = any(Path(place).exists() for place in DEVICES.get(name, ()))
        return "" if found else f"there is no {name.upper()} here"
    return f"{need!r} is no known requirement"
