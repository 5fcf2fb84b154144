"""
Counts by Poisson regression
============================

How many bicycles are rented in an hour? Counts are whole, never negative, and scatter more where they are large:
``PoissonRegressor`` models the logarithm of their mean. Stations were observed for different times; an offset says so.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import d2_tweedie_score

from flegel.sklearn import LinearRegression, PoissonRegressor

# %%
# Drawn rentals: warm and dry hours have more of them. The weights that made them are known, so the fit can be checked.

rng = np.random.default_rng(0)
ROWS = 20_000
temperature = rng.normal(15, 8, size=ROWS)
rain = rng.exponential(1.0, size=ROWS) * (rng.random(ROWS) < 0.3)
weekend = (rng.random(ROWS) < 2 / 7).astype(float)
hours = rng.uniform(0.5, 4.0, size=ROWS)
X = np.column_stack([(temperature - 15) / 8, rain, weekend])
TRUE = np.array([0.5, -0.6, 0.25])
rentals = rng.poisson(hours * np.exp(1.0 + X @ TRUE))

# %%
# The offset, the logarithm of the hours, has the weight 1: twice the time, twice the rentals.

train, test = slice(0, 15_000), slice(15_000, None)
model = PoissonRegressor(alpha=0.0).fit(X[train], rentals[train], offset=np.log(hours[train]))
for name, weight, true in zip(["temperature", "rain", "weekend"], model.coef_, TRUE, strict=True):
    print(f"{name:>12}: weight {weight:+.3f} (drawn with {true:+.3f}), rentals × {np.exp(weight):.2f}")

# %%
# New hours: the share of the deviance that is explained, beside least squares. Least squares may predict counts below
# zero, which have no Poisson deviance: they are raised to 0.01.

expected = hours[test] * model.predict(X[test])
line = LinearRegression().fit(np.column_stack([X, hours])[train], rentals[train])
straight = np.maximum(line.predict(np.column_stack([X, hours])[test]), 0.01)
for name, predicted in (("Poisson", expected), ("least squares", straight)):
    print(f"{name}: {d2_tweedie_score(rentals[test], predicted, power=1):.1%} of the deviance explained")

# %%
# Hours in twenty groups by what is expected: where the points are on the line, predictions are right on average.

figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
for name, predicted in (("Poisson", expected), ("least squares", straight)):
    groups = np.array_split(np.argsort(predicted), 20)
    axes.plot([predicted[g].mean() for g in groups], [rentals[test][g].mean() for g in groups], "o", label=name)
axes.axline((1, 1), slope=1, color="grey")
axes.set(xlabel="expected rentals", ylabel="mean of rentals", xscale="log", yscale="log")
axes.legend()
plt.show()
