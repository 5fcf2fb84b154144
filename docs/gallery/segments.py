"""
Segments of customers
=====================

A table of customers has numbers (age, orders) and words (town, way of payment). ``KPrototypes`` clusters both together:
a number counts by its squared difference, a word by ``gamma`` where it differs. No word becomes a column of its own.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from flegel.sklearn import KPrototypes

# %%
# Three kinds of customers are drawn. Numbers are standardized, so that a year of age does not count more than an order.

rng = np.random.default_rng(0)
KINDS = [(24, 12, "city", "app"), (45, 5, "suburb", "card"), (68, 2, "village", "invoice")]
drawn = []
for age, orders, place, payment in KINDS:
    for _ in range(1000):
        usual = rng.random(2) < 0.8
        where = place if usual[0] else rng.choice(["city", "suburb", "village"])
        how = payment if usual[1] else rng.choice(["app", "card", "invoice"])
        drawn.append([max(18, rng.normal(age, 8)), rng.poisson(orders), where, how])
customers = pd.DataFrame(drawn, columns=["age", "orders", "place", "payment"])
numbers = customers[["age", "orders"]]
table = customers.astype(object)
table[["age", "orders"]] = (numbers - numbers.mean()) / numbers.std()

# %%
# The fit is told which columns are words. Each segment has a mean of each number and the most frequent word.

model = KPrototypes(n_clusters=3, categorical=[2, 3], random_state=0).fit(table.to_numpy())
customers["segment"] = model.labels_
by_segment = customers.groupby("segment")
profile = by_segment[["age", "orders"]].mean().round(1)
profile[["place", "payment"]] = by_segment[["place", "payment"]].agg(lambda words: words.mode()[0])
profile["customers"] = by_segment.size()
print(profile.to_string())

# %%
# The segments are near the kinds that were drawn: most customers of a kind are in one segment.

kind = np.repeat(np.arange(3), 1000)
together = pd.crosstab(kind, model.labels_).max(axis=1).sum() / len(kind)
print(f"{together:.0%} of the customers are in the segment of their kind")

# %%

figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
for segment, rows in by_segment:
    axes.scatter(rows["age"], rows["orders"], s=6, label=f"{profile['place'][segment]}, {profile['payment'][segment]}")
axes.set(xlabel="age", ylabel="orders in a year", title="Segments, named by their most frequent words")
axes.legend()
plt.show()
