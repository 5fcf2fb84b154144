"""Built-in algorithms, installed as `flegel.algorithms`. Each is found by name and imported when asked for."""

from __future__ import annotations

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
