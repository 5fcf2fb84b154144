"""What `make release` reads from the project: version, notes and pages. It builds nothing here."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import flegel
from tests import needs, typed_pages

ROOT = Path(__file__).resolve().parents[1]


def program(name: str) -> ModuleType:
    """A program of the folder `packaging`, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "packaging" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def release() -> ModuleType:
    return program("release")


def test_the_version_is_the_one_of_the_package(release: ModuleType) -> None:
    text = (ROOT / "flegel" / "__init__.py").read_text(encoding="utf-8")
    assert release.version_of(text) == flegel.__version__
    with pytest.raises(SystemExit, match="no __version__"):
        release.version_of("version = 1")


def test_notes_are_the_section_of_that_version_alone(release: ModuleType) -> None:
    changelog = "# Changelog\n\n## 0.2.0 (2030-01-01)\n\n- New.\n\n## 0.1.0\n\n- Old.\n"
    assert release.notes_of(changelog, "0.2.0") == "- New.\n"
    assert release.notes_of(changelog, "0.1.0") == "- Old.\n"
    for version in ("0.3.0", "0.2"):
        with pytest.raises(SystemExit, match="has no section"):
            release.notes_of(changelog, version)


def test_a_step_is_tried_again_only_after_what_it_may_fail_with(
    release: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = ["sh", "-c", "ls made || { mkdir made; echo too slow >&2; exit 1; }"]
    release.step("one", second, tmp_path, "too slow")
    assert capsys.readouterr().out == "one\none, once more: too slow\n"
    with pytest.raises(SystemExit, match="No release: two failed"):
        release.step("two", ["sh", "-c", "echo other >&2; exit 1"], tmp_path, "too slow")
    with pytest.raises(SystemExit, match="No release: three, once more: too slow failed"):
        release.step("three", ["sh", "-c", "echo too slow >&2; exit 1"], tmp_path, "too slow")


@needs.programs("ssh-keygen")
def test_bill_and_checksums_are_signed_so_that_a_change_shows(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key, bill, sums = (tmp_path / name for name in ("key", "bill.json", "SHA256SUMS"))
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    bill.write_text("{}"), sums.write_text("ab  wheel\n")
    monkeypatch.setenv("FLEGEL_SIGNING_KEY", str(key))
    release.sign(sums, bill)
    (tmp_path / "signers").write_text(f"maintainers {key.with_suffix('.pub').read_text()}")

    def verified(path: Path) -> bool:
        words = re.search(r"^    (ssh-keygen -Y verify .*)$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
        assert words is not None
        command = words[1].replace("SHA256SUMS", path.name)
        return subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True).returncode == 0

    assert verified(sums) and verified(bill)
    bill.write_text("{} ")
    assert verified(sums) and not verified(bill)
    monkeypatch.setenv("FLEGEL_SIGNING_KEY", str(tmp_path / "absent"))
    with pytest.raises(SystemExit, match="No release: signing SHA256SUMS failed"):
        release.sign(sums)
    monkeypatch.delenv("FLEGEL_SIGNING_KEY")
    capsys.readouterr()
    release.sign(sums)
    assert capsys.readouterr().out == "not signed: FLEGEL_SIGNING_KEY names no key\n"


def test_a_version_without_a_day_is_a_trial(release: ModuleType) -> None:
    assert release.is_dated("## 0.2.0 (2030-01-01)\n", "0.2.0")
    assert not release.is_dated("## 0.2.0 (unreleased)\n\n## 0.1.0 (2030-01-01)\n", "0.2.0")


def test_the_supported_version_is_this_one() -> None:
    minor = flegel.__version__.rpartition(".")[0]
    assert f"| the newest release ({minor}) |" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_the_changelog_has_notes_of_this_version(release: ModuleType) -> None:
    assert release.notes_of((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flegel.__version__)


def test_what_is_typed_from_the_wheel_is_readme_and_all_tutorials() -> None:
    pages = typed_pages.pages_of_a_release()
    assert pages[0].name == "README.md" and len(pages) == 8
    text = "\n".join(block.text for page in pages for block in typed_pages.typed(page, large=True))
    assert "flegel.run(" in text and "flegel submit" in text and "pip install" not in text


def test_a_step_that_fails_ends_the_release_with_its_name(release: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="told why\n\nNo release: this step failed"):
        release.step("this step", ["sh", "-c", "echo told why; exit 3"], tmp_path)


def test_the_conda_recipe_names_what_pyproject_names(release: ModuleType) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = pyproject["project"]
    recipe = yaml.safe_load(release.conda_recipe(pyproject, "0.2.0", "ab" * 32))
    built_with = [need.replace(" ", "") for need in recipe["requirements"]["host"]]
    assert built_with[2:] == pyproject["build-system"]["requires"]
    needed = {need.split()[0] for need in recipe["requirements"]["run"]}
    assert {"python", "numpy", "msgpack-python", "pyzmq"} <= needed and "msgpack" not in needed
    assert len(needed) == len(project["dependencies"]) + 1
    assert "numba >=0.60" in recipe["requirements"]["run"]
    assert recipe["build"]["python"]["entry_points"] == ["flegel = flegel.__main__:main"]
    assert recipe["source"]["url"].endswith("/flegel-0.2.0.tar.gz") and recipe["source"]["sha256"] == "ab" * 32


def test_a_wheel_is_the_committed_files_of_the_package_and_nothing_else(release: ModuleType, tmp_path: Path) -> None:
    wheel = tmp_path / "flegel-0.2.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for name in ("flegel/a.py", "flegel/algorithms/b.py", "flegel-0.2.0.dist-info/RECORD"):
            file.writestr(name, "")
    committed = ["flegel/a.py", "algorithms/b.py", "tests/test_a.py", "README.md"]
    assert release.differences(wheel, committed) == []
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr("flegel/__pycache__/a.cpython-311.pyc", "")
    found = release.differences(wheel, [*committed, "datasets/c.json"])
    assert found == ["without flegel/datasets/c.json", "with flegel/__pycache__/a.cpython-311.pyc"]


def test_an_image_that_cannot_be_built_is_refused_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image = program("image")
    monkeypatch.setattr(image.shutil, "which", lambda name: None if name == "umoci" else f"/usr/bin/{name}")
    assert image.main() == 2 and "umoci: not found; `apt-get install" in capsys.readouterr().err
    monkeypatch.setattr(image.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(image.os, "geteuid", lambda: 1000)
    assert image.main() == 2 and "`sudo make image`" in capsys.readouterr().err


def test_a_dead_link_of_the_site_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">1</a> <a href="b.html#gone">2</a> <a href="c.html">3</a> <a href="https://x.org/">4</a>'
    )
    (tmp_path / "b.html").write_text('<p id="here"><a href="#here">1</a>')
    assert program("site_links").dead_links(tmp_path) == ["a.html: b.html#gone", "a.html: c.html"]


def test_image_and_dockerfile_have_the_same_settings() -> None:
    image, dockerfile = program("image"), (ROOT / "packaging" / "Dockerfile").read_text(encoding="utf-8")
    for name in ("FLEGEL_CACHE", "FLEGEL_HOME"):
        assert f"{name}={image.ENVIRONMENT[name]}" in dockerfile
    assert image.version() == flegel.__version__
