"""What a command that watches a job says when it is ended."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from flegel.cli import cluster_jobs
from flegel.errors import ExitCode, Terminated


class EndedClient:
    """SIGTERM comes while the job is watched."""

    def watch(self, job: str) -> NoReturn:
        raise Terminated(ExitCode.TERMINATED)


def test_sigterm_says_that_the_job_goes_on_and_how_to_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    client: Any = EndedClient()
    with pytest.raises(SystemExit) as ended:
        cluster_jobs._follow(client, "kmeans-1", None, None)
    assert ended.value.code == ExitCode.TERMINATED
    assert "the job goes on. Come back with: flegel attach kmeans-1" in capsys.readouterr().err
