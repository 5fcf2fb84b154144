"""`flegel ddp-store`: the store at which ranks meet that heal. Holds names and numbers only, never gradients."""

from __future__ import annotations

import torch.distributed as dist

from flegel.errors import UsageError
from flegel.runtime import clock

TURN_SECONDS = 3600.0  # between two turns of a process that only waits for its end


def serve(host: str, port: int) -> None:
    """Serve the store until the process is ended. Where it ends earlier, ranks notice it within seconds and end with a
    sentence."""
    try:
        store = dist.TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=clock.span(10))
    except (RuntimeError, dist.DistError) as error:
        raise UsageError(
            f"Port {port} cannot be served ({str(error).splitlines()[0][:120]}): choose another."
        ) from None
    print(f"Ranks meet at tcp://{host}:{store.port}", flush=True)
    while True:
        clock.sleep(TURN_SECONDS)
