"""Kernels from CUDA source text: compiled by NVRTC, which every build of torch for CUDA brings. Imports torch.

Needs no compiler on the host and no headers. Knows no algorithm.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


class CudaError(RuntimeError):
    """NVRTC or the driver refused; the text says why."""


class CudaKernel:
    """One function of a compiled source, loaded on one device."""

    def __init__(self, source: str, name: str, device: torch.device, constants: dict[str, int]) -> None:
        """`constants` are defined before the source, in the way of the preprocessor."""
        compiler, self._driver = _libraries()
        self._device = device
        with torch.cuda.device(device):
            torch.cuda.current_stream()  # the driver's context of this device is that of torch
            torch.zeros(1, device=device)
            major, minor = torch.cuda.get_device_capability(device)
            options = [f"--gpu-architecture=sm_{major}{minor}", *(f"-D{k}={v}" for k, v in constants.items())]
            code = _compiled(compiler, source, options)
            module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
            self._check(self._driver.cuModuleLoadData(ctypes.byref(module), code))
            self._check(self._driver.cuModuleGetFunction(ctypes.byref(self._function), module, name.encode()))

    def __call__(self, blocks: int, threads: int, values: Sequence[torch.Tensor | int]) -> None:
        """Start it on torch's stream: tensors as pointers, whole numbers as int."""
        held: list[Any] = [
            ctypes.c_void_p(v.data_ptr()) if isinstance(v, torch.Tensor) else ctypes.c_int(v) for v in values
        ]
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(v) for v in held))
        with torch.cuda.device(self._device):
            stream = ctypes.c_void_p(torch.cuda.current_stream(self._device).cuda_stream)
            self._check(
                self._driver.cuLaunchKernel(self._function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, None)
            )

    def _check(self, answer: int) -> None:
        if answer:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(answer, ctypes.byref(text))
            raise CudaError((text.value or b"unknown").decode())


def _libraries() -> tuple[Any, Any]:
    """NVRTC, through the library of torch that is linked with it wherever it lies, and the driver."""
    beside = Path(torch.__file__).parent / "lib" / "libcaffe2_nvrtc.so"
    major = str(torch.version.cuda).partition(".")[0]
    for name in (str(beside), f"libnvrtc.so.{major}"):
        try:
            compiler, driver = ctypes.CDLL(name), ctypes.CDLL("libcuda.so.1")
        except OSError:
            continue
        if hasattr(compiler, "nvrtcGetCUBIN"):
            return compiler, driver
    raise CudaError("there is no NVRTC beside torch")


def _compiled(library: Any, source: str, options: list[str]) -> bytes:
    """Compile CUDA source text to machine code; raises `CudaError` with the compiler's log."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    if library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None):
        raise CudaError("NVRTC could not begin")
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if library.nvrtcCompileProgram(program, len(options), given):
            library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            library.nvrtcGetProgramLog(program, log)
            raise CudaError(log.value.decode())
        library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        library.nvrtcGetCUBIN(program, code)
        return code.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
