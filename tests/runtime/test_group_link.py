"""The thread of a group: a store that hangs does not keep the process from ending, and an error in it no job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flegel.machine.group.events import Stalled
from flegel.machine.group.group import Group, GroupSettings
from flegel.runtime import clock
from flegel.runtime.group.bucket import FolderBucket
from flegel.runtime.group.keys import PlainObjects
from flegel.runtime.group.link import GroupLink

HANGING = """
import sys, threading
from pathlib import Path
import numpy as np
from flegel.machine.group.group import Group, GroupSettings
from flegel.runtime import clock
from flegel.runtime.group.bucket import FolderBucket
from flegel.runtime.group.keys import PlainObjects
from flegel.runtime.group.link import GroupLink

class HangingBucket(FolderBucket):
    asked = threading.Event()
    def get(self, key, largest=0):
        self.asked.set()
        threading.Event().wait()

machine = Group(GroupSettings("oslo", 1), [(2,)], [np.zeros(2)], clock.now())
GroupLink(machine, HangingBucket(Path(sys.argv[1])), PlainObjects(), silence=30.0).start()
assert HangingBucket.asked.wait(600.0)
"""


@pytest.mark.processes
def test_a_call_to_a_store_that_hangs_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", HANGING, str(tmp_path)], check=True, timeout=600.0)


def test_an_error_in_the_thread_of_a_group_is_told_until_its_job_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Group, event: object, now: float) -> None:
        raise ValueError("math domain error")

    monkeypatch.setattr(Group, "handle", fails)
    machine = Group(GroupSettings("oslo", 1), [(2,)], [np.zeros(2)], clock.now())
    link = GroupLink(machine, FolderBucket(tmp_path), PlainObjects(), silence=30.0)
    link.start()
    told: list[str] = []
    while len(told) < 2:  # one that still trains does not end by the first
        told += [event.news.why for event in link.arrivals() if isinstance(event.news, Stalled)]
        clock.sleep(0.01)
    assert set(told) == {"the exchange with other groups has failed (math domain error)"}
    link.close("left")
    assert not link._thread.is_alive()
