"""Benchmarks one after the other, within a time for all. Measures nothing itself.

Each is a process of its own, but where they only have to be complete: those share one (`several.py`). Every script
writes its record after each comparison, so one that is stopped loses at most the comparison under way. A benchmark that
cannot run, or for which no time is left, gets a record that says so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.common.program import ROOT
from bench.common.record import Bench, read
from bench.common.scripts import TOLD, UNDER_WAY, Script
from flegel.compare.comparison import run_environment
from flegel.compare.record import write
from flegel.errors import StorageError
from flegel.runtime import clock

START = 4.0  # seconds in which workers come up and data are read
LEAST = 2.0  # seconds below which a benchmark is not begun
GRACE = 8.0  # seconds after its part of the time during which a benchmark may come to its end
FAREWELL = 10.0  # seconds between being asked to end and being ended


def part(left: float, weights: Sequence[float], start: float = START) -> float:
    """How many of the seconds that are left the first of some benchmarks gets.

    Each gets what its start takes, and of the rest as much as its weight says; where there is not even time for all
    starts, each gets the same. What one does not use goes to those after it.
    """
    start = max(0.0, min(start, left / len(weights)))
    return start + max(0.0, left - start * len(weights)) * weights[0] / sum(weights)


@dataclass
class SuiteRunner:
    """What is run, and how; `flags` are those that every script gets where it knows them."""

    scripts: Sequence[Script]
    out: Path
    flags: Mapping[str, object] = field(default_factory=dict)
    budget: float | None = None
    say: Callable[[str], None] = lambda text: None
    complete: bool = False
    """One that did not measure all that it can measure here has failed. No times are wanted: they share a process."""

    def run(self) -> list[str]:
        """All of them; returns the names of those that failed."""
        self.out.mkdir(parents=True, exist_ok=True)
        ready = []
        for script in self.scripts:
            if script.missing:
                self._left_out(script, script.missing[0])
            else:
                ready.append(script)
        failed = []
        ends = None if self.budget is None else clock.now() + self.budget
        with tempfile.TemporaryDirectory(prefix="flegel-bench-") as cache:
            if self.complete and ends is None:
                return self._together(ready, Path(cache))
            for i, script in enumerate(ready):
                seconds = None if ends is None else part(ends - clock.now(), [s.weight for s in ready[i:]])
                if seconds is not None and seconds < LEAST:
                    self._left_out(script, f"the {self.budget:.0f} s for all benchmarks were over")
                elif not self._one(script, seconds, ends, Path(cache)):
                    failed.append(script.name)
        return failed

    def _together(self, ready: Sequence[Script], cache: Path) -> list[str]:
        """All in one process; where it dies, the benchmark under way has failed and another process goes on."""
        left, failed = list(ready), []
        while left:
            plan = cache / "plan.json"
            told = plan.with_name(plan.name + TOLD)
            told.write_text("", encoding="utf-8")
            listed = [(s.name, s.question, str(s.path), self._words(s, cache, None)) for s in left]
            plan.write_text(json.dumps(listed), encoding="utf-8")
            began = clock.now()
            process = self._start(ROOT, "bench.common.several", [str(plan)])
            try:
                died = process.wait()
            except BaseException:
                end(process)
                raise
            codes = {name: int(code) for name, code in map(str.split, told.read_text("utf-8").splitlines())}
            under_way = next((s for s in left if s.name not in codes), None)
            if under_way is not None:
                codes[under_way.name] = died or 1
            for script in [s for s in left if s.name in codes]:
                well = self._told(script, codes[script.name], clock.now() - began) and codes[script.name] == 0
                why = self._incomplete(script) if well else f"exit code {codes[script.name]}"
                if why:
                    self.say(f"{script.name}: not complete, {why}")
                    failed.append(script.name)
            left = [s for s in left if s.name not in codes]
        self._tell_left_out()
        return failed

    def _start(self, root: Path, module: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *words], env=environment(root), start_new_session=True
        )

    def _words(self, script: Script, cache: Path, seconds: float | None) -> list[str]:
        """Options that it knows, of those of the whole run."""
        raw = self.out.resolve() / f"{script.name}.raw.json"
        given: dict[str, object] = {**self.flags, "--out": self.out.resolve(), "--cache": cache, "--json": raw}
        given |= {"--out FILE": raw, "--budget": None if seconds is None else round(seconds, 1)}
        words = [str(w) for f, v in given.items() if f in script.flags and v is not None for w in (f.split()[0], v)]
        return words + (["--parts", ",".join(script.parts)] if script.parts else [])

    def _incomplete(self, script: Script) -> str:
        """Why its record is not whole; empty where it is, or has a format of its own."""
        kept = self._kept(script)
        if kept is None:
            return "" if "--scale" not in script.flags else "it left no record"
        if kept.unfinished or kept.comparisons or kept.tables or kept.charts or kept.skipped:
            return kept.unfinished
        return "it measured nothing"

    def _tell_left_out(self) -> None:
        records = [(script, self._kept(script)) for script in self.scripts]
        ran = [kept for _, kept in records if kept and (kept.comparisons or kept.tables or kept.charts)]
        self.say(f"{len(ran)} of {len(records)} benchmarks measured something")
        for script, kept in records:
            for what, why in kept.skipped if kept else ():
                self.say(f"{script.name}: left out: {what} ({why})")

    def _one(self, script: Script, seconds: float | None, ends: float | None, cache: Path) -> bool:
        self.say(f"{script.name}: {script.question}" + (f" ({seconds:.0f} s)" if seconds is not None else ""))
        began = clock.now()
        process = self._start(script.root, script.module, self._words(script, cache, seconds))
        patience = None if seconds is None or ends is None else min(seconds + GRACE, max(ends - began, LEAST) + GRACE)
        try:
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            self.say(f"{script.name}: ended after {clock.now() - began:.0f} s; what it had measured is kept")
            code = end(process)
        except BaseException:
            end(process)
            raise
        return self._told(script, code, clock.now() - began)

    def _told(self, script: Script, code: int, took: float) -> bool:
        """Whether it went well; a script that died without a word gets a record, or its last one a sentence."""
        path = self.out / f"{script.name}.json"
        if (kept := self._kept(script)) and kept.unfinished == UNDER_WAY:
            kept.unfinished = f"it was ended after {took:.0f} s; this is what it had measured by then"
            write(kept, path)
        if code in (0, 128 + signal.SIGTERM, -signal.SIGTERM, -signal.SIGKILL):
            return True
        if not path.exists() and "--scale" in script.flags:
            write(self._empty(script, f"it failed with exit code {code}"), path)
        return False

    def _left_out(self, script: Script, why: str) -> None:
        self.say(f"{script.name}: left out, {why}")
        kept = self._kept(script)
        if kept is None or not (kept.comparisons or kept.tables or kept.charts):
            write(self._empty(script, why), self.out / f"{script.name}.json")

    def _kept(self, script: Script) -> Bench | None:
        path = self.out / f"{script.name}.json"
        try:
            found = read(path) if path.exists() else None
        except StorageError:
            return None
        return found if isinstance(found, Bench) else None

    def _empty(self, script: Script, why: str) -> Bench:
        return Bench(
            name=script.name, figure=script.figure, question=script.question, seconds=0.0,
            environment=run_environment(),
            scale=str(self.flags.get("--scale", "")), unfinished=why, skipped=[("all of it", why)],
        )  # fmt: skip


def environment(root: Path) -> dict[str, str]:
    """In which a script finds the package that it is a part of."""
    inherited = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(root), inherited]))}


def end(process: subprocess.Popen[bytes]) -> int:
    """Ask a script and its workers to end, then insist."""
    for number, patience in ((signal.SIGTERM, FAREWELL), (signal.SIGKILL, None)):
        if process.poll() is None:
            os.killpg(process.pid, number) if number == signal.SIGKILL else process.send_signal(number)
            try:
                return process.wait(patience)
            except subprocess.TimeoutExpired:
                continue
    return process.wait()
