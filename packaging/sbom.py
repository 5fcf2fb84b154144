"""A bill of materials in the CycloneDX format: what is installed beside Flegel in this environment. Downloads nothing.

python packaging/sbom.py > sbom.json
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from typing import Any


def needed(name: str, found: dict[str, importlib.metadata.Distribution]) -> None:
    """This distribution and all that it requires, as far as they are installed; extras are left out."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in found:
        return
    try:
        found[key] = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return
    for requirement in found[key].requires or ():
        if "extra ==" not in requirement:
            needed(re.split(r"[ ;<>=!~\[(]", requirement, maxsplit=1)[0], found)


def component(distribution: importlib.metadata.Distribution) -> dict[str, Any]:
    """One entry of the list."""
    about = distribution.metadata
    name, version = about["Name"], distribution.version
    licence = about.get("License-Expression") or (about.get("License") or "").strip().splitlines()[:1]
    entry: dict[str, Any] = {
        "type": "library", "name": name, "version": version,
        "purl": f"pkg:pypi/{name.lower()}@{version}", "bom-ref": f"pkg:pypi/{name.lower()}@{version}",
    }  # fmt: skip
    if licence:
        entry["licenses"] = [{"license": {"name": licence if isinstance(licence, str) else licence[0]}}]
    return entry


def bill() -> dict[str, Any]:
    """The whole document."""
    found: dict[str, importlib.metadata.Distribution] = {}
    needed("flegel", found)
    own = component(found.pop("flegel"))
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {**own, "type": "application"}},
        "components": [component(each) for _, each in sorted(found.items())],
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(bill(), indent=1))
