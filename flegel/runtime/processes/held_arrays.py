"""Arrays of this process that its own workers find by a number, in place of shared memory."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.errors import ProtocolError
from flegel.runtime.transport.shared_memory import JobArray


class HeldArray:
    """An array of the caller, held until it is closed."""

    def __init__(self, held: dict[int, Array], number: int, array: Array) -> None:
        self.array: Array = array
        self._all_held, self._number = held, number
        held[number] = array

    def describe(self) -> dict[str, Any]:
        return {"held": self._number}

    def close(self) -> None:
        self._all_held.pop(self._number, None)
        self.array = np.empty(0)


class HeldArrays:
    """The arrays that the caller lends to the workers of one cluster, in the same process."""

    def __init__(self) -> None:
        self._arrays_by_number: dict[int, Array] = {}
        self._numbers = itertools.count()

    def hold(self, array: Array) -> JobArray:
        return HeldArray(self._arrays_by_number, next(self._numbers), array)

    def open(self, description: dict[str, Any]) -> Array:
        """Read-only, as arrays in shared memory are: to compiled code these are different types."""
        if description.get("held") not in self._arrays_by_number:
            raise ProtocolError("The rows of this job are not in this process any more.")
        view = self._arrays_by_number[description["held"]].view()
        view.flags.writeable = False
        return view
