"""How many rows the memory of a GPU can hold, asked of the driver without starting CUDA in this process. Reads only.

NVIDIA's management library answers in microseconds, where a CUDA context would take memory of the device and could
not be forked. Where it is missing, or the worker is on another host, nothing is known, and nothing is limited.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

from flegel.configuration.active import active

FEATURE_BYTES = 4  # bytes of a feature on a device
LABEL_AND_STATE_BYTES = 32  # bytes of a row's label and state, roughly


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def rows_on_devices(devices: Mapping[int, str], columns: int) -> dict[int, int]:
    """Rows by worker, of those whose device tells; workers on one device share it."""
    found = {}
    for worker, device in devices.items():
        if device.startswith("cuda") and (free := free_memory(_number(device))) is not None:
            sharing = sum(_number(other) == _number(device) for other in devices.values() if other.startswith("cuda"))
            found[worker] = int(
                active().gpu.usable_memory_share * free / sharing / (FEATURE_BYTES * columns + LABEL_AND_STATE_BYTES)
            )
    return found


def _number(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def free_memory(number: int) -> int | None:
    """Bytes of the GPU that CUDA would call by this number; None where that is not known."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",") if name.strip()]
        if number >= len(names) or not names[number].isdigit():
            return None
        number = int(names[number])
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle, memory = ctypes.c_void_p(), _Memory()
    if library.nvmlInit_v2():
        return None
    try:
        if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(handle)):
            return None
        if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            return None
        return int(memory.free)
    finally:
        library.nvmlShutdown()
