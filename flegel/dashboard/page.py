"""The files of the page. No build step and no network: scripts and styles lie in `static/`, with uPlot and its licence
beside them. Pages that are files, and open without a server, are drawn by `flegel.report`."""

from __future__ import annotations

from importlib import resources

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
    """Content and media type of everything that the server has, by path."""
    names = (*SCRIPTS, *STYLES, "favicon.svg")
    found = {f"/{n}": (static(n).encode(), MEDIA_TYPES[n.rpartition(".")[2]]) for n in names}
    links = "".join(f'<link rel="stylesheet" href="{name}">\n' for name in STYLES)
    links += '<link rel="icon" href="favicon.svg">\n'
    scripts = "".join(f'<script src="{name}"></script>\n' for name in SCRIPTS)
    page = static("index.html").replace("<!--head-->", links).replace("<!--scripts-->", scripts)
    found["/"] = (page.encode(), "text/html")
    return found
