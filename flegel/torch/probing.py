"""What a module wants: how its inputs are shaped and what its loss takes; found by trying on a few rows.

Errors here are sentences for the user: the same mistakes would otherwise appear in every worker. Never trains.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch

from flegel.algorithm import Sample
from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.errors import AlgorithmError, UsageError, own_traceback
from flegel.torch.records import ModuleSpec, NetworkWeights


def fresh_module(network: ModuleSpec, seed: int | None = None) -> torch.nn.Module:
    """The module as `build` makes it; with a seed its weights are the same in every process."""
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        try:
            made = network.build()
        except Exception as error:
            raise AlgorithmError(
                f"{type(network).__name__}: the module could not be built: {type(error).__name__}: {error}",
                own_traceback(error),
            ) from error
    if not isinstance(made, torch.nn.Module):
        raise UsageError(f"{type(network).__name__}: build must return an nn.Module, not {type(made).__name__}.")
    if not any(p.requires_grad for p in made.parameters()):
        raise UsageError(f"{type(network).__name__}: the module has no parameters to train.")
    return made.double() if network.precision == "float64" else made


def readable(features: Any) -> torch.Tensor:
    """A tensor over the same memory; torch warns of arrays that must not be written to, and nothing here writes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(features if features.flags.c_contiguous else np.ascontiguousarray(features))


def inputs(network: ModuleSpec, rows: Any, device: torch.device | None = None) -> torch.Tensor:
    """Rows (an array or a tensor) as the module takes them."""
    kind = torch.float64 if network.precision == "float64" else torch.float32
    made = (readable(rows) if isinstance(rows, np.ndarray) else torch.as_tensor(rows)).to(device=device, dtype=kind)
    if network.divide not in (None, 1.0):
        made = made / network.divide
    return made.reshape(len(made), *network.shape) if network.shape else made


def target_tensor(network: ModuleSpec, labels: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Labels as the loss takes them: class numbers, or values in the shape of the outputs."""
    if network.targets == "classes":
        return labels.long()
    return labels.to(outputs.dtype).reshape(outputs.shape)


def loss_sum(network: ModuleSpec, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss summed over samples, whether the user's function gives a mean or one number a sample."""
    value = network.loss(outputs, target_tensor(network, labels, outputs))
    if not isinstance(value, torch.Tensor) or (value.ndim and len(value) != len(outputs)):
        got = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise UsageError(
            f"{type(network).__name__}: the loss must be one number for the batch or one for each of its "
            f"{len(outputs)} samples, not {got}."
        )
    return value.sum() if value.ndim else value * len(outputs)


def learn_inputs(network: ModuleSpec, sample: Sample) -> None:
    """Sets `divide`, `shape` and `targets` where the user has not, and checks the rest on a few rows."""
    rows, labels = np.asarray(sample.features), np.asarray(sample.labels)
    if not np.isfinite(rows).all():
        raise UsageError(f"{type(network).__name__}: the inputs hold numbers that are not finite; leave such rows out.")
    if labels.dtype.kind not in "fiub" or not np.isfinite(labels).all():
        raise UsageError(f"{type(network).__name__}: a label is missing, infinite or no number; leave such rows out.")
    if network.divide is None:
        pixels = rows.min() >= 0 and 16 < rows.max() <= 255 and bool((rows[:256] % 1 == 0).all())
        network.divide = 255.0 if pixels else 1.0
    module = fresh_module(network, seed=0).eval()
    outputs = _find_shape(network, module, rows[: active().networks.probed_rows])
    _find_targets(network, outputs, labels, len(rows))
    check_labels(network, labels, outputs.shape[1] if outputs.ndim > 1 else 1)


def _find_shape(network: ModuleSpec, module: torch.nn.Module, rows: Array) -> torch.Tensor:
    """The outputs for a few rows in the first shape that the module takes, which becomes the network's `shape`."""
    tried: list[str] = []
    columns = rows.shape[1]
    if network.shape is not None and math.prod(network.shape) != columns:
        raise UsageError(
            f"{type(network).__name__}: shape={network.shape} has {math.prod(network.shape)} numbers, but rows have "
            f"{columns} columns."
        )
    for shape in [network.shape] if network.shape else _shapes(columns):
        network.shape = shape
        try:
            with torch.no_grad():
                found = module(inputs(network, rows))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            tried.append(f"{shape}: {str(error).splitlines()[0]}")
            continue
        if not isinstance(found, torch.Tensor) or len(found) != len(rows):
            raise UsageError(f"{type(network).__name__}: the module must return one tensor with a row for each sample.")
        return found
    raise UsageError(
        f"{type(network).__name__}: the module does not take rows of {columns} columns; give shape=…, the shape of "
        f"one input. Tried {'; '.join(tried)}."
    )


def _shapes(columns: int) -> list[list[int]]:
    """A row as it is, or as a square image of one or three channels."""
    found = [[columns]]
    for channels in (1, 3):
        side = math.isqrt(columns // channels)
        if side > 1 and channels * side * side == columns:
            found.append([channels, side, side])
    return found


def _find_targets(network: ModuleSpec, outputs: torch.Tensor, labels: Array, rows: int) -> None:
    """Set `targets` to what the loss takes for these outputs: class numbers, or values."""
    few = torch.as_tensor(labels[: len(outputs)])
    whole = bool((labels % 1 == 0).all())
    wanted: list[Any] = ["classes", "values"] if whole else ["values"]
    wanted = wanted if network.targets == "auto" else [network.targets]
    problem = ""
    for kind in wanted:
        network.targets = kind
        try:
            probe = few.clamp(0, max(outputs.shape[1] - 1, 0)) if kind == "classes" and outputs.ndim > 1 else few
            loss_sum(network, outputs, probe)
            return
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            problem = problem or str(error).splitlines()[0]
    network.targets = "auto"
    raise UsageError(
        f"{type(network).__name__}: the outputs of the module, of shape {tuple(outputs.shape[1:])} for each sample, do "
        f"not fit the loss: {problem}."
    )


def check_labels(network: ModuleSpec, labels: Array, outputs: int) -> None:
    """Labels of classification must be class numbers below the number of outputs."""
    if network.targets != "classes" or not len(labels):
        return
    wrong = labels[(labels < 0) | (labels >= max(outputs, 2)) | (labels % 1 != 0)]
    if len(wrong):
        raise UsageError(
            f"{type(network).__name__}: label {wrong[0]:g} is out of range: the module has {outputs} outputs, so "
            f"labels must be whole numbers from 0 to {max(outputs, 2) - 1}."
        )


def outputs_of(network: ModuleSpec, features: Any, parameter: NetworkWeights) -> Array:
    """The outputs of a finished model for rows."""
    rules = active().networks
    module, rows = network.module(parameter), np.asarray(features)
    parts = []
    with torch.no_grad():
        for at in range(0, len(rows), rules.forward_rows):
            parts.append(
                module(inputs(network, np.ascontiguousarray(rows[at : at + rules.forward_rows]))).double().numpy()
            )
    return np.concatenate(parts) if parts else np.zeros((0, 1))


def loss_of(network: ModuleSpec, outputs: Array, labels: Array) -> float:
    """The mean loss of outputs."""
    rules = active().networks
    kind = torch.float64 if network.precision == "float64" else torch.float32
    found = torch.as_tensor(outputs).to(kind)
    with torch.no_grad():
        total = sum(
            float(
                loss_sum(
                    network,
                    found[at : at + rules.forward_rows],
                    torch.as_tensor(labels[at : at + rules.forward_rows]),
                )
            )
            for at in range(0, len(found), rules.forward_rows)
        )
    return total / max(len(found), 1)
