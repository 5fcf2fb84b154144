"""What an algorithm gives for devices of torch: a program over blocks of rows. Types only.

A program lies beside its algorithm (`Kernels.torch_program` names it) and knows tensors, not shards, flags or
devices' memory; `kernel.py` knows those. Statistics are float64 tensors on the device, one for each field of the empty
statistics, and a block adds the changes of its points to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class BlockProgram(Protocol):
    """Made once for a job, from the algorithm and the device."""

    def set_parameter(self, parameter: Any) -> None:
        """θ of the coming blocks: a tuple like the algorithm's own, of arrays in the memory of the host."""

    def visit(self, features: Any, labels: Any, state: Any, sums: Sequence[Any], iteration: int) -> None:
        """Visit all rows of a block: `features` (n, columns), `labels` (n), `state` (n, size), which is updated."""

    def block(self, columns: int) -> int:
        """Rows of a block: as many as fit well into the memory of the device beside the data."""
