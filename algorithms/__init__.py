"""Built-in algorithms, installed as `flegel.algorithms`. Each is found by name and imported when asked for."""

from __future__ import annotations

BUILTINS = {
    "kmeans": "flegel.algorithms.kmeans.kmeans:KMeans",
    "gmm": "flegel.algorithms.gmm.gmm:GMM",
    "fcm": "flegel.algorithms.fcm.fcm:FCM",
    "lr": "flegel.algorithms.lr.lr:LR",
    "nmf": "flegel.algorithms.nmf.nmf:NMF",
    "klnmf": "flegel.algorithms.nmf.kullback:KLNMF",
}
"""Name on the command line to module and class. A new algorithm is a file and a line here."""
