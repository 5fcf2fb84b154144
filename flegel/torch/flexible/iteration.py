"""The iteration of the training loop that runs in this process: which models take part, and how it ends. Pure.

An iteration is what a script does with one batch: forward and backward passes of one model or of several, until each of
them has stepped. All models of an iteration follow one decision, so they synchronize at the same barrier: a generator
and its discriminator, for example. Never reads a clock and never sees data.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flegel.errors import UsageError


@dataclass
class LoopIteration:
    """Models are known by numbers: the order of their creation, the same on all ranks."""

    leader: int = -1
    """The model whose forward pass began the iteration; its report says how fast this rank is."""
    last: bool = False
    """Every model of the iteration synchronizes."""
    weight: int = 0
    """Samples that the gradients of the iteration stand for."""
    several: bool = False
    """More than one model took part in this iteration or in the one before it."""
    carried: bool = False
    """It began in the last epoch and has not been decided on in this one."""
    _stepped: dict[int, bool] = field(default_factory=dict)
    _passed: set[int] = field(default_factory=set)
    """Models with forward passes after their step."""
    _passes: dict[int, int] = field(default_factory=dict)
    _made_since: set[int] = field(default_factory=set)
    """Models that were made after the iteration began: they take no part in it."""

    def made(self, model: int) -> None:
        self._made_since.add(model)

    def begins(self, model: int) -> bool:
        """Whether a forward pass of this model is the first one of another iteration: all that took part have stepped,
        and this model is one of them. A model that did not take part begins another one as well if it did not exist
        then, or if it is the first one of an epoch: models are trained one after the other there."""
        if model not in self._stepped:
            return not self._stepped or self.carried or model in self._made_since
        return all(self._stepped.values())

    def begin(self, model: int, weight: int) -> None:
        self.several = len(self._stepped) > 1
        self.leader, self.weight, self.last, self.carried = model, weight, False, False
        # A model that did not step keeps its gradients: they are part of its next step, and are not counted again.
        self._passes = {one: passes for one, passes in self._passes.items() if not self.has_stepped(one)}
        self._stepped, self._passed = {}, set()
        self._made_since.clear()

    def enter(self, model: int) -> int:
        """A forward pass with gradients: its number among those of this model in the iteration."""
        if self.has_stepped(model):
            self._passed.add(model)
        self._stepped.setdefault(model, False)
        self.several = self.several or len(self._stepped) > 1
        self._passes[model] = self._passes.get(model, 0) + 1
        return self._passes[model]

    def passes(self, model: int) -> int:
        return self._passes.get(model, 0)

    def has_stepped(self, model: int) -> bool:
        """What this model computes in the rest of the iteration serves others: its gradients are not used."""
        return self._stepped.get(model, False)

    def step(self, model: int, name: str) -> None:
        """Note that a model has stepped; refuse a second step while another model of the same iteration has not."""
        if self.has_stepped(model) and model in self._passed:
            raise UsageError(
                f"{name} stepped twice while another model, which took part in the same iteration, did not step: "
                "models that are trained in one loop step once each for a batch. Put forward passes of a model that "
                "is not trained now under torch.no_grad(). Where a model is trained at some of the iterations only, "
                "choose these by `model.barriers`, which is equal on all ranks, not by a count of batches."
            )
        self._stepped[model] = True
        self._passed.discard(model)

    def clear(self) -> None:
        """Nothing of the running iteration counts."""
        self.leader, self.last, self.weight, self.several, self.carried = -1, False, 0, False, False
        self._stepped, self._passed, self._passes = {}, set(), {}

    def reset(self) -> None:
        """Another epoch begins, so another iteration does. One in which no model has stepped yet goes on: its gradients
        are accumulated, but the new epoch decides whether it synchronizes."""
        if any(self._stepped.values()):
            self._passes = {one: passes for one, passes in self._passes.items() if one not in self._stepped}
            self._stepped = {}
        self.carried = bool(self._stepped)


running = LoopIteration()
"""Of this process: a rank trains one batch at a time."""
