"""`--help`: commands by subject, the options that most people need, and all of them with `--help-all`."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from flegel.cli.help_pages import SUBJECTS, ShortHelpCommand
from flegel.cli.main import app

PLAIN = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
LONG = ("submit", "resume", "simulate", "compare", "slave")


def shown(*words: str) -> str:
    outcome = CliRunner().invoke(app, [*words], env=PLAIN, catch_exceptions=False)
    assert outcome.exit_code == 0
    return outcome.stdout


def command(name: str) -> Any:
    return typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]


def flags(name: str) -> set[str]:
    """The long form of each option of a command."""
    options = [option for option in command(name).params if option.param_type_name == "option"]
    return {next(o for o in option.opts if o.startswith("--")) for option in options}


def listed(text: str) -> set[str]:
    """Words of the form --option at the beginning of a line of a panel."""
    cells = [line.strip("│ *").split() for line in text.splitlines() if line.startswith("│")]
    return {words[0].split(",")[0] for words in cells if words and words[0].startswith("--")}


def test_commands_are_grouped_by_subject_and_none_is_left_out() -> None:
    text = shown("--help")
    places = [text.index(f"─ {subject} ─") for subject in SUBJECTS]
    assert places == sorted(places) and "─ Commands ─" not in text
    for name, heading in (
        ("submit", 0),
        ("data", 1),
        ("check", 2),
        ("report", 3),
        ("top", 4),
        ("keys", 5),
        ("logs", 6),
    ):
        ends = [*places[1:], len(text)]
        assert places[heading] < text.index(f"│ {name} ") < ends[heading], name


@pytest.mark.parametrize("words", [(), ("demo",), ("submit",), ("launch",), ("launch", "local")], ids=" ".join)
def test_flags_are_not_shown_with_a_type(words: tuple[str, ...]) -> None:
    """`--dashboard <bool>` would ask for a value that the option does not take."""
    text = shown(*words, "--help")
    assert "--help" in text and "bool" not in text.lower()


def test_paragraphs_are_broken_at_the_width_of_the_terminal_alone() -> None:
    outcome = CliRunner().invoke(app, ["demo", "--help"], env={**PLAIN, "COLUMNS": "80"}, catch_exceptions=False)
    lines = [line.strip() for line in outcome.stdout.splitlines()]
    begin = next(i for i, line in enumerate(lines) if line.startswith("All workers sleep"))
    paragraph = lines[begin : lines.index("", begin)]
    assert len(paragraph) > 2 and all(len(line) > 60 for line in paragraph[:-1]), paragraph
    assert "\n flegel submit gmm " in shown("submit", "--help"), "commands keep lines of their own"


@pytest.mark.parametrize("name", LONG)
def test_help_shows_ten_options_at_most_by_subject_and_says_how_to_see_the_rest(name: str) -> None:
    found, short = command(name), listed(shown(name, "--help")) - {"--help", "--help-all"}
    assert isinstance(found, ShortHelpCommand) and found.shown <= {o for p in found.params for o in p.opts}
    assert short == set(found.shown) and len(short) <= 10
    assert f"{name} --help-all" in shown(name, "--help")


@pytest.mark.parametrize("name", LONG)
def test_help_all_shows_every_option(name: str) -> None:
    assert flags(name) <= listed(shown(name, "--help-all")) | {"--help"}
    assert len(listed(shown(name, "--help"))) <= 12, "what --help-all showed is hidden again"


def test_an_option_that_help_does_not_show_works() -> None:
    assert "--seed" not in listed(shown("submit", "--help"))
    outcome = CliRunner().invoke(app, ["submit", "kmeans", "--data", "blobs:200", "--seed", "-1"])
    assert outcome.exit_code == 2 and "The seed must be" in outcome.output


def test_an_option_that_another_one_replaces_says_what_to_type() -> None:
    from flegel.job import Job
    from flegel.options import deprecations, with_options
    from flegel.wording import wording_for

    with wording_for("command-line"):
        assert deprecations(with_options(Job(), {"gpus": 2}), {"gpus": 2}) == [
            "--gpus 2 is deprecated; use --device 0=cuda:0,1=cuda:1."
        ]
    assert deprecations(with_options(Job(), {"gpus": 1}), {"gpus": 1}) == [
        'gpus=1 is deprecated; use device="0=cuda:0".'
    ]
    assert deprecations(Job(), {"gpus": 0, "workers": 2}) == []
