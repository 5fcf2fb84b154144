"""
A recommender
=============

Who listened to what is known, who likes what is not. ``ImplicitALS`` finds factors of listeners and artists from counts
of plays: a played artist is wanted, the more often the surer; one that was never played is not wanted, but hardly sure.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.sparse import csr_matrix

from flegel.sklearn import ImplicitALS

# %%
# Drawn plays of 2,000 listeners and 300 artists: everybody has a taste for some of six styles, and artists are of
# different popularity. Most entries are zero, so the table is sparse.

rng = np.random.default_rng(0)
taste, style = rng.dirichlet(np.full(6, 0.2), size=2000), rng.dirichlet(np.full(6, 0.1), size=300)
popularity = rng.lognormal(sigma=0.7, size=300)
plays = rng.poisson(0.4 * (taste @ style.T) * popularity)
plays = plays[(plays > 0).sum(axis=1) >= 5]

# %%
# One artist of each listener is hidden from the training; a good recommender names it.

listeners = np.arange(len(plays))
hidden = np.array([rng.choice(np.flatnonzero(row)) for row in plays])
known = plays.copy()
known[listeners, hidden] = 0
known = csr_matrix(known, dtype=np.float32)
model = ImplicitALS(n_components=8, alpha=10.0, random_state=0).fit(known)
items, _ = model.recommend(known, 50)
print(f"the first listener played {np.flatnonzero(plays[0])}")
print(f"recommended: {items[0, :5]}; hidden was {hidden[0]}")

# %%
# How often is the hidden artist among the first n? Beside it: the artists that most listeners played, the same list for
# everybody, without those that the listener has.

counts = np.tile(np.asarray((known > 0).sum(axis=0)).ravel().astype(float), (len(plays), 1))
counts[known.nonzero()] = -np.inf
popular = np.argsort(-counts, axis=1, kind="stable")[:, :50]
hits = {"ImplicitALS": items == hidden[:, None], "most popular": popular == hidden[:, None]}
for name, hit in hits.items():
    print(f"{name}: {hit[:, :10].any(axis=1).mean():.0%} of the hidden artists among the first ten")

# %%

figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
for name, hit in hits.items():
    axes.plot(np.arange(1, 51), np.cumsum(hit.mean(axis=0)), label=name)
axes.set(xlabel="artists that are recommended", ylabel="share of listeners", title="The hidden artist is among them")
axes.legend()
plt.show()
