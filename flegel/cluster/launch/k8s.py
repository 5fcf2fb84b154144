"""Slaves as pods of Kubernetes, one each, its ticket in a Secret that only its pod mounts. Needs no kubectl, no helm.

`flegel.k8s.Cluster(slaves=4, image="registry/flegel:1")`, in a pod of the cluster or wherever pods reach this host
(`host=`). An evicted or deleted pod gets SIGTERM and its slave drains; what dies without it is one lost worker, and
another pod is asked for. The pods and secrets of a launch carry its label and are removed at its end. Where this
process runs in a pod, they belong to it, so that Kubernetes removes them also when this process is killed.
"""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flegel.cluster.launch.kubernetes_api import ApiError, KubernetesApi, find_api
from flegel.cluster.launch.launched_cluster import LaunchedCluster
from flegel.cluster.launch.processes import ticket as tickets
from flegel.cluster.launch.processes.placer import SLAVE_END_SECONDS, outward_address
from flegel.cluster.launch.processes.ticket import SlaveTicket
from flegel.errors import UsageError
from flegel.runtime import clock

LAUNCH_LABEL = "flegel-launch"
"""Label of the pods and secrets of a launch; its value is the name of the launch."""
TICKET_MOUNT = "/var/run/flegel/ticket"
"""Folder of a pod where its secret is mounted."""
KILL_DELAY_SECONDS = 15
"""Added to the time that a slave has to drain; then Kubernetes kills its pod. A slave needs some for its last files."""
REASONS_NEVER_TO_START = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName")
"""Reasons of a waiting container with which it will not start, however long the launch waits."""


class PodOptions(NamedTuple):
    """What each pod asks for."""

    image: str
    cpus: float = 1
    memory: int | None = None
    gpus: int = 0
    account: str = ""
    """Service account; the namespace's default where empty. The slave itself gets no token."""
    node_selector: Mapping[str, str] = {}
    owner: Mapping[str, Any] | None = None
    """The object that the pods belong to."""

    def pod(self, ticket: SlaveTicket) -> dict[str, Any]:
        """The manifest of a slave's pod; it names the Secret of the ticket, and holds nothing of it."""
        name = pod_name(ticket.launch, ticket.name)
        asked: dict[str, Any] = {"cpu": f"{self.cpus:g}"} | ({"memory": str(self.memory)} if self.memory else {})
        limits = asked | ({"nvidia.com/gpu": str(self.gpus)} if self.gpus else {})
        container = {
            "name": "slave",
            "image": self.image,
            "resources": {"requests": asked, "limits": limits},
            "command": ["python", "-m", "flegel.cluster.launch.processes.slave_process", f"{TICKET_MOUNT}/ticket"],
            "volumeMounts": [
                {"name": "ticket", "mountPath": TICKET_MOUNT, "readOnly": True},
                {"name": "scratch", "mountPath": "/tmp"},
            ],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        spec: dict[str, Any] = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": int(ticket.drain) + KILL_DELAY_SECONDS,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "fsGroup": 10001},
            "containers": [container],
            "volumes": [
                {"name": "ticket", "secret": {"secretName": name, "defaultMode": 0o440}},
                {"name": "scratch", "emptyDir": {}},
            ],
        }
        if self.account:
            spec["serviceAccountName"] = self.account
        if self.node_selector:
            spec["nodeSelector"] = dict(self.node_selector)
        metadata: dict[str, Any] = {"name": name, "labels": {"app": "flegel", LAUNCH_LABEL: ticket.launch}}
        if self.owner is not None:
            metadata["ownerReferences"] = [dict(self.owner)]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def secret(ticket: SlaveTicket, pod: Mapping[str, Any]) -> dict[str, Any]:
    """The ticket; it belongs to the pod and is removed with it."""
    metadata = {
        "name": pod_name(ticket.launch, ticket.name),
        "labels": {"app": "flegel", LAUNCH_LABEL: ticket.launch},
        "ownerReferences": [reference(pod)],
    }
    content = base64.b64encode(tickets.encode(ticket)).decode()
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"ticket": content}, "immutable": True}


def reference(pod: Mapping[str, Any]) -> dict[str, Any]:
    """A pod as the owner of others."""
    about = pod["metadata"]
    return {"apiVersion": "v1", "kind": "Pod", "name": about["name"], "uid": about["uid"]}


def pod_name(launch: str, slave: str) -> str:
    return f"flegel-{launch}-{slave}"


