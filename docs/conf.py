"""Settings of Sphinx: the pages of docs/ and the reference of the Python interface. `make docs` builds the site."""

from __future__ import annotations

import flegel

project = "Flegel"
author = "The Flegel contributors"
copyright = "The Flegel contributors"
version = release = flegel.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
root_doc = "README"
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Flegel"
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
# Links to files of the repository (source, tests) are right in a checkout and lead nowhere in the site.
suppress_warnings = ["myst.xref_missing", "myst.header", "toc.not_included", "misc.highlighting_failure"]
