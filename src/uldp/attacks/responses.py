"""How a silo's local training answers to one record more, to first order: what an adversary expects to find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.methods.base import Method
from uldp.privacy.releases import NoisedModel, Release
from uldp.vectors import Rows, clip_rows

Array = npt.NDArray[np.float64]

MAX_WIDTH: Final = 200
"""With more parameters the curvature of the loss is left out: its eigenvectors take too long."""
HALF: Final = 0.5
"""Whoever attacks expects half of the people to be there."""


@dataclass(frozen=True)
class LocalSteps:
    """Local training as gradient steps on the sum over the records that are there.

    Args:
        rate: By how much a record's gradient moves the model in a step, on average.
        steps: How many steps.
        noise: The deviation of the noise of a step, per parameter.
        clip: Of a record's gradient; infinite for none.
    """

    rate: float
    steps: float
    noise: float
    clip: float

    @classmethod
    def of(cls, method: Method, release: Release, records: int) -> LocalSteps:
        """Those of a method in a silo with so many records of candidates."""
        if isinstance(release, NoisedModel):
            scale, (steps, rate) = release.lr / release.batch_size, release.everywhere()
            noise = scale * release.noise_multiplier * release.clip
            return cls(scale * rate, steps, noise, release.clip)
        expected, training = max(1.0, HALF * records), getattr(method, "local_training", None)
        if training is None:
            return cls(1 / expected, 1, 0.0, np.inf)
        batches = max(1.0, expected / training.batch_size)
        return cls(training.lr / expected, training.epochs * batches, 0.0, np.inf)

    def respond(self, rows: Rows) -> tuple[Array, Array]:
        """From the records' gradients (records, parameters) at the round's model: what each adds, and how the noise of
        all steps is spread, a covariance matrix or where it is the same in all directions a variance.

        A step moves the model towards where gradients vanish, so what earlier steps added, noise included, fades. How
        fast follows from the curvature, for which the gradients' second moments stand (the Fisher information).
        """
        gradients = np.nan_to_num(np.asarray(rows, dtype=np.float64))
        gradients = clip_rows(gradients, self.clip) if np.isfinite(self.clip) else gradients
        if gradients.shape[1] > MAX_WIDTH:
            return -self.rate * self.steps * gradients, np.array(self.noise**2 * self.steps)
        curvature, directions = np.linalg.eigh(gradients.T @ gradients)
        left = np.clip(1 - HALF * self.rate * curvature, -0.999, 1.0)  # of the last step's difference, after a step
        signal = -self.rate * _geometric(left, self.steps)
        covariance = (directions * (self.noise**2 * _geometric(left**2, self.steps))) @ directions.T
        return gradients @ (directions * signal) @ directions.T, covariance


def _geometric(ratio: Array, terms: float) -> Array:
    """1 + r + ... + r^(n-1)."""
    steps = max(1, round(terms))
    near = np.abs(1 - ratio) < 1e-9
    return np.where(near, steps, (1 - ratio**steps) / np.where(near, 1.0, 1 - ratio))
