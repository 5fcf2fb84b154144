"""An object store that is away: its client raises what it likes, and a job sees one line and goes on."""

from __future__ import annotations

from typing import Any

import pytest

from flegel.runtime.checkpoint.store import MAX_REASON_CHARACTERS, ObjectStore


class ClientError(Exception):
    """As obstore's: no `OSError`, and pages of text."""


class AwayFiles:
    """A client of a store that does not answer."""

    def __getattr__(self, name: str) -> Any:
        def fail(*_: Any, **__: Any) -> Any:
            raise ClientError(
                "Generic S3 error: error sending request, after 10 retries" + "!" * 999 + "\nDebug: {\n  x"
            )

        return fail


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setattr("flegel.runtime.checkpoint.store._filesystem", lambda url: (AwayFiles(), "bucket/job"))
    return ObjectStore("s3://bucket/job")


@pytest.mark.parametrize(
    "use",
    [lambda s: s.put("job", [b"x"]), lambda s: s.get("job"), lambda s: s.names(), lambda s: s.drop("job")],
    ids=["put", "get", "names", "drop"],
)
def test_every_error_of_its_client_is_an_error_of_a_disk_in_one_line(store: ObjectStore, use: Any) -> None:
    with pytest.raises(OSError, match="error sending request") as raised:
        use(store)
    assert "\n" not in str(raised.value.strerror) and len(str(raised.value.strerror)) <= MAX_REASON_CHARACTERS


def test_what_is_not_there_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Any:
        raise FileNotFoundError("job")

    monkeypatch.setattr(AwayFiles, "cat_file", missing, raising=False)
    monkeypatch.setattr("flegel.runtime.checkpoint.store._filesystem", lambda url: (AwayFiles(), "bucket/job"))
    with pytest.raises(FileNotFoundError):
        ObjectStore("s3://bucket/job").get("job")
