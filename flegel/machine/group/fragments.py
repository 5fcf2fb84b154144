"""θ cut into fragments, one of which is exchanged in a round: a part of the bytes at a time. Pure.

All fields of θ stand one behind the other and are cut into parts of the same number of values, so a fragment is some
layers, or a slice of one. A result holds the new values of the fragments that its contributions are of, and says in
which round each of the others was exchanged last: θ is the newest value of every fragment. Values are absolute, so a
group that has missed a result, or applied another one, has the same θ again when its fragment comes next.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from flegel.core.pytree import Array

ALL_FRAGMENTS = -1
"""In place of the number of a fragment: all of them."""


class Fragments:
    """Where each fragment begins and ends, for fields of these shapes."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], count: int = 1) -> None:
        """`count`: of fragments; no more than there are values."""
        self._shapes = [tuple(shape) for shape in shapes]
        sizes = [math.prod(shape) for shape in self._shapes]
        total = sum(sizes)
        self.count = max(min(count, total), 1)
        cuts = [total * at // self.count for at in range(self.count + 1)]
        begins = [sum(sizes[:at]) for at in range(len(sizes))]
        self._parts: list[list[tuple[int, int, int]]] = []
        for low, high in itertools.pairwise(cuts):
            spans = [
                (at, max(low - b, 0), min(high - b, n)) for at, (b, n) in enumerate(zip(begins, sizes, strict=True))
            ]
            whole = self.count == 1  # then empty fields are part of it
            self._parts.append([span for span in spans if whole or span[1] < span[2]])

    def of(self, fragment: int) -> tuple[int, ...]:
        """Numbers of the fragments that this one stands for."""
        return tuple(range(self.count)) if fragment == ALL_FRAGMENTS else (fragment,)

    def known(self, fragment: int) -> bool:
        return ALL_FRAGMENTS <= fragment < self.count

    def shapes(self, fragment: int) -> list[tuple[int, ...]]:
        """Of its parts: whole fields keep their shape."""
        if fragment == ALL_FRAGMENTS:
            return self._shapes
        return [self._shape(*part) for part in self._parts[fragment]]

    def _shape(self, at: int, begin: int, end: int) -> tuple[int, ...]:
        shape = self._shapes[at]
        return shape if (begin, end) == (0, math.prod(shape)) else (end - begin,)

    def take(self, fragment: int, fields: Sequence[Array]) -> list[Array]:
        """The parts of a fragment, as views where that is possible."""
        if fragment == ALL_FRAGMENTS:
            return list(fields)
        return [
            fields[at].reshape(-1)[begin:end].reshape(self._shape(at, begin, end))
            for at, begin, end in self._parts[fragment]
        ]

    def put(self, fragment: int, fields: Sequence[Array], parts: Sequence[Array]) -> list[Array]:
        """Copies of the fields, with these parts in place of a fragment; in the types of the fields."""
        if fragment == ALL_FRAGMENTS:
            return [np.array(part, dtype=field.dtype) for field, part in zip(fields, parts, strict=True)]
        found = [np.array(field) for field in fields]
        for (at, begin, end), part in zip(self._parts[fragment], parts, strict=True):
            flat = found[at].reshape(-1)
            flat[begin:end] = part.reshape(-1)
            found[at] = flat.reshape(self._shapes[at])
        return found

    def sizes_of_changes(self, changes: Sequence[Array]) -> tuple[float, ...]:
        """The root mean square of the change of each fragment."""
        return tuple(root_mean_square(self.take(fragment, changes)) for fragment in range(self.count))


def root_mean_square(parts: Sequence[Array]) -> float:
    count = sum(part.size for part in parts)
    squares = sum(float(np.square(part, dtype=np.float64).sum()) for part in parts)
    return math.sqrt(squares / count) if count else 0.0


def next_fragment(changed: Sequence[float], exchanged_in: Sequence[int], round_: int) -> int:
    """The fragment of the next round: the one that changed most in all groups, and was not exchanged. One that has
    waited for twice as many rounds as there are fragments comes before. `changed`: by fragment, summed over groups.
    `exchanged_in`: the round of the last exchange of each; 0: it never was."""
    count = len(exchanged_in)
    oldest = min(range(count), key=lambda fragment: (exchanged_in[fragment], fragment))
    if round_ + 1 - exchanged_in[oldest] >= 2 * count or not any(changed):
        return oldest
    return max(range(count), key=lambda fragment: (changed[fragment], -exchanged_in[fragment], -fragment))
