"""The lowest versions of the dependencies that pyproject.toml allows, as pins for pip, one a line. Installs nothing.

python packaging/lowest.py sklearn > build/lowest.txt    # and of these extras
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def pins(requirements: list[str]) -> list[str]:
    """`numpy>=1.26` becomes `numpy==1.26`; a requirement without a lower bound is an error."""
    found = []
    for text in requirements:
        parts = re.fullmatch(r"([A-Za-z0-9_.-]+(?:\[[a-z,]+\])?)>=([0-9.]+)", text.partition(";")[0].strip())
        if parts is None:
            raise SystemExit(f"{text!r} has no lower bound of the form name>=version")
        found.append(f"{parts[1]}=={parts[2]}")
    return found


if __name__ == "__main__":
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = [text for name in sys.argv[1:] for text in project["optional-dependencies"][name]]
    print("\n".join(pins(project["dependencies"] + extras)))
