"""``coefficients``: Newton steps from a trained model, on noised sums of what people's records say about coefficients.

Nothing of a paper: the release is that of Kato et al. (ULDP-FL, Algorithm 3) with another row. Silo s, for every user u
with records here, at the coefficients phi::

    row_su = (score, information, squares of the score) of u's records here    (uldp.methods.person_scores)
    send  sum_u n_su / N_u row_su + N(0, sigma^2 C^2 / |S|)

Server, with the totals U, A, B and A as a matrix, less what of it may be noise::

    phi += A^-1 U

A row is at most C = ROW_NORM long by itself, so clipping changes none, and a person counts once however many records
there are. The guarantee is that of :class:`uldp.privacy.releases.GaussianSum`. Where the steps end, phi is an ordinary
estimate (of least squares, of maximum likelihood) plus noise of a known variance, and not what clipping and a number
of rounds make of it; :mod:`uldp.runs.coefficients` computes intervals from the last totals, which costs nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from uldp.data.federation import SiloData
from uldp.errors import ConfigError, require
from uldp.learners.base import Learner
from uldp.limits import check_whole
from uldp.methods.base import Method, State, not_a_setting
from uldp.methods.person_scores import (
    INFORMATION_WEIGHT,
    KINDS,
    ROW_NORM,
    SQUARES_WEIGHT,
    ScoreScales,
    matrix_of,
    person_rows,
    triangle_size,
)
from uldp.privacy.releases import Contribution, GaussianSum, PublicFacts, RoundFacts
from uldp.rng import Streams
from uldp.vectors import Vector

MAX_COEFFICIENTS: Final = 200
MAX_STEPS: Final = 10
_CLEARLY: Final = 3.0
"""In how many standard deviations of the noise something is taken for more than noise."""
BLOCK_NUMBERS: Final = 2**22
"""How many numbers of rows are made at once."""


@dataclass(frozen=True)
class NewtonTotals:
    """The noised totals of a round, in their own units.

    Args:
        score: U.
        information: A.
        squares: B, the sum of the scores' squares.
        score_noise: The standard deviation of the noise in each entry of U.
        information_noise: Of A's diagonal; beside it the noise is smaller by sqrt(2).
        squares_noise: Likewise of B.

    Example:
        >>> NewtonTotals(np.array([2.0]), np.array([[4.0]]), np.array([[1.0]]), 0.1, 0.1, 0.1).step()
        array([0.5])
    """

    score: Vector
    information: Vector
    squares: Vector
    score_noise: float
    information_noise: float
    squares_noise: float

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Of which coefficients the records say anything.

        Of a column that does not change within a person a Cox model with strata says nothing: it is left out.
        """
        return np.diag(self.information) > _CLEARLY * self.information_noise

    @property
    def information_error(self) -> float:
        """About the largest eigenvalue of the noise in A, as far as it is of what is known."""
        return math.sqrt(2 * int(self.known.sum())) * self.information_noise

    @property
    def smallest_information(self) -> float:
        """The smallest eigenvalue of the same part of A; 0 where nothing is known."""
        known = self.known
        return float(np.linalg.eigvalsh(self.information[np.ix_(known, known)])[0]) if known.any() else 0.0

    def inverse(self) -> Vector:
        """The inverse of the same part, zero elsewhere; an eigenvalue that may be noise alone counts as the noise."""
        known, found = self.known, np.zeros_like(self.information)
        values, vectors = np.linalg.eigh(self.information[np.ix_(known, known)])
        floor = max(self.information_error, 1e-12)
        found[np.ix_(known, known)] = (vectors / np.maximum(values, floor)) @ vectors.T
        return found

    def step(self) -> Vector:
        """How far the coefficients move."""
        return np.asarray(self.inverse() @ self.score)


