"""
Anomaly scores by a mixture of Gaussians
========================================

A machine has several ways of normal operation, and readings that fit none of them are worth a look.
``GaussianMixture`` learns where readings usually are; the logarithm of its density is the score of a new one.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import roc_auc_score

from flegel.sklearn import GaussianMixture

# %%
# Drawn readings of load and temperature: idle, at work, and at full load. One new reading of a hundred is drawn evenly
# over the whole range, so that a few of these lie where normal ones do, and nobody could tell them.

rng = np.random.default_rng(0)
MEANS = np.array([[5.0, 30.0], [45.0, 55.0], [90.0, 80.0]])
SPREADS = np.array([[[2, 0], [0, 2]], [[64, 30], [30, 20]], [[9, -3], [-3, 9]]], dtype=float)


def normal(rows: int) -> np.ndarray:
    return np.vstack([rng.multivariate_normal(*of, rows // 3) for of in zip(MEANS, SPREADS, strict=True)])


training = normal(6000)
unusual = np.column_stack([rng.uniform(0, 100, 40), rng.uniform(25, 90, 40)])
new = np.vstack([normal(3960), unusual])
is_unusual = np.arange(len(new)) >= 3960

# %%
# The number of components is the one with the lowest Bayesian information criterion.

models = [GaussianMixture(k, covariance_type="full", random_state=0).fit(training) for k in range(1, 6)]
criteria = [model.bic(training) for model in models]
model = models[int(np.argmin(criteria))]
print("BIC by components:", " ".join(f"{k}: {value:.0f}" for k, value in enumerate(criteria, 1)))

# %%
# The threshold is a quantile of the scores of the training: about 0.2 % of normal readings are below it, too.

scores = model.score_samples(new)
threshold = np.quantile(model.score_samples(training), 0.002)
flagged = scores < threshold
print(f"flagged: {flagged[is_unusual].mean():.0%} of unusual, {flagged[~is_unusual].mean():.2%} of normal readings")
print(f"area under the ROC curve: {roc_auc_score(is_unusual, -scores):.3f}")

# %%

figure, axes = plt.subplots(figsize=(6, 4.5), layout="constrained")
points = axes.scatter(*new.T, c=np.maximum(scores, threshold - 10), s=5)
axes.scatter(*new[flagged].T, s=50, facecolors="none", edgecolors="red", label="flagged")
axes.set(xlabel="load in %", ylabel="temperature in °C")
axes.legend()
figure.colorbar(points, label="log density")
plt.show()
