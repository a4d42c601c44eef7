"""ULDP-SGD of a linear model whose features are standardised inside the rows. What ``auto`` is for linear models.

A linear model computes W f + b of the features f. Under public ranges, features lie anywhere in [-1, 1] and spread over
any part of it: rows (r f, r), where r says how far a prediction is off, are long in directions that tell nothing and
short in those that do, and noise goes with their length. With the features' means c and spreads s, the row of user u in
silo s is that of a model of z = (f - c) / s::

    row_su = (dW - db c) / s, db      where (dW, db) is minus the gradient of the user's mean loss, as in Algorithm 4

and the server turns a step in these coordinates into one of (W, b).

Nobody may compute c and s from records. They are estimated from totals of the first rounds, which are released like all
others::

    rows of the first rounds:  means of the user's features f and labels y       (c, and where the bias starts)
    rows of the next ones:     means of (f - c)^2 and (y - their mean)^2         (s, and the scale of the errors)

Estimates are shrunk by the share of signal in them, which the server knows because it knows the noise (James and
Stein's factor): with much noise, c is near 0 and all s are nearly equal, and training is that of features as they are.

Clip, weights, sum and noise are those of :class:`uldp.privacy.releases.GaussianSum`: rows are clipped after the change
of coordinates, which is public, to length 1 in units that the server chooses from what was released. Everything on the
server is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from uldp.caveats import Caveat
from uldp.data.federation import SiloData
from uldp.elementary import row_sums
from uldp.errors import ConfigError
from uldp.learners.base import Learner
from uldp.methods.base import State, not_a_setting
from uldp.methods.server_optimizer import NoisedTotal
from uldp.methods.standardization import (
    MIN_VARIANCE,
    Coordinates,
    MomentEstimate,
    RowContent,
    bias_for,
    error_scale,
    expected_labels,
)
from uldp.methods.user_sum import UserSum
from uldp.privacy.releases import Contribution, PublicFacts, RoundFacts
from uldp.privacy.releases.gaussian_sum import people_in_a_round
from uldp.rng import Streams
from uldp.vectors import Vector

COORDINATES: Final = Caveat(
    "coordinates",
    "Beside the models silos see estimated means and spreads of features and labels, computed from the noised totals "
    "of the first rounds; the epsilons cover them.",
)
ESTIMATES: Final = ("centre", "spread", "errors")
OPTIMIZER: Final = "optimizer "
"""What the server optimiser keeps has this before its name in ``State.memory``."""


@dataclass(frozen=True, kw_only=True)
class StandardizedSgd(UserSum):
    """Clipped gradients of standardised features; :class:`~uldp.methods.auto.Auto` fills in its settings.

    Args:
        clip_scale: How long rows may be, relative to the recipe; further arguments are those of :class:`UserSum`.

    Raises:
        ConfigError: A value outside its range.

    Example:
        >>> method = StandardizedSgd(rounds=50, noise_multiplier=5.0)
        >>> facts = PublicFacts(100, 5, dimension=3, linear_outputs=1).in_round(1, 5)
        >>> method.broadcast(State(np.zeros(3)), facts)[3:]  # behind the model: Coordinates
        array([0. , 0.5, 0. , 1. , 0. , 0. , 0.5, 1. , 1. ])
    """

    server_optimizer: str = "auto"
    clip_scale: float = not_a_setting(1.0)

    summary: ClassVar[str] = "clipped gradients per user and silo, of standardised features"
    paper: ClassVar[str] = "ULDP-FL (PVLDB 2024), Algorithm 4, in coordinates and with a server of our own"

    def for_facts(self, facts: PublicFacts) -> StandardizedSgd:
        if not facts.linear_outputs:
            raise ConfigError("trains models W f + b only; take method.name = 'auto'", location="method.name")
        return self

    def caveats(self, facts: PublicFacts) -> tuple[Caveat, ...]:
        return (COORDINATES,)

    def label_deviation(self, facts: PublicFacts) -> float:
        """The noise in the first estimate of the mean of a number to predict, in halves of its range.

        Args:
            facts: The federation.
        """
        kept = max(1, self._first_rounds(facts)[0] - 1)
        length = self.recipe.linear.means_length * math.sqrt(self._features(facts) + 1)
        release = self.release(facts)
        return length * math.sqrt(release.noise_variance(facts.silos) / kept) / people_in_a_round(release)

    # --- in a silo --------------------------------------------------------------------------------------------

    def silo(self, x: Vector, data: SiloData, learner: Learner, streams: Streams) -> Iterator[Contribution]:
        features, size = int(np.prod(data.features.shape[1:])), learner.dimension
        agreed = Coordinates.unpack(x[size:], features)
        if agreed.content is RowContent.STEPS:
            for users, gradients in learner.user_gradients(x[:size], data, streams):
                yield users, -agreed.standardised(gradients)
            return
        for users, rows in learner.user_moments(data, None if agreed.content is RowContent.MEANS else agreed.centre):
            yield users, agreed.moments(rows)

    # --- on the server ----------------------------------------------------------------------------------------

    def broadcast(self, state: State, facts: RoundFacts) -> Vector:
        return np.concatenate([state.x, self._coordinates(state, facts).packed()])

    def server(self, state: State, total: Vector, facts: RoundFacts) -> State:
        agreed = self._coordinates(state, facts)
        if agreed.content is RowContent.STEPS:
            return self._step(state, agreed, total, facts)
        if agreed.content is RowContent.MEANS:
            return self._centred(state, agreed, total, facts)
        known = {key: value for key, value in state.memory.items() if key in ESTIMATES}
        sums = self._with_total(state.memory, agreed, total, facts)
        if self._content(facts.round + 1, facts) is agreed.content:
            return State(state.x, {**known, **sums})
        found, features = MomentEstimate.from_sums(sums), self._features(facts)
        new = {"spread": found.spreads(features, self.recipe.linear)} if agreed.of_features else {}
        if facts.task == "regression":
            new["errors"] = np.array([found.errors(features, self.recipe.linear)])
        return State(state.x, {**known, **new})

    def _centred(self, state: State, agreed: Coordinates, total: Vector, facts: RoundFacts) -> State:
        """The state with the centre as far as it is known; after the last round about means, with a start.

        Rows of the first round are long where features lie far from the middle of their ranges, so the clip biases
        their mean. Those of the next rounds are differences from it, which are short, and these alone are kept.
        """
        features, before = self._features(facts), self._reference(state.x, facts)
        sums = self._with_total(state.memory, agreed, total, facts)
        found = MomentEstimate.from_sums(sums)
        shrunk = MomentEstimate(found.values - before, found.variance).shrunk(features)
        if _bounded(facts) and found.variance > self.recipe.linear.usual_error**2:
            shrunk[features:] = 0.0  # the noise is as wide as the labels' range: one number alone is not worth a look
        centre = before + np.concatenate([shrunk[:features] * agreed.of_features, shrunk[features:]])
        centre = self._within(centre, facts)
        memory = {"centre": centre, **({} if facts.round == 1 else sums)}
        if self._content(facts.round + 1, facts) is RowContent.MEANS:
            return State(state.x, memory)
        known = {"centre": centre}
        if facts.task == "classification":
            known["errors"] = np.array([error_scale(centre[features:])])
        return State(self._started(state.x, centre[features:], found, facts), known)

    def _with_total(
        self, memory: Mapping[str, Vector], agreed: Coordinates, total: Vector, facts: RoundFacts
    ) -> dict[str, Vector]:
        """The sums over rounds like this one of the estimates by their precisions, and of the precisions."""
        release = self.release(facts)
        # Of the records of a silo that was not heard nothing is known: they are taken to be like the others.
        unit = agreed.length / people_in_a_round(release) * facts.silos / facts.silos_heard
        precision = 1 / max(release.noise_variance(facts.silos_heard) * unit * unit, MIN_VARIANCE)
        found = unit * total[: len(agreed.centre)]
        if agreed.content is RowContent.MEANS:  # rows are differences from the centre
            found = agreed.centre + found
        new = {"estimate": precision * found, "precision": np.array([precision])}
        return {key: memory[key] + value if key in memory else value for key, value in new.items()}

    def _started(self, x: Vector, labels: Vector, found: MomentEstimate, facts: PublicFacts) -> Vector:
        """x with a bias that predicts the labels' means, as far as they are known; a model that has weights stays."""
        weights = x[: len(x) - facts.linear_outputs]
        if weights.any():
            return x
        least = 0.5 * max(1 / facts.people, math.sqrt(found.variance))
        return np.concatenate([weights, bias_for(labels, facts.task, least)])

    def _step(self, state: State, agreed: Coordinates, total: Vector, facts: RoundFacts) -> State:
        """The server's step in standardised coordinates."""
        release, first = self.release(facts), sum(self._first_rounds(facts))
        noise, outputs = release.noise_variance(facts.silos_heard), facts.linear_outputs
        if outputs > 1:
            # Softmax does not change where all outputs grow alike, so whatever is in that direction is noise.
            parts = [part.reshape(outputs, -1) for part in np.split(total, [-outputs])]
            total = np.concatenate([(part - row_sums(part.T.copy()) / outputs).ravel() for part in parts])
            noise *= 1 - 1 / outputs
        noised_total = NoisedTotal(
            values=total,
            noise_variance=noise,
            people=people_in_a_round(release),
            step=self.recipe.linear.step_at(release.noise_to_signal(self.rounds)),
            remaining=1 - (facts.round - 1 - first) / (self.rounds - first),
        )
        kept = {key: value for key, value in state.memory.items() if key in ESTIMATES}
        own = {key.removeprefix(OPTIMIZER): value for key, value in state.memory.items() if key not in kept}
        after = self.recipe.server.step(State(np.zeros_like(total), own), noised_total, self.server_lr)
        unit = float(kept["errors"][0]) if facts.task == "regression" and "errors" in kept else 1.0
        memory = {**kept, **{OPTIMIZER + key: value for key, value in after.memory.items()}}
        return State(state.x + unit * agreed.restored(after.x), memory)

    # --- coordinates ------------------------------------------------------------------------------------------

    def _first_rounds(self, facts: PublicFacts) -> tuple[int, int]:
        """How many rounds are about means, and how many about spreads, which matter to features and to numbers."""
        means, spreads = self.recipe.linear.first_rounds(self.rounds)
        return means, spreads if _bounded(facts) or facts.task == "regression" else 0

    def _content(self, round_: int, facts: PublicFacts) -> RowContent:
        means, spreads = self._first_rounds(facts)
        return (
            RowContent.MEANS
            if round_ <= means
            else RowContent.SPREADS
            if round_ <= means + spreads
            else RowContent.STEPS
        )

    def _features(self, facts: PublicFacts) -> int:
        return facts.dimension // facts.linear_outputs - 1

    def _coordinates(self, state: State, facts: RoundFacts) -> Coordinates:
        """Those of the round, from what was released before it."""
        content, features, memory = self._content(facts.round, facts), self._features(facts), state.memory
        centre = memory["centre"] if "centre" in memory else self._reference(state.x, facts)
        spread = memory.get("spread", np.full(features, self.recipe.linear.usual_spread if _bounded(facts) else 1.0))
        length = self._length(content, centre, memory, facts)
        of_labels = content is RowContent.MEANS or facts.task == "regression"
        return Coordinates(content, length, centre, spread, _bounded(facts), of_labels)

    def _within(self, centre: Vector, facts: PublicFacts) -> Vector:
        """Within what is public: features and numbers under a schema lie in [-1, 1], shares of classes in [0, 1]."""
        if facts.task == "classification":
            least = np.concatenate([np.full(self._features(facts), -1.0), np.zeros(facts.linear_outputs)])
            return np.clip(centre, least, 1.0)
        return np.clip(centre, -1.0, 1.0) if _bounded(facts) else centre

    def _reference(self, x: Vector, facts: PublicFacts) -> Vector:
        """The centre before anything is known: the middle of the ranges, and the labels that the model expects."""
        labels = expected_labels(x[len(x) - facts.linear_outputs :], facts.task)
        return np.concatenate([np.zeros(self._features(facts)), labels])

    def _length(self, content: RowContent, centre: Vector, memory: Mapping[str, Vector], facts: RoundFacts) -> float:
        """What rows of this content are divided by before they are clipped to 1."""
        features, recipe = self._features(facts), self.recipe.linear
        if content is RowContent.STEPS:
            rho = self.release(facts).noise_to_signal(self.rounds)
            errors = memory["errors"][0] if "errors" in memory else recipe.usual_error
            return self.clip_scale * recipe.length_at(rho) * float(errors) * math.sqrt(features + 1)
        if not _bounded(facts):  # rows of labels alone, as long as they can be
            labels = centre[features:]
            farthest = np.maximum(labels, 1 - labels) if len(labels) == 1 else _distances(labels)
            return float(farthest.max()) if facts.task == "classification" else 1.0
        if content is RowContent.SPREADS and "estimate" in memory:
            of_labels = facts.task == "regression"
            return MomentEstimate.from_sums(memory).squares_length(features, recipe.squares_length, of_labels)
        return (recipe.means_length if content is RowContent.MEANS else recipe.squares_length) * math.sqrt(features + 1)


def _distances(labels: Vector) -> Vector:
    """How far the label of each class, one-hot, is from these shares."""
    return np.sqrt(row_sums(np.square(np.eye(len(labels)) - labels)))


def _bounded(facts: PublicFacts) -> bool:
    """Whether a schema scales features to [-1, 1]. Without one they are taken for standardised already."""
    return math.isfinite(facts.feature_norm)
