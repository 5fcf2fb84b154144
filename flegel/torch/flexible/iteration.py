"""The iteration of the training loop that runs in this process: which models take part, and how it ends. Pure.

An iteration is what a script does with one batch: forward and backward passes of one model or of several, until each of
them has stepped. All models of an iteration follow one decision, so they synchronize at the same barrier: a generator
and its discriminator, for example. Samples are those of backward passes: a forward pass without one is an evaluation.
Never reads a clock and never sees data.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flegel.errors import UsageError


@dataclass
class LoopIteration:
    """Models are known by numbers: the order of their creation, the same on all ranks."""

    leader: int = -1
    """The model whose backward pass was the first of the iteration; its report says how fast this rank is."""
    decided: bool = False
    """It is known whether the iteration is the last one before a barrier."""
    last: bool = False
    """Every model of the iteration synchronizes."""
    weight: int = 0
    """Samples that the gradients of the iteration stand for: those of its first backward pass; 0 before it."""
    several_models: bool = False
    """More than one model took part in this iteration or in the one before it."""
    carried: bool = False
    """It began in the last epoch and has not been decided on in this one."""
    alone: int = -1
    """The only model of the last iteration, which has ended; -1 if there were several, or since another one began."""
    silent: int = -1
    """The model whose iteration has begun without being recorded here (even_run.py); recorded once it matters."""
    _stepped: dict[int, bool] = field(default_factory=dict)
    _forward_after_step: set[int] = field(default_factory=set)
    """Models with forward passes after their step."""
    _backward_passes: dict[int, int] = field(default_factory=dict)
    """Backward passes of each model."""
    _earlier_passes: dict[int, int] = field(default_factory=dict)
    """Those of them that were made in earlier epochs: incomplete groups, whose gradients are accumulated."""
    _made_since: set[int] = field(default_factory=set)
    """Models that were made after the iteration began: they take no part in it."""

    def made(self, model: int) -> None:
        self.alone = -1
        self._made_since.add(model)

    def record_silent(self) -> None:
        """An iteration that was expected to be one of a single pass becomes one like others."""
        if self.silent >= 0:
            model, self.silent = self.silent, -1
            self.begin()
            self.take_part(model)

    def begins(self, model: int) -> bool:
        """Whether a pass of this model is the first one of another iteration: all that took part have stepped, and this
        model is one of them. A model that did not take part begins another one as well if it did not exist
        then, or if it is the first one of an epoch: models are trained one after the other there."""
        self.record_silent()
        if model not in self._stepped:
            return not self._stepped or self.carried or model in self._made_since
        return all(self._stepped.values())

    def begin(self) -> None:
        """Another iteration, of which nothing is decided."""
        self.several_models = len(self._stepped) > 1
        self.weight, self.decided, self.last, self.carried, self.alone = 0, False, False, False, -1
        # A model that did not step keeps its gradients: they are part of its next step, and are not counted again.
        self._backward_passes = {
            one: passes for one, passes in self._backward_passes.items() if not self.has_stepped(one)
        }
        self._earlier_passes = {one: n for one, n in self._earlier_passes.items() if one in self._backward_passes}
        self._stepped, self._forward_after_step = {}, set()
        self._made_since.clear()

    def take_part(self, model: int) -> None:
        """A forward pass that may be trained: the iteration ends when this model has stepped, too."""
        self.record_silent()
        self.alone = -1
        if self.has_stepped(model):
            self._forward_after_step.add(model)
        self._stepped.setdefault(model, False)
        self.several_models = self.several_models or len(self._stepped) > 1

    @property
    def is_open(self) -> bool:
        """Whether the next backward pass decides how the iteration ends; in another epoch again."""
        return self.carried or not self.decided

    def decide(self, model: int, last: bool) -> None:
        self.leader, self.last, self.decided, self.carried = model, last, True, False

    def enter(self, model: int, samples: int) -> int:
        """A backward pass begins: its number among those of this model in the iteration."""
        self.weight = self.weight or samples
        self._backward_passes[model] = self._backward_passes.get(model, 0) + 1
        return self._backward_passes[model]

    def passes(self, model: int) -> int:
        return self._backward_passes.get(model, 0)

    def earlier_passes(self, model: int) -> int:
        """Backward passes of the iteration that were made in earlier epochs."""
        return self._earlier_passes.get(model, 0)

    def has_stepped(self, model: int) -> bool:
        """What this model computes in the rest of the iteration serves others: its gradients are not used."""
        return self._stepped.get(model, False)

    def step(self, model: int, name: str) -> None:
        """Note that a model has stepped; refuse a second step while another model of the same iteration has not."""
        if self.has_stepped(model) and model in self._forward_after_step:
            raise UsageError(
                f"{name} stepped twice while another model, which took part in the same iteration, did not step: "
                "models that are trained in one loop step once each for a batch. Put forward passes of a model that "
                "is not trained now under torch.no_grad(). Where a model is trained at some of the iterations only, "
                "choose these by `model.barriers`, which is equal on all ranks, not by a count of batches."
            )
        self._stepped[model] = True
        self._forward_after_step.discard(model)
        self.alone = model if len(self._stepped) == 1 and not self.several_models else -1

    def clear(self) -> None:
        """Nothing of the running iteration counts."""
        self.leader, self.weight, self.alone, self.silent = -1, 0, -1, -1
        self.decided = self.last = self.several_models = self.carried = False
        self._stepped, self._forward_after_step, self._backward_passes, self._earlier_passes = {}, set(), {}, {}

    def reset(self) -> None:
        """Another epoch begins, so another iteration does. One in which no model has stepped yet goes on: its gradients
        are accumulated, but the new epoch decides whether it synchronizes."""
        self.record_silent()
        self.alone = -1
        if any(self._stepped.values()):
            self._backward_passes = {
                one: passes for one, passes in self._backward_passes.items() if one not in self._stepped
            }
            self._stepped = {}
        self._earlier_passes = dict(self._backward_passes)
        self.carried = bool(self._stepped)


running = LoopIteration()
"""Of this process: a rank trains one batch at a time."""
