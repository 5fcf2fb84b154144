"""The kernel of networks: gradients of micro-batches, summed straight into the worker's report.

Keeps the contract of `flegel/runtime/backends/protocol.py`. It looks at the stop flag between micro-batches and
finishes the one that it has begun. Sends no messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import DataPoint, Shard
from flegel.errors import UsageError
from flegel.runtime import clock
from flegel.runtime.system import malloc_settings
from flegel.torch import flat, probing
from flegel.torch.micro_batches import MicroBatches
from flegel.torch.records import (
    FIRST_COUNT,
    FIRST_SQUARE,
    REPORTS,
    SENDER,
    SQUARES,
    ModuleSpec,
    NetworkSums,
    NetworkWeights,
    no_sums,
)


class NetworkKernel:
    """One network on one device. The module's weights and gradients are views of flat vectors."""

    kind, note, least_points, grid, room, abandoned = "torch", "", 1, 1, 0, 0
    library = f"torch {torch.__version__.partition('+')[0]}"

    def __init__(
        self,
        network: ModuleSpec,
        shard: Shard,
        parameter: Tree,
        empty: Tree,
        device: torch.device,
        now: Callable[[], float] = clock.now,
    ) -> None:
        """`parameter` is θ, `empty` has statistics of zeros, `now` reads the clock. Only points of `shard` and of
        shards that come later are trained."""
        rules = active().networks
        self.device = str(device)
        self._network, self._place, self._now = network, device, now
        self._gpu = device.type != "cpu"
        if not self._gpu:
            torch.set_num_threads(1)
            malloc_settings.keep_buffers(rules.kept_block_bytes, rules.kept_bytes)
        self._outputs = output_count(network)
        arrays = pytree.flatten(empty)
        self._gradient, self._buffer_sums, self._sums, self._noise_sums = (np.array(a) for a in arrays)
        kind = torch.float64 if network.precision == "float64" else torch.float32
        host = torch.from_numpy(self._gradient)
        self._flat = flat.FlatModule(
            probing.fresh_module(network, seed=0), device, kind, host.to(device) if self._gpu else host
        )
        self._module = self._flat.module.train()
        self._totals = torch.zeros(2, dtype=torch.float64, device=device)  # loss and correct answers, since fetched
        self._visits = self._visits_since_theta = self._rounds = 0
        self._first_micro_batch: tuple[float | torch.Tensor, int] = (0.0, 0)
        self._theta: torch.Tensor | None = None
        self._rate = 0.0
        self._has_buffers = bool(flat.held(self._module))
        self._sizes = MicroBatches(network.micro_batch or (rules.gpu_samples if self._gpu else rules.processor_samples))
        self._number = 1.0 + float(shard.ids[0]) if len(shard.ids) else 0.0
        """Tells this worker's reports from those of others: no two workers begin with the same row."""
        self._stopped = False
        """A call ended by the stop flag since the last report, not by the end of its points: that is how a worker that
        trains on after its report, until the next θ comes, is called back."""
        self._proven = 0
        """Samples of the largest micro-batch for which there was memory."""
        self._began = self._now()
        self._copies: dict[int, tuple[Shard, torch.Tensor, torch.Tensor, Array]] = {}
        torch.manual_seed(int(shard.ids[0]) if len(shard.ids) else 0)  # dropout: another one on each worker
        self.set_parameter(pytree.flatten(parameter))

    @property
    def overhead(self) -> float:
        return self._sizes.call

    # -- θ and statistics ----------------------------------------------------------------------------------

    def set_parameter(self, arrays: Sequence[Array]) -> None:
        """Take a new θ: weights, buffers and learning rate; what was trained under the last one is added to the sums
        first."""
        self._add_buffers_and_local_steps()
        weights, buffers, rate = arrays[:3]
        host = torch.from_numpy(np.array(weights))
        self._flat.set_weights(host.to(self._place, non_blocking=True))
        if self._network.local:
            self._theta = self._flat.weights.clone()
        if self._has_buffers:
            flat.set_buffers(self._module, np.array(buffers))
        self._rounds += 1
        self._rate, self._began = float(np.asarray(rate).reshape(-1)[0]), self._now()

    def clear_statistics(self) -> None:
        self._flat.gradient.zero_()
        self._buffer_sums[...], self._sums[...], self._noise_sums[...] = 0.0, 0.0, 0.0
        self._totals.zero_()
        self._visits, self._visits_since_theta, self._first_micro_batch = 0, 0, (0.0, 0)

    def add_statistics(self, arrays: Sequence[Array]) -> None:
        gradient, buffers, sums, spread = arrays
        self._flat.gradient += torch.from_numpy(np.array(gradient)).to(self._place)
        self._buffer_sums += buffers
        self._sums += sums
        self._noise_sums += spread

    def _add_buffers_and_local_steps(self) -> None:
        """Add the buffers after the visits since the last θ, and the local steps that were taken, to the sums."""
        if not self._visits_since_theta:
            return
        if self._has_buffers:
            self._buffer_sums += self._visits_since_theta * flat.buffers_of(self._module)
        if self._theta is not None:
            self._flat.gradient.add_(self._flat.weights - self._theta, alpha=float(self._visits_since_theta))
            with torch.no_grad():
                self._theta.copy_(self._flat.weights)
        self._visits_since_theta = 0

    def statistics(self) -> tuple[Array, ...]:
        """The fields of `NetworkSums` since `clear_statistics`, as one report. On a GPU this waits for the device and
        copies."""
        if self._visits_since_theta:
            self._sizes.add_round(self._now() - self._began, self._stopped)
            self._stopped = False
        self._add_buffers_and_local_steps()
        loss, correct = self._totals.tolist()
        sums, spread = self._sums + np.array([loss, self._visits, correct]), self._noise_sums.copy()
        if self._visits:
            first, count = self._first_micro_batch
            square = float(torch.dot(self._flat.gradient, self._flat.gradient))
            spread[REPORTS] += 1.0
            spread[SQUARES] += square / self._visits
            spread[FIRST_SQUARE] += float(first)
            spread[FIRST_COUNT] += float(count)
            spread[SENDER] += self._number
        if self._gpu:
            self._gradient[...] = self._flat.gradient.cpu().numpy()
        return self._gradient, self._buffer_sums, sums, spread

    # -- training ------------------------------------------------------------------------------------------

    def run(self, shard: Shard, start: int, end: int, iteration: int, flag: Array) -> int:
        """Train points `start` to `end` in micro-batches, until the flag is set; returns the point after the last
        trained one."""
        features, labels = self._on_device(shard, start, end)
        at = start
        while at < end and not flag[0]:
            size = self._next_size(end - at)
            entered = self._now()
            done = self._micro_batch(features[at : at + size], labels[at : at + size])
            if done:
                at += size
                if self._gpu:
                    torch.cuda.synchronize(self._place)  # the flag must be looked at when the work is done, not queued
                self._sizes.add(size, self._now() - entered)
        self._stopped = self._stopped or at < end
        return at

    def _next_size(self, left: int) -> int:
        """Samples of the next micro-batch. A small rest goes with the last one: a call costs more than its samples."""
        size = self._sizes.size
        if not self._network.local and left < 1.5 * size and left <= self._sizes.most:
            size = left
        if (
            self._rounds % active().networks.rounds_per_noise_estimate == 0
            and not self._first_micro_batch[1]
            and left >= 16
        ):
            size = min(size, left // 16 * 8)
        return min(size, left)

    def _micro_batch(self, rows: torch.Tensor, labels: torch.Tensor) -> bool:
        """Forward and backward. False: there was no memory, nothing was added, and the next one will be smaller."""
        size, network = len(rows), self._network
        before = self._flat.gradient.clone() if self._gpu and size > self._proven else None
        try:
            loss, correct = self._forward_backward(rows, labels)
        except torch.OutOfMemoryError:
            if before is None or not self._sizes.too_large(size):
                raise UsageError(
                    f"There is not enough memory on {self.device} for this network with micro-batches of {size} "
                    "samples; use a smaller network, or fewer workers on this device."
                ) from None
            self._flat.gradient.copy_(before)
            torch.cuda.empty_cache()
            return False
        self._proven = max(self._proven, size)
        self._totals[0] += loss
        self._totals[1] += correct
        self._visits += size
        self._visits_since_theta += size
        if not self._first_micro_batch[1] and not network.local:
            gradient = self._flat.gradient
            self._first_micro_batch = (torch.dot(gradient, gradient) / float(size) ** 2, size)
        return True

    def _forward_backward(self, rows: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Loss and right answers of a micro-batch; its gradient is added to the sum, or a local step is taken."""
        network = self._network
        cast = torch.autocast(self._place.type, torch.bfloat16) if network.autocast else nullcontext()
        with cast:
            outputs = self._module(probing.inputs(network, rows))
            loss = probing.loss_sum(network, outputs.float() if network.autocast else outputs, labels)
        if network.local:
            self._local_step(loss / len(rows))
        else:
            loss.backward()  # type: ignore[no-untyped-call]
            self._flat.after_backward()
        correct: torch.Tensor | float = 0.0
        if network.targets == "classes":
            found = outputs.detach()
            guess = found.argmax(1) if found.ndim > 1 and found.shape[1] > 1 else (found.reshape(-1) > 0).long()
            correct = (guess == labels).sum()
        return loss.detach(), correct

    def _local_step(self, loss: torch.Tensor) -> None:
        """One step of gradient descent on this worker's own copy; the report's field holds visits·Δθ, not gradients."""
        parameters = flat.trainable(self._module)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for p, g in zip(parameters, gradients, strict=True):
                p.sub_(g, alpha=self._rate)

    # -- shards --------------------------------------------------------------------------------------------

    def _on_device(self, shard: Shard, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Features and labels of a shard where the module is; points that arrived since are brought there."""
        features: Any = shard.features
        if not self._gpu:
            if id(shard) not in self._copies:
                whole = probing.readable(features), probing.readable(shard.labels)
                self._copies[id(shard)] = (shard, *whole, np.ones(0, bool))
                self._check(shard, 0, shard.points)
            return self._copies[id(shard)][1:3]
        if id(shard) not in self._copies:
            room = torch.empty(features.shape, dtype=self._flat.weights.dtype, device=self._place)
            kind = torch.long if self._network.targets == "classes" else torch.float64
            labels = torch.empty(len(shard.labels), dtype=kind, device=self._place)
            self._copies[id(shard)] = (shard, room, labels, np.zeros(shard.points, bool))
        _, room, labels, here = self._copies[id(shard)]
        missing = np.flatnonzero(~here[start:end])
        if len(missing):
            lo, hi = start + int(missing[0]), start + int(missing[-1]) + 1
            self._check(shard, lo, hi)
            room[lo:hi] = torch.from_numpy(np.array(features[lo:hi])).to(self._place)
            labels[lo:hi] = torch.from_numpy(np.array(shard.labels[lo:hi])).to(self._place).to(labels.dtype)
            here[lo:hi] = True
        return room, labels

    def _check(self, shard: Shard, start: int, end: int) -> None:
        if self._network.targets == "classes":
            probing.check_labels(self._network, np.asarray(shard.labels[start:end]), self._outputs)

    def fetch_states(self, shards: Sequence[Shard], start: int = 0, end: int | None = None) -> None:
        """Points have no hidden state."""

    def put_states(self, shards: Sequence[Shard], start: int = 0, end: int | None = None) -> None:
        """Points have no hidden state; shards that were added are read when they are trained. On a processor tensors
        lie over the memory of the shard, where points that arrive are written."""
        if self._gpu:
            return
        for shard in shards:
            if id(shard) in self._copies:
                last = shard.points if end is None else end
                self._check(shard, start, last)
                features: Any = shard.features
                if not (features.flags.c_contiguous and shard.labels.flags.c_contiguous):
                    del self._copies[id(shard)]

    def forget(self, shard: Shard) -> None:
        self._copies.pop(id(shard), None)

    def close(self) -> None:
        self._copies.clear()


def output_count(network: ModuleSpec) -> int:
    """Outputs of the module for a sample."""
    module = probing.fresh_module(network, seed=0).eval()
    columns = int(np.prod(network.shape)) if network.shape else 1
    with torch.no_grad():
        found = module(probing.inputs(network, np.zeros((1, columns), np.float32)))
    return int(found.shape[1]) if found.ndim > 1 else 1


def one_sample(network: ModuleSpec, point: DataPoint, parameter: NetworkWeights) -> NetworkSums:
    """Gradient, loss and answer of one sample, by the plain way: the specification of the kernel."""
    shard = Shard(
        np.asarray(point.features)[None, :],
        np.array([point.label]),
        np.zeros((1, 0)),
        np.zeros(1, np.uint8),
        1,
        len(np.asarray(point.features)),
        np.zeros(1, np.int64),
    )
    kernel = NetworkKernel(network, shard, parameter, no_sums(parameter), torch.device("cpu"))
    kernel.run(shard, 0, 1, 0, np.zeros(1, np.uint8))
    return NetworkSums(*kernel.statistics())
