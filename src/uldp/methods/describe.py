"""``describe``: how people's records spread over the bins of each column, before anything is trained.

Nothing of a paper: the release is that of Kato et al. (ULDP-FL, Algorithm 3) with another row. Silo s, for every user u
with records here::

    row_su = the mean over u's records of one vector: for each column a 1 in the record's bin
    send  sum_u n_su / N_u row_su + N(0, sigma^2 C^2 / |S|)

N_u of the n_su records are in silo s, so the rows of all silos add up to the mean over all of u's records: a person
counts once in each column, however many records there are. A row is at most C long by itself (one bin in each column,
:func:`uldp.data.schema.feature_norm`), so clipping changes none. The guarantee is that of
:class:`uldp.privacy.releases.GaussianSum`; whatever is computed from the noised total costs nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from uldp.data.federation import SiloData
from uldp.data.tallies import MAX_BINS
from uldp.learners.base import Learner
from uldp.limits import check_whole
from uldp.methods.base import Method, State
from uldp.privacy.releases import Contribution, GaussianSum, PublicFacts, RoundFacts
from uldp.rng import Streams
from uldp.vectors import Vector

BLOCK: Final = 4096
"""How many people's rows are made at once."""


@dataclass(frozen=True, kw_only=True)
class Describe(Method):
    """One noised sum of what everybody's records look like.

    Args:
        rounds: 1; more would say the same with less noise, and so does a larger epsilon.
        bins: Into how many equal parts each agreed range is divided. Public, and never taken from the data.

    Raises:
        ConfigError: A value outside its range.

    Example:
        >>> Describe(noise_multiplier=7.0).release(PublicFacts(100, 5, 24, feature_norm=2.0)).clip
        2.0
    """

    rounds: int = 1
    bins: int = 10

    summary: ClassVar[str] = "counts, histograms, means and quantiles of all columns; trains nothing"
    paper: ClassVar[str] = "ULDP-FL (PVLDB 2024), Algorithm 3, with histograms for rows"

    def __post_init__(self) -> None:
        check_whole(self.rounds, 1, 1, "method.rounds")
        check_whole(self.bins, 2, MAX_BINS, "method.bins")
        super().__post_init__()

    def release(self, facts: PublicFacts) -> GaussianSum:
        return GaussianSum(
            facts=facts,
            clip=facts.feature_norm if math.isfinite(facts.feature_norm) else 1.0,
            noise_multiplier=self.noise_multiplier,
            weighting="records",
            dropout_tolerance=self.dropout_tolerance,
        )

    def silo(self, x: Vector, data: SiloData, learner: Learner, streams: Streams) -> Iterator[Contribution]:
        order = np.argsort(data.users, kind="stable")
        users, starts, counts = np.unique(data.users[order], return_index=True, return_counts=True)
        for first in range(0, len(users), BLOCK):
            block = slice(first, first + BLOCK)
            low, high = starts[block][0], starts[block][-1] + counts[block][-1]
            features = data.features[order[low:high]].astype(np.float64)
            # Features are multiples of a power of two: their sum is exact, in whatever order.
            sums = np.add.reduceat(features, starts[block] - low, axis=0)
            yield users[block], sums / counts[block, None]

    def server(self, state: State, total: Vector, facts: RoundFacts) -> State:
        return State(total)
