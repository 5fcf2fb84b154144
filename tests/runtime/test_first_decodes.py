"""Records with records in them may be decoded by several threads at once, for the first time too."""

from __future__ import annotations

import subprocess
import sys

import pytest

THREADS = """
import sys, threading
import msgspec
from flegel.machine.group import records
from flegel.runtime.checkpoint import reader
from flegel.runtime.job import result_store, running_jobs

sys.setswitchinterval(1e-6)
package = records.encode(records.RoundResult(1, (records.Entry("g0", 1, "k", "d", 1),), by="g0"))
note = msgspec.msgpack.encode(running_jobs.RunningJob(1, 1, "n", "a", "d", None, 0.0))
together = threading.Barrier(8)

def decode():
    together.wait(600.0)
    running_jobs._decoder.decode(note)
    records.decode(package, records.RoundResult)
    for decoder in (result_store._manifests, reader._manifest_decoder, reader._record_decoder):
        try:
            decoder.decode(b"{}")
        except msgspec.ValidationError:
            pass

threads = [threading.Thread(target=decode) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("decoded")
"""


@pytest.mark.processes
def test_threads_that_decode_for_the_first_time_do_not_crash() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, "decoded\n"), done.stderr[-2000:]
