"""What the master machine wants done: facts to record, orders to send, answers to give. Nothing here acts."""

from __future__ import annotations

from dataclasses import dataclass

from flegel.cluster.master.facts import Fact
from flegel.cluster.transport.protocol import ToClient, ToSlave


@dataclass(frozen=True)
class RecordFact:
    fact: Fact


@dataclass(frozen=True)
class SendTo:
    slave: str
    order: ToSlave


@dataclass(frozen=True)
class ReplyTo:
    answer: ToClient


@dataclass(frozen=True)
class RemoveFiles:
    """The files of this job are not needed any more."""

    job: str


Action = RecordFact | SendTo | ReplyTo | RemoveFiles


@dataclass(frozen=True)
class Caller:
    """Who asks: rights belong to the key, the name is for people. An administrator may change everybody's jobs."""

    name: str
    admin: bool = False
    key: str = ""
    """Empty in a cluster without keys, where the name that a client gives is believed."""
