"""Which worker computes on which device, and how rows are dealt at first. Pure.

Devices are written `cuda` or `cuda:0,cuda:1` (all workers, in turn), or `0=cuda:0,1-3=cuda:1` (those workers alone).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flegel.configuration.active import active
from flegel.errors import UsageError
from flegel.plan.active_workers import ActiveWorkers, ValueOfVisits, best_active_workers, first_cost
from flegel.wording import counted, option

DEVICE_FORMS: dict[str, str] = {"cpu": "", "cuda": r"(:\d+)?", "torch": r"(:\w+)?"}
"""By kind of device: what may follow its name, as a regular expression. Which backend serves a kind is said in
runtime/backends/registry.py; both have the same kinds."""

_NAME = re.compile("|".join(kind + rest for kind, rest in DEVICE_FORMS.items()))


def parse_devices(text: str, gpus: int, workers: int) -> dict[int, str]:
    """Devices by worker; who is not named computes on the processor.

    `gpus`: the first `gpus` workers get cuda:0, cuda:1, ...; what `text` says of a worker takes precedence. Devices
    without a worker are dealt to all workers in turn.
    """
    if not 0 <= gpus <= workers:
        raise UsageError(
            f"{option('gpus', gpus)} must be 0 or more, and no more than the {counted(workers, 'worker')}."
        )
    found = {worker: f"cuda:{worker}" for worker in range(gpus)}
    named: dict[int, str] = {}
    for part in _parts(text):
        if _NAME.fullmatch(part):
            continue
        who, equals, device = (word.strip() for word in part.partition("="))
        numbers = re.fullmatch(r"(\d+)(?:-(\d+))?", who)
        if not equals or numbers is None or not _NAME.fullmatch(device):
            raise UsageError(
                f"{option('device', part)} is neither a device, such as cuda or cuda:1, nor of the form WORKER=DEVICE, "
                "such as 0=cuda:0 or 1-3=cuda:1."
            )
        first = int(numbers[1])
        last = int(numbers[2] or first)
        if not first <= last < workers:
            raise UsageError(
                f"{option('device', part)} names worker {max(first, last)}, but the workers are 0 to {workers - 1}."
            )
        named.update(dict.fromkeys(range(first, last + 1), device))
    return found | _dealt(text, [worker for worker in range(workers) if worker not in named]) | named


def _dealt(text: str, workers: list[int]) -> dict[int, str]:
    """The devices that name no worker, in turn; each needs one at least, or it would stay idle without a word."""
    devices = devices_in_turn(text)
    if len(devices) > len(workers):
        raise UsageError(
            f"{option('device', text)} names {counted(len(devices), 'device')} for {counted(len(workers), 'worker')}; "
            f"give {option('workers', len(devices))} or more, or fewer devices."
        )
    return {worker: devices[i % len(devices)] for i, worker in enumerate(workers)} if devices else {}


def devices_in_turn(text: str) -> tuple[str, ...]:
    """The devices that name no worker: those of all workers, also of workers that join later."""
    return tuple(part for part in _parts(text) if _NAME.fullmatch(part))


def _parts(text: str) -> list[str]:
    return [piece.strip() for piece in text.split(",") if piece.strip()]


def workers_of_gpus(text: str) -> int:
    """The job names GPUs and no workers: one worker is enough for each of them. 0: it names something else."""
    devices = devices_in_turn(text)
    only_gpus = len(devices) == len(_parts(text)) and all(device.startswith("cuda") for device in devices)
    return len(devices) if only_gpus else 0


@dataclass(frozen=True)
class Work:
    """A pass over all rows."""

    rows: int
    multiplications: float = 0.0
    """0: not known."""
    room: Mapping[int, int] = field(default_factory=dict)
    """Rows that the memory of a worker's device can hold, where that is known."""
    interval: float | None = None
    """Seconds between barriers, where the user chose them."""


@dataclass(frozen=True)
class FirstPartition:
    """How rows are distributed over workers when a job begins, and which workers rest from the beginning."""

    partition: str
    active_workers: ActiveWorkers | None = None
    """Who trains, where some workers rest from the beginning; None: all train."""

    @property
    def resting(self) -> tuple[int, ...]:
        return self.active_workers.resting if self.active_workers is not None else ()


def relative_speeds(devices: dict[int, str], workers: int, network: bool) -> dict[int, float]:
    """The expected speed of each worker, as a multiple of one core's, from its device alone."""
    fast = active().processors.gpu_share_of_networks if network else active().processors.gpu_share
    return {w: float(fast) if devices.get(w, "cpu").startswith("cuda") else 1.0 for w in range(workers)}


def partition_by_threads(threads: Sequence[int]) -> str:
    """Rows in proportion to the threads of each worker's team: what is known of hosts before anybody has trained."""
    return "shuffle:" + ",".join(f"{worker}={count}" for worker, count in enumerate(threads))


def first_partition(speeds: dict[int, float], work: Work, rest: bool) -> FirstPartition:
    """Distribute rows in proportion to the expected speeds of workers, as far as the memory of their devices allows;
    for jobs whose points may move later. `rest`: workers that would slow the job down more than they help get no
    rows."""
    if len(set(speeds.values())) < 2:
        return FirstPartition("shuffle")
    fast = [worker for worker, speed in speeds.items() if speed > 1.0]
    room = sum(work.room.get(worker, work.rows) for worker in fast) / work.rows
    if rest and room >= 1.0 and work.multiplications:
        core = active().processors.core_speed * work.rows / work.multiplications
        rates = {worker: speed * core for worker, speed in speeds.items()}
        best = best_active_workers(
            rates, tuple(speeds), first_cost, ValueOfVisits(float(work.rows), interval=work.interval)
        )
        if best.resting and best.gain >= active().resting.sure_gain:
            named = [w for w in speeds if w in fast or w in best.resting]
            shares = [f"{w}={'none' if w in best.resting else format(speeds[w], 'g')}" for w in named]
            return FirstPartition("shuffle:" + ",".join(shares), best)
    others = sum(speed for speed in speeds.values() if speed <= 1.0)
    most = others * room / max(1.0 - room, 1e-9) / len(fast)
    return FirstPartition("shuffle:" + ",".join(f"{w}={min(speeds[w], max(most, 1e-3)):g}" for w in fast))
