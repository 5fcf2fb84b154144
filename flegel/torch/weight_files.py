"""Weights of a network as a safetensors file, under the names of the module's `state_dict`. Never pickles."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from flegel.errors import StorageError, UsageError
from flegel.loading.damage import damage_as
from flegel.loading.regular_files import check_regular

MISSING_SAFETENSORS = "Saving and loading weights needs safetensors; install it with: pip install 'flegel[torch]'."


def content(module: Any) -> bytes:
    """The weights of an `nn.Module` as the bytes of a safetensors file."""
    try:
        from safetensors.torch import save as to_bytes
    except ModuleNotFoundError:
        raise UsageError(MISSING_SAFETENSORS) from None
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()}
    return bytes(to_bytes(tensors))


def save(model: Any, path: str | os.PathLike[str]) -> Path:
    """Write the weights of a result, a loaded model or an `nn.Module`; every PyTorch program can read them."""
    tensors = content(getattr(model, "module", model))
    target = Path(path)
    scratch = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        scratch.write_bytes(tensors)
        scratch.replace(target)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise StorageError(f"Could not write {target}: {error.strerror or error}.") from None
    return target


def load(module: Any, path: str | os.PathLike[str]) -> Any:
    """Put the weights of a safetensors file into an `nn.Module`, and return it."""
    try:
        from safetensors.torch import load_file
    except ModuleNotFoundError:
        raise UsageError(MISSING_SAFETENSORS) from None
    try:
        check_regular(Path(path), StorageError)
        with damage_as(f"{path} is no safetensors file"):
            tensors = load_file(os.fspath(path))
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from None
    try:
        module.load_state_dict(tensors)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"The weights in {path} do not fit {type(module).__name__}: {error}") from None
    return module
