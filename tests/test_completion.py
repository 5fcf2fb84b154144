"""What a shell completes, asked of bash as its completion asks, and every word that is offered is accepted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flegel import sync
from flegel.cli import completion
from flegel.cli.job_options import FLAGS
from flegel.errors import UsageError
from flegel.job import Job
from flegel.options import check_options, with_options
from flegel.sync import make_policy, models

PROGRAM = Path(sys.executable).with_name("flegel")
ASK = """
source "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_flegel_completion flegel
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `flegel --show-completion bash` prints, which a user's .bashrc sources."""
    path = tmp_path_factory.mktemp("completion") / "flegel.bash"
    shown = subprocess.run([PROGRAM, "--show-completion", "bash"], capture_output=True, text=True, check=True)
    path.write_text(shown.stdout)
    return path


@pytest.mark.processes
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("su", {"submit", "suspend"}),
        ("cluster ", {"up", "down"}),
        ("submit kme", {"kmeans"}),
        ("submit kmeans --sy", {"--sync"}),
        ("submit kmeans --sync ps", {"psp", "psp:published"}),
        ("submit kmeans --data hi", {"higgs"}),
        ("submit kmeans --data higgs --balance ", {"async", "sync", "off"}),
        ("submit kmeans --set i", {"init="}),
        ("submit mine.py:Class --set ", set()),
        ("submit kmeans --data ./", set()),  # bash offers files then
    ],
)
def test_bash_completes_what_was_begun(script: Path, typed: str, offered: set[str]) -> None:
    environment = {**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
    words = ["flegel", *typed.split(" ")]
    asked = subprocess.run(
        ["bash", "--norc", "-c", ASK, "bash", str(script), *words],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert set(asked.stdout.split()) == offered, asked.stderr


def _is_accepted(name: str, word: str) -> bool:
    """Alone, or as an option of a synchronization model, of which one at least must have it."""
    try:
        job = with_options(Job(), {name: word})
        check_options(job)
    except UsageError:
        return False
    return FLAGS[name].path[0] != "sync" or any(_is_accepted_by(model, name, word) for model in models())


def _is_accepted_by(model: str, name: str, word: str) -> bool:
    try:
        make_policy(with_options(Job(), {"sync": model, name: word}).sync)
    except UsageError:
        return False
    return True


@pytest.mark.parametrize("name", [name for name in FLAGS if completion.choices(FLAGS[name].about.metavar)])
def test_words_that_are_offered_are_accepted(name: str) -> None:
    offered = completion.choices(FLAGS[name].about.metavar)
    assert [word for word in offered if not _is_accepted(name, word)] == []


@pytest.mark.parametrize("name", list(sync.CHOICES))
def test_all_forms_of_a_mechanism_are_offered(name: str) -> None:
    assert set(completion.choices(FLAGS[name].about.metavar)) == set(sync.CHOICES[name])
