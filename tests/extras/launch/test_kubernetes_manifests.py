"""Manifests and chart for Kubernetes against the real schemas."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")

PACKAGING = Path(__file__).resolve().parents[3] / "packaging"
MANIFESTS = PACKAGING / "kubernetes" / "flegel.yaml"
CHART = PACKAGING / "helm" / "flegel"
VERSION = "1.30"


def rendered() -> str:
    """The chart with its own values. It uses values, the release's name and `add` only, which this replaces; `helm`
    itself is not needed."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def value(match: re.Match[str]) -> str:
        words = match[1].split()
        if words == [".Release.Name"]:
            return "flegel"
        found = [_look_up(values, word) for word in words if word.startswith(".Values.")]
        return str(int(found[0]) + int(words[2])) if words[0] == "add" else str(found[0])

    return re.sub(r"\{\{ (.*?) \}\}", value, (CHART / "templates" / "cluster.yaml").read_text())


def _look_up(values: Any, word: str) -> Any:
    for name in word.split(".")[2:]:
        values = values[name]
    return values


@pytest.mark.parametrize("text", [MANIFESTS.read_text(), rendered()], ids=["manifests", "chart"])
def test_every_object_fits_the_schema_of_kubernetes(text: str) -> None:
    objects = list(yaml.safe_load_all(text))
    assert [each["kind"] for each in objects].count("StatefulSet") == 2
    for each in objects:
        validate.validate(each, VERSION, strict=True)


def test_the_chart_with_its_own_values_is_the_manifests() -> None:
    assert list(yaml.safe_load_all(rendered())) == list(yaml.safe_load_all(MANIFESTS.read_text()))


def test_an_evicted_slave_has_time_to_drain() -> None:
    """Kubernetes sends SIGTERM, which drains a slave, and SIGKILL after the grace period."""
    slaves = next(
        o
        for o in yaml.safe_load_all(MANIFESTS.read_text())
        if o["metadata"]["name"] == "flegel-slave" and o["kind"] == "StatefulSet"
    )
    pod = slaves["spec"]["template"]["spec"]
    words = pod["containers"][0]["args"]
    assert pod["terminationGracePeriodSeconds"] > int(words[words.index("--drain") + 1])


def test_a_schema_that_is_not_met_is_noticed() -> None:
    wrong = next(yaml.safe_load_all(MANIFESTS.read_text()))
    wrong["spec"]["ports"][0]["port"] = "seven"
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, VERSION, strict=True)
