"""A client of the Kubernetes API for pods and secrets of one namespace, made of the standard library. Decides nothing.

Credentials are those of the pod that this process runs in, or those of a kubeconfig file. No error shows
a secret.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from flegel.errors import FlegelError, UsageError, in_words

SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds the credentials of its service account."""
REQUEST_TIMEOUT_SECONDS = 20.0
"""Of one request; API servers answer within a second, during an upgrade of the cluster within some."""


class ApiError(FlegelError):
    """The API server refused a request; `status` is that of HTTP, 0 where there was no answer."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class KubernetesApi:
    """Requests to one API server, in one namespace."""

    def __init__(self, server: str, namespace: str, token: Path | str = "", tls: ssl.SSLContext | None = None) -> None:
        """`token` is a file that is read again for each request, because Kubernetes renews it, or the token itself."""
        self.server, self.namespace = server.rstrip("/"), namespace
        self._token, self._tls = token, tls

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return self._ask("GET", f"{kind}/{name}")

    def list(self, kind: str, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("GET", f"{kind}?{_selector(labels)}").get("items", [])
        return found

    def create(self, kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
        return self._ask("POST", kind, content)

    def delete(self, kind: str, name: str, grace: int | None = None) -> None:
        """Delete an object; one that does not exist any more is no error."""
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        body |= {} if grace is None else {"gracePeriodSeconds": grace}
        try:
            self._ask("DELETE", f"{kind}/{name}", body)
        except ApiError as error:
            if error.status != 404:
                raise

    def _ask(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One request; the decoded answer. Raises `ApiError`, which never contains the token or what was sent."""
        url = f"{self.server}/api/v1/namespaces/{self.namespace}/{path}"
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        token = self._token.read_text().strip() if isinstance(self._token, Path) else self._token
        if token:
            headers["Authorization"] = f"Bearer {token}"
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_SECONDS, context=self._tls) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            text = _message(error)
            raise ApiError(f"Kubernetes refused to {method} {path.partition('?')[0]}: {text}", error.code) from None
        except (OSError, ValueError) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            reason = in_words(cause) if isinstance(cause, BaseException) else cause
            raise ApiError(f"The Kubernetes API at {self.server} did not answer: {reason}") from None


def _message(error: urllib.error.HTTPError) -> str:
    with contextlib.suppress(ValueError, OSError):
        return str(json.load(error).get("message") or error.reason)
    return f"{error.code} {error.reason}"


def _selector(labels: Mapping[str, str]) -> str:
    return urlencode({"labelSelector": ",".join(f"{name}={value}" for name, value in labels.items())})


def find_api(namespace: str = "", kubeconfig: str = "") -> KubernetesApi:
    """The Kubernetes API of the pod around this process, or of the kubeconfig file that is given or that `KUBECONFIG`
    names."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if host and not kubeconfig and (SERVICE_ACCOUNT_FOLDER / "token").exists():
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        shown = f"[{host}]" if ":" in host else host
        own = (SERVICE_ACCOUNT_FOLDER / "namespace").read_text().strip()
        tls = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT_FOLDER / "ca.crt"))
        return KubernetesApi(f"https://{shown}:{port}", namespace or own, SERVICE_ACCOUNT_FOLDER / "token", tls)
    named = kubeconfig or os.environ.get("KUBECONFIG", "").partition(os.pathsep)[0]
    return from_kubeconfig(Path(named).expanduser() if named else Path.home() / ".kube" / "config", namespace)


def from_kubeconfig(path: Path, namespace: str = "") -> KubernetesApi:
    """The API of the current context of a kubeconfig file; with a token or a client certificate, no login programs."""
    try:
        import yaml
    except ImportError:
        raise UsageError("Reading a kubeconfig needs PyYAML: pip install 'flegel[k8s]'.") from None
    if not path.is_file():
        raise UsageError(f"There is no kubeconfig {path}; run this inside a pod, or name one with --kubeconfig.")
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        context = _named(config, "contexts", config["current-context"])["context"]
        cluster = _named(config, "clusters", context["cluster"])["cluster"]
        user = _named(config, "users", context["user"])["user"]
        server = str(cluster["server"])
    except (yaml.YAMLError, KeyError, TypeError, StopIteration) as error:
        raise UsageError(f"{path} is no kubeconfig with a current context ({type(error).__name__}: {error}).") from None
    if "exec" in user or "auth-provider" in user:
        raise UsageError(f"The user of {path} logs in by a program; give one with a token or a client certificate.")
    token = Path(user["tokenFile"]) if "tokenFile" in user else str(user.get("token", ""))
    tls = _tls(cluster, user) if server.startswith("https") else None
    return KubernetesApi(server, namespace or context.get("namespace", "default"), token, tls)


def _named(config: Any, kind: str, name: str) -> Any:
    return next(each for each in config[kind] if each["name"] == name)


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    """Certificates of a kubeconfig, whose entries are files or base64; its `insecure-skip-tls-verify` is followed."""
    authority = cluster.get("certificate-authority-data")
    data = base64.b64decode(authority).decode() if authority else None
    tls = ssl.create_default_context(cafile=cluster.get("certificate-authority"), cadata=data)
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    with tempfile.TemporaryDirectory(prefix="flegel-kube-") as folder:  # ssl reads certificates from files only
        names = []
        for kind in ("client-certificate", "client-key"):
            if f"{kind}-data" in user:
                file = Path(folder) / kind
                file.touch(mode=0o600)
                file.write_bytes(base64.b64decode(user[f"{kind}-data"]))
                names.append(str(file))
            elif kind in user:
                names.append(user[kind])
        if len(names) == 2:
            tls.load_cert_chain(*names)
    return tls
