"""
Embeddings to topics
====================

Embeddings of texts are compared by their angle, not by their distance. ``KMeans(metric="cosine")`` is k-means for that:
the length of a row does not matter, and no normalized copy of the table is made.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import adjusted_rand_score

from flegel.sklearn import PCA, KMeans

# %%
# Drawn embeddings with 64 columns: texts of one topic have about the same direction. Lengths differ much, as those of
# embeddings that are sums over the words of a text.

rng = np.random.default_rng(0)
NAMES = ["sports", "politics", "science", "music", "travel"]
directions = rng.normal(size=(len(NAMES), 64))
topic = rng.integers(len(NAMES), size=5000)
lengths = rng.lognormal(sigma=1.0, size=(5000, 1))
embeddings = (lengths * (directions[topic] + 1.5 * rng.normal(size=(5000, 64)))).astype(np.float32)

# %%
# By angle the topics are found; by distance the long rows get clusters of their own. The adjusted Rand index is 1 where
# clusters and topics agree, and about 0 by chance.

found = {}
for metric in ("cosine", "euclidean"):
    found[metric] = KMeans(n_clusters=len(NAMES), metric=metric, n_init=3, random_state=0).fit(embeddings)
    print(f"{metric}: adjusted Rand index {adjusted_rand_score(topic, found[metric].labels_):.2f}")

# %%
# Texts that are nearest to the centre of a cluster say what it is about; here the topic that most of them have.

away = found["cosine"].transform(embeddings)
for cluster, nearest in enumerate(np.argsort(away, axis=0)[:20].T):
    name = NAMES[np.bincount(topic[nearest]).argmax()]
    print(f"cluster {cluster}: {name}, {np.sum(found['cosine'].labels_ == cluster)} texts")

# %%
# The first two principal components of the directions, coloured by cluster.

units = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
flat = PCA(n_components=2).fit_transform(units)
figure, panels = plt.subplots(1, 2, figsize=(9, 4), sharex=True, sharey=True, layout="constrained")
for panel, (metric, model) in zip(panels, found.items(), strict=True):
    panel.scatter(*flat.T, c=model.labels_, s=4, cmap="tab10")
    panel.set(title=metric, xlabel="first component")
panels[0].set_ylabel("second component")
plt.show()
