"""`flegel ddp-store` and `flegel ddp-report`: what data-parallel training in PyTorch needs beside its script."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flegel.errors import UsageError
from flegel.runtime.system.signals import raise_lost_signal
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
        raise_lost_signal()
        serve(host, port)


def ddp_report(
    folder: Annotated[Path, typer.Argument(help="What ranks wrote: flegel.torch.watch(model, folder=…).")],
    out: Annotated[Path | None, typer.Option(help="The HTML file to write; ddp-report.html in FOLDER.")] = None,
    prometheus: Annotated[Path | None, typer.Option(help="Write scores as a text file of metrics, too.")] = None,
) -> None:
    """Say which rank of a data-parallel training is slow, in which section, since when, and what waiting costs.

    Works while the training runs, for plain DistributedDataParallel and for FlexibleDDP.

    For example:

        flegel ddp-report ddp-watch
    """
    with errors_as_sentences():
        from flegel.report.rank_page import html_of, prometheus_of, text_of
        from flegel.report.rank_sections import examine, read_watch
        from flegel.report.write import save

        report = examine(*read_watch(folder))
        print(text_of(report))
        print(f"\n{save(html_of(report), out or folder / 'ddp-report.html')}")
        if prometheus is not None:
            save(prometheus_of(report), prometheus)