def ending(pod: Mapping[str, Any]) -> str:
    """How a pod has ended, or why it never will start; empty while it runs or waits."""
    status = pod.get("status", {})
    states = [each.get("state", {}) for each in status.get("containerStatuses", [])]
    if status.get("phase") in ("Failed", "Succeeded"):
        codes = [str(state["terminated"].get("exitCode")) for state in states if "terminated" in state]
        why = status.get("reason") or status.get("message") or f"exit code {', '.join(codes) or 'unknown'}"
        return f"was ended by Kubernetes ({why})" if status["phase"] == "Failed" else "ended"
    stuck = [state["waiting"] for state in states if state.get("waiting", {}).get("reason") in REASONS_NEVER_TO_START]
    return f"cannot start: {stuck[0].get('message') or stuck[0]['reason']}" if stuck else ""


class KubernetesPlacer:
    """One pod for each slave."""

    system = "k8s"

    def __init__(self, options: PodOptions, namespace: str = "", kubeconfig: str = "") -> None:
        self._options, self._namespace, self._kubeconfig = options, namespace, kubeconfig
        self._pods: dict[str, str] = {}
        self._launch = ""
        self.api: KubernetesApi | None = None

    def address(self) -> str:
        return outward_address()

    def open(self, folder: Path) -> None:
        """Connect to the API server, and, where this process runs in a pod, make that pod the owner of all others."""
        self.api = self.api or find_api(self._namespace, self._kubeconfig)
        self.api.list("pods", {LAUNCH_LABEL: "none"})  # says at once where rights are missing
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            try:
                owner = reference(self.api.get("pods", socket.gethostname()))
                self._options = self._options._replace(owner=owner)
            except ApiError as error:
                if error.status not in (403, 404):
                    raise

    def place(self, ticket: SlaveTicket) -> None:
        """The pod first, which waits for its Secret, so that the Secret can belong to it."""
        assert self.api is not None
        self._launch = ticket.launch
        self._pods[ticket.name] = pod_name(ticket.launch, ticket.name)
        pod = self.api.create("pods", self._options.pod(ticket))
        self.api.create("secrets", secret(ticket, pod))

    def ended(self) -> dict[str, str]:
        """Pods that have ended, were deleted or cannot start. No answer of the API server means nothing about them:
        empty."""
        assert self.api is not None
        if not self._pods:
            return {}
        try:
            known = {pod["metadata"]["name"]: pod for pod in self.api.list("pods", {LAUNCH_LABEL: self._launch})}
            found = {}
            for name, pod in list(self._pods.items()):
                why = ending(known[pod]) if pod in known else "was evicted or deleted"
                if why:
                    self._delete(pod, 0)
                    del self._pods[name]
                    found[name] = why
            return found
        except ApiError as error:
            if error.status in (0, 429) or error.status >= 500:
                return {}
            raise

    def remove(self, names: Sequence[str]) -> None:
        """Delete these pods: SIGTERM lets a slave drain, within the grace period that its manifest sets."""
        assert self.api is not None
        for name in names:
            if name in self._pods:
                self.api.delete("pods", self._pods[name])

    def _delete(self, pod: str, grace: int) -> None:
        assert self.api is not None
        self.api.delete("pods", pod, grace)
        self.api.delete("secrets", pod)

    def close(self) -> None:
        """Delete all pods and secrets with the label of this launch, and wait until the pods have gone."""
        if self.api is None or not self._launch:
            return
        labels = {LAUNCH_LABEL: self._launch}
        names = {each["metadata"]["name"] for kind in ("pods", "secrets") for each in self.api.list(kind, labels)}
        for name in names:
            self._delete(name, 1)
        until = clock.now() + SLAVE_END_SECONDS
        while self.api.list("pods", labels) and clock.now() < until:
            clock.sleep(0.2)
        self._pods = {}


class KubernetesCluster(LaunchedCluster):
    """`with flegel.k8s.Cluster(slaves=4, image="registry/flegel:1") as cluster: …`."""

    def __init__(
        self,
        slaves: int,
        *,
        image: str,
        namespace: str = "",
        kubeconfig: str = "",
        cpus: float | None = None,
        gpus: int = 0,
        account: str = "",
        node_selector: Mapping[str, str] | None = None,
        slots: int = 1,
        memory: int | None = None,
        api: KubernetesApi | None = None,
        **launch: Any,
    ) -> None:
        """`slaves` pods, each a slave with `slots`, the workers that it runs at a time. `image` has Flegel in it
        (packaging/Dockerfile); `cpus` of a pod are one for each slot by default. `memory` is the limit of each process
        in bytes; a pod gets so much for every slot, and once more for a coordinator that may run on its slave."""
        if not image:
            raise UsageError("Say which image the pods run, such as --image registry/flegel:1 (packaging/Dockerfile).")
        whole = None if memory is None else memory * (slots + 1)
        options = PodOptions(
            image, slots if cpus is None else cpus, whole, gpus, account, dict(node_selector or {}), None
        )
        placer = KubernetesPlacer(options, namespace, kubeconfig)
        placer.api = api
        super().__init__(placer, slaves, slots=slots, memory=memory, **launch)


Cluster = KubernetesCluster
