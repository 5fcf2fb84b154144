"""Workers may be threads of one process: a module of a user's class is made by one of them, and the others wait."""

from __future__ import annotations

import json
import sys
import threading
import types
from pathlib import Path

import pytest

from flegel.loading.class_source import load_module
from flegel.loading.code_gate import Consent
from flegel.runtime.backends.numba import compiler


def test_no_thread_sees_a_module_that_another_has_half_made() -> None:
    meeting = types.ModuleType("meeting_of_threads")
    begun, seen = threading.Event(), threading.Event()
    meeting.__dict__.update(begun=begun, seen=seen)
    sys.modules["meeting_of_threads"] = meeting
    # The first thread stops in the middle until the second one has the module, or for as long as that cannot get it.
    text = "import meeting_of_threads as m\nm.begun.set()\nm.seen.wait(0.2)\nlast = 1\n"
    source = json.dumps({"postponed": False, "pieces": [("<half>", 1, text)]})
    found: list[bool] = []

    def load() -> None:
        begun.wait(600)
        found.append(hasattr(load_module(source, Consent.PRESENT), "last"))
        seen.set()

    other = threading.Thread(target=load)
    other.start()
    try:
        load_module(source, Consent.PRESENT)
        other.join(600)
    finally:
        del sys.modules["meeting_of_threads"]
    assert found == [True]


def test_compiled_code_is_imported_whole_before_another_thread_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []
    second = threading.Thread(target=lambda: found.append(_found()))

    def _found() -> object:
        try:
            return compiler._load_glue("half", "text")
        except AttributeError as error:
            return error

    def import_slowly(name: str, *_: object) -> None:
        module = sys.modules[name] = types.ModuleType(name)
        second.start()
        second.join(0.2)  # it waits for the lock; without one it ends with an error
        module.block = "whole"  # type: ignore[attr-defined]

    monkeypatch.setattr(compiler, "import_file", import_slowly)
    monkeypatch.setattr(compiler, "code_folder", lambda: tmp_path)
    monkeypatch.delitem(sys.modules, "flegel_block_half", raising=False)
    assert _found() == "whole"
    second.join(600.0)
    assert found == ["whole"]
    del sys.modules["flegel_block_half"]
