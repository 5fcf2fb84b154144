"""The fence: a message counts once, in order, from the right life of the right worker in the right job."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flegel.machine.fencing import Fence
from flegel.messages import Envelope, WorkerBeat


def message(sequence: int, worker: int = 0, job: str = "job", epoch: int = 0, incarnation: int = 0) -> Envelope:
    return Envelope(job, epoch, worker, incarnation, sequence, WorkerBeat(sequence))


def fence(workers: int = 3) -> Fence:
    made = Fence("job")
    for worker in range(workers):
        made.admit(worker, 0)
    return made


def test_each_refusal_says_why() -> None:
    guard = fence()
    assert guard.refuse(message(0)) is None
    assert "job 'other'" in (guard.refuse(message(1, job="other")) or "")
    assert "epoch 7" in (guard.refuse(message(1, epoch=7)) or "")
    assert "worker 9 is not known" in (guard.refuse(message(1, worker=9)) or "")
    assert "incarnation 4" in (guard.refuse(message(1, incarnation=4)) or "")
    assert "seen already" in (guard.refuse(message(0)) or "")
    assert guard.refuse(message(1)) is None, "a refusal uses up no number"


def test_a_worker_that_was_declared_dead_speaks_only_as_a_new_one() -> None:
    guard = fence()
    assert guard.refuse(message(5)) is None
    guard.admit(0, 1)
    assert guard.refuse(message(6)) is not None
    assert guard.refuse(message(0, incarnation=1)) is None


@given(st.data())
def test_duplicates_are_applied_exactly_once(data: st.DataObject) -> None:
    """Every message arrives at least once, first copies in order, further copies anywhere later."""
    count = data.draw(st.integers(1, 20))
    stream: list[int] = []
    for number in range(count):
        stream.append(number)
        stream.extend(data.draw(st.lists(st.integers(0, number), max_size=3)))
    guard = fence()
    applied = [n for n in stream if guard.refuse(message(n)) is None]
    assert applied == list(range(count))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 15)), max_size=60))
def test_in_any_order_nothing_is_applied_twice_or_backwards(stream: list[tuple[int, int]]) -> None:
    guard = fence()
    applied: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for worker, number in stream:
        if guard.refuse(message(number, worker)) is None:
            applied[worker].append(number)
    for worker, numbers in applied.items():
        assert numbers == sorted(set(numbers)), "strictly rising"
        offered = [n for w, n in stream if w == worker]
        assert max(numbers, default=-1) == max(offered, default=-1), "the newest always gets through"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["job", "old"]), st.integers(0, 1), st.integers(0, 3), st.integers(0, 2), st.integers(0, 9)
        ),
        max_size=50,
    )
)
def test_strangers_never_disturb_the_others(stream: list[tuple[str, int, int, int, int]]) -> None:
    guard, alone = fence(), fence()
    for job, epoch, worker, incarnation, number in stream:
        envelope = message(number, worker, job, epoch, incarnation)
        mine = (job, epoch, incarnation) == ("job", 0, 0) and worker < 3
        verdict = guard.refuse(envelope)
        assert (verdict is None) == (alone.refuse(envelope) is None if mine else False)
