"""Whole jobs whose θ travels through sockets: rows that changed, statistics that do not travel, the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.configuration.active import active, using
from flegel.messages import LoadShard, Train
from flegel.runtime.processes import job_mailbox
from flegel.runtime.transport import shared_buffers

K, COLUMNS = 800, 48


def rows_in_clumps() -> Any:
    """Clumps that are found in few passes: most centroids stay where they are then."""
    rng = np.random.default_rng(0)
    centres = 8.0 * rng.normal(size=(K, COLUMNS))
    return (centres[np.arange(4 * K) % K] + rng.normal(size=(4 * K, COLUMNS))).astype(np.float32), centres


@pytest.mark.processes
def test_rows_of_theta_that_changed_travel_and_the_job_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, centres = rows_in_clumps()
    monkeypatch.setenv(shared_buffers.SHARED_BUFFERS_VARIABLE, "off")
    sent: list[tuple[Any, int]] = []
    send = job_mailbox.zmq_frames.send

    def watched(socket: Any, frames: Any, route: bytes | None = None) -> None:
        sent.append((job_mailbox.decode([bytes(f) for f in frames])[0].body, sum(memoryview(f).nbytes for f in frames)))
        send(socket, frames, route)

    monkeypatch.setattr(job_mailbox.zmq_frames, "send", watched)
    options = {"workers": 2, "sync": "bsp", "max_iterations": 6, "tolerance": 0.0, "audit": "off"}
    start = centres[np.random.default_rng(1).permutation(K)] + 0.4
    changed = flegel.run(KMeans(k=K, init=start), rows, **options)
    orders = [(body, size) for body, size in sent if isinstance(body, Train)]
    theta = sum(np.asarray(a).nbytes for a in changed.parameter)
    assert theta > active().transport.theta_changes_from_bytes
    assert orders[0][0].since == -1 and orders[0][1] > theta
    late = [size for body, size in orders if body.since >= 0]
    assert late and max(late) < theta / 2
    loads = [(body, size) for body, size in sent if isinstance(body, LoadShard)]
    assert all(body.forms and size < 1.2 * theta for body, size in loads)
    sent.clear()
    with using({"transport.theta_changes_from_bytes": 1 << 40}):
        whole = flegel.run(KMeans(k=K, init=start), rows, **options)
    assert all(body.since == -1 == body.number for body, _ in sent if isinstance(body, Train))
    assert changed.iterations == whole.iterations
    for one, two in zip(changed.parameter, whole.parameter, strict=True):
        np.testing.assert_array_equal(one, two)
