"""An iteration of a training loop: one decision for all models that take part in it."""

from __future__ import annotations

import pytest

from flegel.errors import UsageError
from flegel.torch.flexible.iteration import LoopIteration

D, G = 0, 1


def passes(loop: LoopIteration, model: int) -> bool:
    """A forward and a backward pass; whether they began another iteration."""
    begins = loop.begins(model)
    if begins:
        loop.begin()
    loop.take_part(model)
    if loop.is_open:
        loop.decide(model, last=False)
    loop.enter(model, 8)
    return begins


def test_every_step_of_one_model_ends_an_iteration_and_accumulation_does_not() -> None:
    loop = LoopIteration()
    begun = []
    for stepping in (True, True, False, False, True, True):
        begun.append(passes(loop, D))
        if stepping:
            loop.step(D, "D")
    assert begun == [True, True, True, False, False, True]


@pytest.mark.parametrize("seen_first", [True, False], ids=["with gradients", "without gradients"])
def test_a_generator_and_its_discriminator_are_one_iteration(seen_first: bool) -> None:
    """Whether or not the generator's pass for the discriminator's loss has gradients."""
    loop = LoopIteration()
    for _ in range(3):
        assert passes(loop, D)
        if seen_first:
            assert not passes(loop, G)
        assert not passes(loop, D)
        loop.step(D, "D")
        assert not passes(loop, G)
        assert not passes(loop, D)
        assert loop.has_stepped(D) and not loop.has_stepped(G)
        loop.step(G, "G")
    assert loop.several_models and loop.leader == D


def test_a_second_step_while_another_model_waits_is_refused() -> None:
    loop = LoopIteration()
    for model in (D, G):
        passes(loop, model)
    loop.step(D, "Critic")
    loop.step(D, "Critic")  # another optimizer of the same model
    passes(loop, D)
    with pytest.raises(UsageError, match=r"Critic stepped twice .*`model.barriers`, which is equal on all ranks"):
        loop.step(D, "Critic")


def test_another_epoch_begins_another_iteration_or_goes_on_with_accumulated_gradients() -> None:
    loop = LoopIteration()
    passes(loop, D)
    passes(loop, G)
    loop.step(D, "D")
    loop.reset()
    assert passes(loop, D) and not loop.carried, "left before the generator's part"
    loop.reset()
    assert loop.carried and loop.is_open and not passes(loop, D)
    assert not loop.is_open


def test_a_forward_pass_alone_counts_for_nothing() -> None:
    loop = LoopIteration()
    passes(loop, D)
    loop.step(D, "D")
    for _ in range(3):
        assert loop.begins(D) or loop.passes(D) == 0
        if loop.begins(D):
            loop.begin()
        loop.take_part(D)
    assert loop.is_open and loop.weight == 0
    assert not passes(loop, D) and loop.passes(D) == 1 and loop.weight == 8


def test_a_model_that_is_made_or_begins_an_epoch_after_another_does_not_join_its_unfinished_iteration() -> None:
    """Models trained one after the other in one process: the first one left gradients without a step."""
    loop = LoopIteration()
    passes(loop, D)
    loop.made(G)
    for _ in range(3):
        assert passes(loop, G), "made after the iteration of D began"
        loop.step(G, "G")
    loop.reset()
    assert passes(loop, D)
    loop.reset()
    for _ in range(3):
        assert passes(loop, G), "the first model of this epoch is another one"
        loop.step(G, "G")


def test_gradients_that_a_model_left_without_a_step_are_counted_once_when_it_is_trained_again() -> None:
    loop = LoopIteration()
    passes(loop, D)
    loop.reset()
    passes(loop, G)
    assert loop.passes(D) == 1, "so the next pass is the second one of its group"
    loop.step(G, "G")
    loop.reset()
    assert passes(loop, D)
    assert loop.passes(D) == 2
