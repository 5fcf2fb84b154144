"""Settings of Sphinx: the pages of docs/ and the reference of the Python interface. `make docs` builds the site."""

from __future__ import annotations

import logging
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import flegel

project = "Flegel"
author = "The Flegel contributors"
copyright = "The Flegel contributors"
version = release = flegel.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_gallery.gen_gallery"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
root_doc = "README"
exclude_patterns = ["_build", "sg_execution_times.rst", "auto_gallery/sg_execution_times.rst"]
html_theme = "furo"
html_title = "Flegel"
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
# Links to files of the repository (source, tests) are right in a checkout and lead nowhere in the site.
suppress_warnings = ["myst.xref_missing", "myst.header", "toc.not_included", "misc.highlighting_failure"]

GALLERY = Path(__file__).parent / "gallery"
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"/\w+\.py" if find_spec("torch") else r"/(?!flexible_ddp)\w+\.py",  # which scripts are run
    "within_subsection_order": "ExampleTitleSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 0,
}
logging.getLogger("flegel").setLevel(logging.WARNING)  # Sphinx lets all loggers tell everything
# Scripts of the gallery start further processes, which import Flegel from this checkout.
os.environ["PYTHONPATH"] = os.pathsep.join([str(GALLERY.parents[1]), os.environ.get("PYTHONPATH", "")])


def setup(app: Any) -> None:
    """In the site, the list of scripts leads to their pages, and its address alone to the first page."""

    def to_pages(app: Any, name: str, source: list[str]) -> None:
        if name == "gallery/README":
            source[0] = re.sub(r"\((\w+)\.py\)", r"(../auto_gallery/\1.rst)", source[0])

    def begin_at_the_readme(app: Any, error: Exception | None) -> None:
        if error is None:  # web servers show index.html
            text = '<!doctype html><meta http-equiv="refresh" content="0; url=README.html">\n'
            (Path(app.outdir) / "index.html").write_text(text, encoding="utf-8")

    app.connect("source-read", to_pages)
    app.connect("build-finished", begin_at_the_readme)
