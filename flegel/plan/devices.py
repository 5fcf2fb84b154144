"""Which worker computes on which device: `0=cuda:0,1-3=cuda:1`, or the first workers on so many GPUs. Pure."""

from __future__ import annotations

import re

from flegel.errors import UsageError

GPU_SHARE = 200
"""First share of a GPU beside processors, in shares of one core. On an H200 k-means (11 M × 28, k = 100) takes 2.4 ms a
pass, on sixteen cores 44 ms: a GPU is as fast as 290 cores there. Others are slower; balance corrects it."""

_NAME = re.compile(r"cpu|cuda(:\d+)?|torch(:\w+)?")


def parse_devices(text: str, gpus: int, workers: int) -> dict[int, str]:
    """Devices by worker; who is not named computes on the processor.

    `gpus`: the first so many workers get cuda:0, cuda:1, ...; what `text` says of a worker goes before that.
    """
    if not 0 <= gpus <= workers:
        raise UsageError(f"--gpus {gpus} must be 0 or more, and no more than the {workers} workers.")
    found = {worker: f"cuda:{worker}" for worker in range(gpus)}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        who, equals, device = (word.strip() for word in part.partition("="))
        numbers = re.fullmatch(r"(\d+)(?:-(\d+))?", who)
        if not equals or numbers is None or not _NAME.fullmatch(device):
            raise UsageError(f"--device {part!r} is not of the form WORKER=DEVICE, such as 0=cuda:0 or 1-3=cuda:1.")
        first = int(numbers[1])
        last = int(numbers[2] or first)
        if not first <= last < workers:
            raise UsageError(
                f"--device {part!r} names worker {max(first, last)}, but the workers are 0 to {workers - 1}."
            )
        found.update(dict.fromkeys(range(first, last + 1), device))
    return found


def first_shares(devices: dict[int, str], workers: int) -> str:
    """How rows are dealt at first, where points may move later: GPUs beside processors get more."""
    fast = [worker for worker, device in sorted(devices.items()) if device.startswith("cuda")]
    if not fast or len(fast) == workers:
        return "shuffle"
    return "shuffle:" + ",".join(f"{worker}={GPU_SHARE}" for worker in fast)
