"""Fails where a page of the built site (build/docs) links to a file or an anchor that the site does not have.

`make docs` runs it. Links to other sites are not followed.
"""

from __future__ import annotations

import html
import re
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

SITE = Path(__file__).resolve().parents[1] / "build" / "docs"


@cache
def anchors(page: Path) -> set[str]:
    return set(re.findall(r'(?:id|name)="([^"]+)"', page.read_text(encoding="utf-8")))


def leads_somewhere(page: Path, link: str) -> bool:
    parts = urlsplit(html.unescape(link))
    if parts.scheme or parts.netloc:
        return True
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.exists():
        return False
    return not parts.fragment or target.suffix != ".html" or unquote(parts.fragment) in anchors(target)


def dead_links(site: Path) -> list[str]:
    found = []
    for page in sorted(site.rglob("*.html")):
        links = re.findall(r'(?:href|src)="([^"]+)"', page.read_text(encoding="utf-8"))
        found += [f"{page.relative_to(site)}: {link}" for link in links if not leads_somewhere(page, link)]
    return found


def main() -> int:
    dead = dead_links(SITE)
    print("\n".join(dead) or "every link of the site leads somewhere")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
