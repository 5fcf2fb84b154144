"""Latent Dirichlet allocation: topics of documents, by variational Bayes. Never reads data or a clock."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Evaluation, Sample
from flegel.algorithms.documents import LEAST_CHANCE, digamma_each, entries, infer_topics, log_gamma_sum
from flegel.algorithms.every_point import EveryPoint
from flegel.algorithms.rows import rows_of
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint, Sparse
from flegel.declarations.accepts import Accepts
from flegel.declarations.figures import ReportedFigures
from flegel.declarations.hidden_state import HiddenState
from flegel.declarations.hyper_names import HyperNames
from flegel.declarations.learning import Learning
from flegel.declarations.placement import ParameterPlacement
from flegel.declarations.statistics import Statistics
from flegel.errors import UsageError

WHOLE_PASS = 1.0 - 1e-9  # visits since the last update, as a part of all documents: so many are all of them
DOCUMENTS_OF_A_START = 16  # that a topic begins with, at most: their words, beside those of all, make topics differ


class Topics(NamedTuple):
    """θ, a row a word: `counts`, the parameters λ of the topics' Dirichlet distributions; `words`, exp E[log β], which
    is all that workers need. `total`: the weight of all documents; `steps`: updates so far."""

    counts: Array
    words: Array
    total: Array
    steps: Array


class TopicSums(NamedTuple):
    """s. Since the last update: Σ n · exp E[log θ] / probability of the word, and the weight of the visits. Over all
    documents, each with its last visit: the bound, and the weight."""

    counts: Array
    visits: Array
    bound: Array
    seen: Array


class DocumentChange(NamedTuple):
    """What a visit of a document adds; `chances`: exp E[log θ]."""

    point: Any
    chances: Array
    words: Array
    bound: float
    seen: float
    weight: float


class LDA(EveryPoint):
    """Find k topics, distributions over words, of which documents are mixtures. Rows are counts of words.

    Model: β_k ~ Dirichlet(eta), θ_d ~ Dirichlet(alpha); a word of d is of topic k by θ_dk. A visit finds the topics of
    a document under exp E[log β] (`documents.infer_topics`), always from equal ones. State: its last bound, and 1.
    Statistics since the last update: expected counts of words in topics, S. Update: λ = eta + S where every document
    was visited, which is batch variational Bayes (`bsp`). Where the visits weigh a part p of all documents:
    λ ← (1 − ρ) λ + ρ (eta + S / p) with ρ = max(p, (offset + steps)^−decay), online variational Bayes (`bsp-mini`,
    `fsp`, …).
    Objective: minus the evidence lower bound, of the documents with the topics of their last visit.
    Reference: M. Hoffman, D. Blei, F. Bach, Online learning for latent Dirichlet allocation (2010).
    """

    accepts = Accepts(sparse=True, weighted=True, labels="ignored")
    statistics = Statistics(spent=("counts", "visits"))
    state = HiddenState(memoryless=True)
    learning = Learning(tolerance=1e-4, auxiliary=("counts", "total", "steps"))
    placement = ParameterPlacement(unsent=("counts", "total", "steps"))
    figures = ReportedFigures(shown=("perplexity",), followed=("perplexity",))
    hyper_names = HyperNames(also_called={"n_components": "k", "topics": "k"}, starting=("init",))

    k: Annotated[int, Meta(ge=1, description="number of topics")] = 10
    alpha: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(description="prior of documents; None: 1/k")] = None
    eta: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(description="prior of topics; None: 1/k")] = None
    offset: Annotated[float, Meta(gt=0, description="online: larger ones make the first steps shorter")] = 10.0
    decay: Annotated[float, Meta(ge=0, le=1, description="online: how soon steps become short")] = 0.7
    visits: Annotated[int, Meta(ge=1, description="most steps of a document's topics in a visit")] = 100
    change: Annotated[float, Meta(ge=0, description="mean change of a document's topics that ends a visit")] = 1e-3
    init: Annotated[
        np.ndarray[Any, Any] | None, Meta(description="first counts, (words, topics); None: of some documents")
    ] = None

    def priors(self) -> tuple[float, float]:
        """alpha and eta."""
        return self.alpha or 1.0 / self.k, self.eta or 1.0 / self.k

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Topics:
        shape = (sample.columns, self.k)
        counts = self._seeded(sample, rng) if self.init is None else np.asarray(self.init, float)
        if counts.shape != shape:
            raise UsageError(f"LDA: init has the shape {counts.shape}; {shape} is needed, (words, topics).")
        if not (counts > 0).all() or not np.isfinite(counts).all():
            raise UsageError(
                "LDA: init has numbers that are missing, infinite or not above 0; give parameters of Dirichlet "
                "distributions."
            )
        return Topics(counts, np.exp(_expected_logarithms(counts)), np.array([sample.mass]), np.zeros(1))

    def _seeded(self, sample: Sample, rng: np.random.Generator) -> Array:
        """Counts of topics that are half all words of the sample and half those of some documents of their own. Topics
        that begin nearly equal part so slowly that a job may take it for convergence."""
        rows, features = rows_of(sample.features), sample.features
        drawn = rng.permutation(rows)[: max(min(rows // self.k, DOCUMENTS_OF_A_START), 1) * self.k]
        topic = np.full(rows, -1)
        topic[drawn] = np.arange(len(drawn)) % self.k
        if isinstance(features, Sparse):
            at, words, values = np.repeat(np.arange(rows), np.diff(features.indptr)), features.indices, features.values
        else:
            at, words = np.nonzero(np.asarray(features))
            values = np.asarray(features)[at, words]
        whole, own = np.bincount(words, values, minlength=sample.columns), np.flatnonzero(topic[at] >= 0)
        places = words[own].astype(np.int64) * self.k + topic[at[own]]
        counts = np.bincount(places, values[own], minlength=sample.columns * self.k).reshape(-1, self.k)
        tokens = max(float(whole.sum()), 1e-300)
        shares = whole[:, None] / tokens + counts / np.maximum(counts.sum(axis=0), 1e-300)
        return np.asarray(self.priors()[1] + 0.5 * tokens * sample.points / (rows * self.k) * shares)

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        return np.zeros((points, 2))

    def initAggregator(self, sample: Sample, parameter: Topics) -> TopicSums:
        return TopicSums(np.zeros_like(parameter.words), np.zeros(1), np.zeros(1), np.zeros(1))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Topics, iterationNum: int) -> DocumentChange:
        indices, values = entries(dataPoint.features)
        gamma, chances = np.empty(self.k), np.empty(self.k)
        prior = 1.0 / self.k if self.alpha is None else self.alpha
        bound = infer_topics(indices, values, parameter.words, prior, self.visits, self.change, gamma, chances)
        last, seen = dataPoint.state[0], dataPoint.state[1]
        dataPoint.state[0], dataPoint.state[1] = bound, 1.0
        return DocumentChange(dataPoint.features, chances, parameter.words, bound - last, 1.0 - seen, dataPoint.weight)

    def aggregate(self, target: TopicSums, change: DocumentChange) -> TopicSums:
        """Add a document with the topics of this visit."""
        row, chances, words, bound, seen, weight = change
        indices, values = entries(row)
        for i in range(indices.shape[0]):
            word, chance = indices[i], LEAST_CHANCE
            for k in range(chances.shape[0]):
                chance += chances[k] * words[word, k]
            for k in range(chances.shape[0]):
                target.counts[word, k] += weight * values[i] * chances[k] / chance
        target.visits[0] += weight
        target.bound[0] += weight * bound
        target.seen[0] += weight * seen
        return target

    def updateParameter(self, aggregator: TopicSums, oldParameter: Topics) -> Topics:
        old = oldParameter
        total = max(float(old.total[0]), float(aggregator.seen[0]))  # an estimate before every document was visited
        part = float(aggregator.visits[0]) / total
        if not part > 0:
            return old
        counts = self.priors()[1] + aggregator.counts * old.words / part
        if part < WHOLE_PASS:
            rate = max(part, float(self.offset + old.steps[0]) ** -self.decay)
            counts = (1.0 - rate) * old.counts + rate * counts
        return Topics(counts, np.exp(_expected_logarithms(counts)), old.total, old.steps + 1.0)

    def objective(self, aggregator: TopicSums, parameter: Topics) -> float:
        return -float(aggregator.bound[0] + self._topics_bound(parameter))

    def _topics_bound(self, parameter: Topics) -> float:
        """E[log p(β)] − E[log q(β)]."""
        counts, eta = np.array(parameter.counts), self.priors()[1]
        known = ((eta - counts) * _expected_logarithms(counts)).sum() + log_gamma_sum(counts)
        known += self.k * math.lgamma(eta * len(counts)) - counts.size * math.lgamma(eta)
        return float(known - log_gamma_sum(counts.sum(axis=0)))

    def validate(self, sample: Sample) -> None:
        values = sample.features.values if isinstance(sample.features, Sparse) else np.asarray(sample.features)
        if (values < 0).any():
            raise UsageError("LDA counts words, and a value is below 0; choose other columns.")

    def model(self, parameter: Topics) -> dict[str, Array]:
        return {"topics": (parameter.counts / parameter.counts.sum(axis=0)).T}

    def work(self, columns: int) -> float:
        return 20.0 * self.k * columns

    def documents(self, features: Any, parameter: Topics) -> tuple[Array, Array]:
        """γ of each row, (rows, topics), and what it adds to the bound."""
        rows = rows_of(features)
        gamma, bounds, chances = np.empty((rows, self.k)), np.empty(rows), np.empty(self.k)
        words, prior = np.ascontiguousarray(parameter.words), self.priors()[0]
        for i in range(rows):
            if isinstance(features, Sparse):
                inside = slice(int(features.indptr[i]), int(features.indptr[i + 1]))
                indices, values = features.indices[inside], features.values[inside]
            else:
                indices, values = entries(np.asarray(features[i]))
            bounds[i] = infer_topics(indices, values, words, prior, self.visits, self.change, gamma[i], chances)
        return gamma, bounds

    def probabilities(self, features: Any, parameter: Topics) -> Array:
        """How much of each row is of each topic."""
        gamma = self.documents(features, parameter)[0]
        return np.asarray(gamma / gamma.sum(axis=1, keepdims=True))

    def predict(self, features: Any, parameter: Topics) -> Array:
        """The topic that has the largest part of each row, int32."""
        return np.asarray(self.probabilities(features, parameter).argmax(axis=1), dtype=np.int32)

    def scores(self, features: Any, parameter: Topics) -> Array:
        return self.documents(features, parameter)[1]

    def evaluate(self, features: Any, labels: Array | None, parameter: Topics) -> Evaluation:
        bound = float(self.documents(features, parameter)[1].sum()) + self._topics_bound(parameter)
        values = features.values if isinstance(features, Sparse) else np.asarray(features)
        tokens = max(float(values.sum(dtype=np.float64)), 1e-300)
        return Evaluation(-bound, {"perplexity": float(np.exp(min(-bound / tokens, 700.0)))})


def _expected_logarithms(counts: Array) -> Array:
    """E[log β], a column a topic."""
    return np.asarray(digamma_each(np.array(counts)) - digamma_each(counts.sum(axis=0)))
