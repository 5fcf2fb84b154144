"""Sentences of these tests are those that people at a command line read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flegel.wording import wording_for


@pytest.fixture(autouse=True)
def as_commands_say_it() -> Iterator[None]:
    with wording_for("command-line"):
        yield
