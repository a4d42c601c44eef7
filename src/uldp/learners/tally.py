"""The learner of what trains no model: its "model" is a vector of noised totals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt

from uldp.data.federation import IntArray, Records, SiloData
from uldp.errors import ModelError
from uldp.learners.base import ClippedSums, LocalTraining, Rows, Vector
from uldp.rng import Streams


@dataclass(frozen=True)
class NothingTrained:
    """How nothing is trained: no layer, and nothing that is slow."""

    slow: str = ""
    layers: tuple[type, ...] = ()


@dataclass(frozen=True)
class TallyLearner:
    """A vector with a number for each total. It tests and predicts nothing.

    Args:
        dimension: How many numbers.
        start: What the first of them are before the first round; the others are zero.
    """

    dimension: int
    start: tuple[float, ...] = ()

    caveat: Final = ""
    mean_metrics: Final[tuple[tuple[str, float], ...]] = ()
    architecture: Final = "tallies"
    linear_outputs: Final = 0

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        return (self.dimension,)

    def training(self, feature_shape: tuple[int, ...]) -> NothingTrained:
        return NothingTrained()

    def initial(self, streams: Streams) -> Vector:
        return np.array([*self.start, *(0.0,) * (self.dimension - len(self.start))])

    def predict(self, x: Vector, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Zeros, whatever the tallies are: what is compared in the handshake is their number."""
        return np.zeros(len(features))

    def evaluate(self, x: Vector, records: Records) -> Mapping[str, float]:
        return {}

    def record_metrics(self, x: Vector, records: Records) -> Vector:
        return np.zeros((len(records), 0))

    def user_deltas(
        self, x: Vector, data: SiloData, local: LocalTraining, streams: Streams
    ) -> Iterator[tuple[IntArray, Rows]]:
        _refuse()

    def user_gradients(self, x: Vector, data: SiloData, streams: Streams) -> Iterator[tuple[IntArray, Rows]]:
        _refuse()

    def user_moments(self, data: SiloData, centre: Vector | None) -> Iterator[tuple[IntArray, Rows]]:
        _refuse()

    def clipped_sums(self, data: SiloData, clip: float) -> ClippedSums:
        _refuse()

    def silo_delta(self, x: Vector, data: SiloData, local: LocalTraining, streams: Streams) -> Vector:
        _refuse()


def _refuse() -> NoReturn:
    raise ModelError("totals train nothing", location="method")
