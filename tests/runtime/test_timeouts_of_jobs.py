"""Which options of a job are which limits of its coordinator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flegel.job import Job
from flegel.machine.coordinator.events import Timeouts
from flegel.runtime.job.part import JobRun


def limits(**options: Any) -> Timeouts:
    running: Any = SimpleNamespace(request=SimpleNamespace(job=Job(**options)))
    found = JobRun.timeouts.fget(running)  # type: ignore[attr-defined]
    assert isinstance(found, Timeouts)
    return found


@pytest.mark.parametrize(("expensive", "times"), [("fail", 1), ("abandon", 3)])
def test_silence_and_hooks_have_limits_of_the_job_and_loading_has_its_own(expensive: str, times: int) -> None:
    found = limits(worker_timeout=7.0, hook_timeout=11.0, expensive=expensive)
    assert (found.silence, found.hook) == (7.0, 11.0 * times)
    assert found.load == Timeouts().load, "code may have to be compiled first"
