"""Built-in algorithms, installed as `flegel.algorithms`. Each is found by name and imported when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flegel.algorithms.fcm.fcm import FCM as FCM
    from flegel.algorithms.gmm.gmm import GMM as GMM
    from flegel.algorithms.kmeans.kmeans import KMeans as KMeans
    from flegel.algorithms.lr.lr import LR as LR
    from flegel.algorithms.nmf.kullback import KLNMF as KLNMF
    from flegel.algorithms.nmf.nmf import NMF as NMF

BUILTINS = {
    "kmeans": "flegel.algorithms.kmeans.kmeans:KMeans",
    "gmm": "flegel.algorithms.gmm.gmm:GMM",
    "fcm": "flegel.algorithms.fcm.fcm:FCM",
    "lr": "flegel.algorithms.lr.lr:LR",
    "nmf": "flegel.algorithms.nmf.nmf:NMF",
    "klnmf": "flegel.algorithms.nmf.kullback:KLNMF",
    "cnn": "flegel.torch.builtin:CNN",
    "lenet": "flegel.torch.builtin:LeNet",
    "vgg11": "flegel.torch.builtin:VGG11",
    "mlp": "flegel.torch.builtin:MLP",
}
"""Name on the command line to module and class. A new algorithm is a file and a line here. The last four are networks,
which need the extra `torch`."""


def __getattr__(name: str) -> Any:
    """`from flegel.algorithms import KMeans`: a class by its name, imported when it is asked for."""
    import importlib

    for place in BUILTINS.values():
        module, _, found = place.partition(":")
        if found == name:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
