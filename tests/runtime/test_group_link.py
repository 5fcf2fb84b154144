"""The thread of a group whose store hangs: nothing keeps the process from ending."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
assert HangingBucket.asked.wait(60.0)
"""


@pytest.mark.processes
def test_a_call_to_a_store_that_hangs_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", HANGING, str(tmp_path)], check=True, timeout=120.0)
