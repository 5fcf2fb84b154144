"""The statistics of a job by owner: the conservation laws live here. Arrays only, no decisions.

Law 1: the sum over owners is what a recomputation from scratch would give. Law 3: losing an owner is a
subtraction, and a commit is applied exactly once. Fields that an algorithm calls `spent` (gradients) belong to
no owner: they are used once and cleared.
"""

from __future__ import annotations

import numpy as np

from flegel import tree
from flegel.algorithm import Algorithm
from flegel.tree import Tree


class Ledger:
    """Cumulative statistics per owner, and their total."""

    def __init__(self, algorithm: Algorithm, zero: Tree) -> None:
        self._algorithm = algorithm
        self._zero = zero
        self._names = tree.names(zero)
        self._owners: dict[int, Tree] = {}
        self.total = tree.copy(zero)

    def commit(self, owner: int, change: Tree) -> None:
        """Add a worker's change to its own account and to the total."""
        if owner not in self._owners:
            self._owners[owner] = tree.copy(self._zero)
        for name, into, extra in zip(self._names, tree.flatten(self._owners[owner]), tree.flatten(change), strict=True):
            if extra.shape != into.shape:
                raise ValueError(f"worker {owner} committed {name} in the shape {extra.shape}, not {into.shape}")
            if name not in self._algorithm.spent:
                into += extra
        self.total = merge(self._algorithm, self.total, change)

    def forget(self, owner: int) -> None:
        """The owner is lost: what it contributed goes with it."""
        account = self._owners.pop(owner, None)
        if account is not None:
            tree.subtract(self.total, account)

    def spend(self) -> None:
        """After θ was updated: gradients are used up."""
        tree.clear(self.total, self._algorithm.spent)

    def discrepancy(self) -> float:
        """Largest relative difference between the total and the sum over owners, kept fields only."""
        expected = tree.copy(self._zero)
        for account in self._owners.values():
            tree.add(expected, account)
        worst = 0.0
        fields = zip(tree.names(self.total), tree.flatten(self.total), tree.flatten(expected), strict=True)
        for name, total, wanted in fields:
            if name not in self._algorithm.spent and total.size:
                scale = max(float(np.abs(wanted).max()), 1e-300)
                worst = max(worst, float(np.abs(total - wanted).max()) / scale)
        return worst


def merge(algorithm: Algorithm, target: Tree, change: Tree) -> Tree:
    """`aggregate` at the barrier: the user's, where a point's change has the shape of the statistics."""
    if type(algorithm).aggregate is Algorithm.aggregate or not algorithm.merges_reports:
        return tree.add(target, change)
    result = algorithm.aggregate(target, change)
    return target if result is None else result
