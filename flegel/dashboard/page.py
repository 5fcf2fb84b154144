"""The files of the page, and a saved page: one HTML file with runs inside, which opens without a server.

No build step and no network: scripts and styles lie in `static/`, with uPlot and its licence beside them. In a saved
page they are inside the file, and its content policy admits exactly these by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable
from importlib import resources

from flegel.dashboard.frames import RunHistory

SCRIPTS = ("uPlot.iife.min.js", "model.js", "timeline.js", "charts.js", "tables.js", "app.js")
STYLES = ("uPlot.min.css", "style.css")
MEDIA_TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml"}
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)


def static(name: str) -> str:
    return (resources.files("flegel.dashboard") / "static" / name).read_text(encoding="utf-8")


def files() -> dict[str, tuple[bytes, str]]:
    """By path: content and media type of everything that the server has."""
    names = (*SCRIPTS, *STYLES, "favicon.svg")
    found = {f"/{n}": (static(n).encode(), MEDIA_TYPES[n.rpartition(".")[2]]) for n in names}
    links = "".join(f'<link rel="stylesheet" href="{name}">\n' for name in STYLES)
    links += '<link rel="icon" href="favicon.svg">\n'
    scripts = "".join(f'<script src="{name}"></script>\n' for name in SCRIPTS)
    found["/"] = (_page(links, scripts).encode(), "text/html")
    return found


def saved_page(runs: Iterable[RunHistory]) -> str:
    """One file with everything inside."""
    frames = b",".join(frame for run in runs for frame in run.frames())
    data = f"[{frames.decode()}]".replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    styles, scripts = [static(n) for n in STYLES], [static(n).replace("</script", "<\\/script") for n in SCRIPTS]
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src {' '.join(map(_hash, styles))}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
    head += "".join(f"<style>{text}</style>\n" for text in styles) + '<link rel="icon" href="data:,">\n'
    tail = f'<script type="application/json" id="saved">{data}</script>\n'
    return _page(head, tail + "".join(f"<script>{text}</script>\n" for text in scripts))


def _page(head: str, scripts: str) -> str:
    return static("index.html").replace("<!--head-->", head).replace("<!--scripts-->", scripts)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
