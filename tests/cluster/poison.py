"""User code that does everything wrong: each hook times each way to misbehave, as the source that travels."""

from __future__ import annotations

import hashlib
import json

from flegel.cluster.transport.protocol import ClusterJob
from flegel.job import AlgorithmRef, Criteria, SyncSpec

DEEDS = {
    "raise": 'raise ValueError("BOOM")',
    "exit": "os._exit(3)",
    "segfault": "ctypes.string_at(0)",
    "loop": "while True: time.sleep(0.01)",
    "hog": "max(range(10**18))",
    "bomb": "hoard = [bytearray(16 << 20) for _ in range(1 << 20)]",
    "abort": "os.abort()",
    "system-exit": "raise SystemExit(7)",
    "interrupt": "raise KeyboardInterrupt",
    "recursion": "strike()",
    "suicide": "os.kill(os.getpid(), signal.SIGBUS)",
    "threads": 'threading.Thread(target=time.sleep, args=(600,)).start(); raise ValueError("BOOM")',
    "child": 'subprocess.Popen(["sleep", "600"]); raise ValueError("BOOM")',
    "daemon": 'subprocess.Popen(["sleep", "600"], start_new_session=True); os._exit(4)',
    "stop-parent": 'os.kill(os.getppid(), 0); raise ValueError("BOOM")',
    "shout": 'print("x" * 30_000_000); raise ValueError("BOOM")',
    "close-all": 'os.closerange(0, 64); raise ValueError("BOOM")',
    "spy": 'raise ValueError("SEES", sorted(os.listdir(os.environ["FLEGEL_HOME"] + "/keys")))',
    "chdir": 'open("left-behind", "w").write("x"); raise ValueError("BOOM")',
}
EXPECTED = {
    "raise": "BOOM", "exit": "exit code 3", "segfault": "SIGSEGV", "loop": "return", "bomb": "emory",
    "abort": "SIGABRT", "system-exit": "", "interrupt": "KeyboardInterrupt", "hog": "", "recursion": "ecursion",
    "suicide": "SIGBUS", "threads": "BOOM", "child": "BOOM", "daemon": "4", "stop-parent": "BOOM",
    "shout": "BOOM", "close-all": "", "spy": "SEES", "chdir": "BOOM",
}  # fmt: skip
"""What the cause must say; empty where any cause is good enough."""

HOOKS = ("module", "initParameter", "initState", "updateDataPoint", "aggregate", "updateParameter", "objective")
PLACES = ("anywhere", "worker")
LIMITS_OF_LOOPS = (1.0, 4.0)
"""Seconds that a job and a hook may take where a hook is endless: --hook-timeout ends it on workers, --max-seconds
elsewhere."""
LIMITS = (300.0, 60.0)
"""The same of other jobs: they must end by what their hook does, also on a host that is slow."""

TEMPLATE = """import ctypes, os, signal, subprocess, sys, threading, time
import numpy as np
from flegel import Algorithm

def strike():
    {deed}

def here():
    return {where} == "anywhere" or os.environ["FLEGEL_ROLE"] == "worker"

{module}

class Poison(Algorithm):
    def initParameter(self, sample, rng):
        {initParameter}
        return np.zeros(1)

    def initState(self, points, columns, rng):
        {initState}
        return np.zeros((points, 1))

    def updateDataPoint(self, dataPoint, parameter, iterationNum):
        {updateDataPoint}
        text = f"{{dataPoint.features[0]:.3f}}"
        return np.ones(1)

    def aggregate(self, target, aggregator):
        {aggregate}
        target += aggregator
        return target

    def updateParameter(self, aggregator, oldParameter):
        {updateParameter}
        return aggregator * 1.0

    def objective(self, aggregator, parameter):
        {objective}
        return float(aggregator[0])
"""


def source(hook: str, deed: str, where: str = "anywhere") -> str:
    blows = dict.fromkeys(HOOKS, "pass")
    blows[hook] = "if here(): strike()"
    text = TEMPLATE.format(deed=DEEDS[deed], where=repr(where), **blows)
    return json.dumps({"postponed": False, "pieces": [["poison.py", 1, text]]})


def poison(hook: str, deed: str, where: str = "anywhere", **more: object) -> tuple[ClusterJob, str]:
    """A job, and the source that it brings."""
    text = source(hook, deed, where)
    max_seconds, hook_timeout = LIMITS_OF_LOOPS if deed == "loop" else LIMITS
    spec = ClusterJob(
        algorithm=AlgorithmRef("Poison", {}), code=hashlib.sha256(text.encode()).hexdigest(),
        data="blobs:400", workers=1, sync=SyncSpec("bsp"), memory=512 << 20, hook_timeout=hook_timeout,
        criteria=Criteria(max_iterations=1000, max_seconds=max_seconds), **more,
    )  # fmt: skip
    return spec, text
