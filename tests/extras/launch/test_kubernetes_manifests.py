"""Manifests and chart for Kubernetes against the real schemas."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flegel.cluster.launch.k8s import PodOptions, secret
from flegel.cluster.launch.kubernetes_api import from_kubeconfig
from flegel.cluster.launch.processes.ticket import SlaveTicket
from flegel.errors import UsageError
from flegel.runtime.transport.curve import new_key_pair
from tests import needs

yaml = needs.library("yaml")
validate = needs.library("kubernetes_validate")

PACKAGING = Path(__file__).resolve().parents[3] / "packaging"
MANIFESTS = PACKAGING / "kubernetes" / "flegel.yaml"
CHART = PACKAGING / "helm" / "flegel"
VERSION = "1.30"


def rendered() -> str:
    """The chart with its own values. It uses values, the release's name and `add` only, which this replaces: `helm`
    is not there for every processor."""
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


def helm(*words: str) -> str:
    done = subprocess.run([needs.path_of("helm"), *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs.programs("helm")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="PyPI has helm for x86-64 alone")
def test_helm_finds_nothing_wrong_and_renders_the_manifests() -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm("lint", str(CHART))
    made = [each for each in yaml.safe_load_all(helm("template", "flegel", str(CHART))) if each]

    def named(each: Any) -> tuple[str, str]:
        return each["kind"], each["metadata"]["name"]

    assert sorted(made, key=named) == sorted(yaml.safe_load_all(MANIFESTS.read_text()), key=named)
    more = helm("template", "flegel", str(CHART), "--set", "slaves=8", "--set", "slots=4")
    (slaves,) = (each for each in yaml.safe_load_all(more) if named(each) == ("StatefulSet", "flegel-slave"))
    assert slaves["spec"]["replicas"] == 8
    words = slaves["spec"]["template"]["spec"]["containers"][0]["args"]
    assert words[words.index("--slots") + 1] == "4"


@pytest.mark.parametrize("text", [MANIFESTS.read_text(), rendered()], ids=["manifests", "chart"])
def test_every_object_fits_the_schema_of_kubernetes(text: str) -> None:
    objects = list(yaml.safe_load_all(text))
    assert [each["kind"] for each in objects].count("StatefulSet") == 2
    for each in objects:
        validate.validate(each, VERSION, strict=True)


def test_the_rights_of_a_launcher_fit_the_schema_of_kubernetes() -> None:
    objects = list(yaml.safe_load_all((PACKAGING / "kubernetes" / "launcher.yaml").read_text()))
    assert [each["kind"] for each in objects] == ["ServiceAccount", "Role", "RoleBinding"]
    for each in objects:
        validate.validate(each, VERSION, strict=True)


def test_pods_of_a_launch_fit_the_schema_of_kubernetes() -> None:
    pair = new_key_pair()
    ticket = SlaveTicket("k8s-0", "abcd", "tcp://h:1", pair.public, pair)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "driver", "uid": "u"}
    options = PodOptions("flegel:1", cpus=1.5, memory=2**30, gpus=1, account="a", node_selector={"n": "1"}, owner=owner)
    pod = options.pod(ticket)
    validate.validate(pod, VERSION, strict=True)
    pod["metadata"]["uid"] = "u"
    validate.validate(secret(ticket, pod), VERSION, strict=True)
    wrong = options.pod(ticket)
    wrong["spec"]["terminationGracePeriodSeconds"] = "long"
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, VERSION, strict=True)


def test_a_kubeconfig_is_read_and_login_programs_are_refused(tmp_path: Path) -> None:
    config = {
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
        "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }  # fmt: skip
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    api = from_kubeconfig(tmp_path / "config")
    assert (api.server, api.namespace) == ("http://127.0.0.1:1", "n")
    (tmp_path / "config").write_text(yaml.safe_dump({**config, "users": [{"name": "u", "user": {"exec": {}}}]}))
    with pytest.raises(UsageError, match="logs in by a program"):
        from_kubeconfig(tmp_path / "config")
    (tmp_path / "config").write_text("current-context: none")
    with pytest.raises(UsageError, match="no kubeconfig with a current context"):
        from_kubeconfig(tmp_path / "config")


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