@dataclass(frozen=True, kw_only=True)
class NewtonSteps(Method):
    """Newton steps for the coefficients of a linear, logistic or Cox model.

    Args:
        rounds: How many steps.
        kind: ``linear``, ``logistic`` or ``cox``.
        start: Where the steps begin, from a trained model: the intercept (but for ``cox``), and a coefficient for each
            of ``features``.
        features: Which of the schema's features have a coefficient: of categories not the first, with which the others
            are compared.
        feature_norm: From the schema, no setting.

    Raises:
        ConfigError: A value outside its range.

    Example:
        >>> NewtonSteps(kind="logistic", start=(0.0, 0.0), features=(0,), rounds=3).numbers
        10
    """

    rounds: int = 1
    kind: str = ""
    start: tuple[float, ...] = ()
    features: tuple[int, ...] = ()
    feature_norm: float = not_a_setting(1.0)

    summary: ClassVar[str] = "coefficients of a linear, logistic or Cox model with their uncertainty"
    paper: ClassVar[str] = "ULDP-FL (PVLDB 2024), Algorithm 3, with scores and information for rows"

    def __post_init__(self) -> None:
        require(self.kind in KINDS, "method.kind", self.kind, f"one of {', '.join(KINDS)}")
        check_whole(self.rounds, 1, MAX_STEPS, "method.rounds")
        check_whole(len(self.start), 1, MAX_COEFFICIENTS, "method.start")
        for value in self.start:
            require(math.isfinite(value), "method.start", value, "finite numbers")
        wanted = len(self.start) - (self.kind != "cox")
        unlike = f"{wanted} different features, one for each coefficient of start"
        distinct = len(set(self.features)) == wanted == len(self.features) and min(self.features, default=0) >= 0
        require(distinct, "method.features", list(self.features), unlike)
        super().__post_init__()

    @property
    def scales(self) -> ScoreScales:
        return ScoreScales(self.kind, self.feature_norm)

    @property
    def numbers(self) -> int:
        """How many numbers a round releases: the coefficients' places, and the totals."""
        return 2 * len(self.start) + 2 * triangle_size(len(self.start))

    def check_data(self, feature_shape: tuple[int, ...], classes: int) -> None:
        """Refuse data that these coefficients do not fit.

        Args:
            feature_shape: Of one record.
            classes: How many there are; 0 for a number or survival.
        """
        if len(feature_shape) != 1 or max(self.features, default=0) >= feature_shape[0]:
            raise ConfigError(f"beyond the {math.prod(feature_shape)} features of a record", location="method.features")
        if classes > 2:
            raise ConfigError(f"coefficients are for two classes, not {classes}", location="method.kind")

    def for_facts(self, facts: PublicFacts) -> NewtonSteps:
        if facts.task != KINDS[self.kind]:
            raise ConfigError(
                f"{self.kind!r} is for {KINDS[self.kind]}, the task is {facts.task}", location="method.kind"
            )
        if not math.isfinite(facts.feature_norm):
            reason = "needs features with public bounds: tables with a schema, standardise = 'none'"
            raise ConfigError(reason, location="method.name", value="coefficients")
        return replace(self, feature_norm=facts.feature_norm)

    def release(self, facts: PublicFacts) -> GaussianSum:
        return GaussianSum(
            facts=facts,
            clip=ROW_NORM,
            noise_multiplier=self.noise_multiplier,
            weighting="records",
            dropout_tolerance=self.dropout_tolerance,
        )

    def silo(self, x: Vector, data: SiloData, learner: Learner, streams: Streams) -> Iterator[Contribution]:
        size = len(self.start)
        order = np.argsort(data.users, kind="stable")
        users, starts, counts = np.unique(data.users[order], return_index=True, return_counts=True)
        block = max(1, BLOCK_NUMBERS // self.numbers)
        for first in range(0, len(users), block):
            part = slice(first, first + block)
            rows = order[starts[part][0] : starts[part][-1] + counts[part][-1]]
            features = data.features[rows][:, list(self.features)].astype(np.float64)
            if self.kind != "cox":
                features = np.concatenate([np.ones((len(rows), 1)), features], axis=1)
            labels = data.labels[rows].astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):  # of coefficients that a server makes up
                found = person_rows((features, labels), counts[part], x[:size], self.scales)
            # The first places of the vector are those of the coefficients, to which nobody's records add.
            yield users[part], np.concatenate([np.zeros((len(found), size)), found], axis=1)

    def totals(self, x: Vector, noise_variance: float) -> NewtonTotals:
        """The totals of the last round.

        Args:
            x: The model: coefficients and totals.
            noise_variance: Of each number.
        """
        size, triangle, scales = len(self.start), triangle_size(len(self.start)), self.scales
        _, score, information, squares = np.split(x, np.cumsum([size, size, triangle]))
        noise, unit = math.sqrt(noise_variance), scales.information / INFORMATION_WEIGHT
        return NewtonTotals(
            score * scales.score,
            matrix_of(information, size) * unit,
            matrix_of(squares, size) * (scales.squares / SQUARES_WEIGHT),
            noise * scales.score,
            noise * unit,
            noise * scales.squares / SQUARES_WEIGHT,
        )

    def server(self, state: State, total: Vector, facts: RoundFacts) -> State:
        size, noise = len(self.start), self.release(facts).noise_variance(facts.silos_heard)
        step = self.totals(total, noise).step()
        return State(np.concatenate([state.x[:size] + step, total[size:]]))
