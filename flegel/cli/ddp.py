"""`flegel ddp-store`: what data-parallel training with FlexibleDDP needs beside its script."""

from __future__ import annotations

from typing import Annotated

import typer

from flegel.errors import UsageError
from flegel.terminal.reporting import errors_as_sentences


def ddp_store(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where ranks meet; 0 takes a free one.")] = 29400,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Serve the store at which ranks of FlexibleDDP meet that heal; Ctrl-C ends it.

    Ranks name it in `flegel.torch.join("tcp://HOST:PORT", ranks=…)`. It is not protected: listen inside your network.

    For example:

        flegel ddp-store --host 10.0.0.1 --port 29400
    """
    with errors_as_sentences():
        try:
            from flegel.torch.flexible.store import serve
        except ImportError:
            raise UsageError("PyTorch is not installed: pip install 'flegel[torch]'.") from None
        serve(host, port)
