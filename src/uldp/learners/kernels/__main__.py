"""``python -m uldp.learners.kernels [float32] [float64]``: compile the kernels now, so that no run waits for it."""

from __future__ import annotations

import sys

import numpy as np

from uldp.crypto import ring
from uldp.crypto.ring_products import ProductSum
from uldp.data.federation import SiloData, Task
from uldp.learners.base import LocalTraining
from uldp.learners.models import build_model
from uldp.learners.torch import TorchLearner
from uldp.rng import Streams


def main(dtypes: list[str]) -> None:
    """Train a model of four parameters, and multiply two polynomials: the code is that of all models and rings."""
    users = np.array([0, 0, 1, 1])
    data = SiloData("here", np.ones((4, 3), dtype=np.float32), users, users)
    streams = Streams.from_seed(0)
    for dtype in dtypes or ["float32"]:
        learner = TorchLearner(build_model("logistic", (3,), Task(2)), Task(2), dtype=dtype)
        for _ in learner.user_deltas(learner.initial(streams), data, LocalTraining(), streams):
            pass
    one = ring.to_evaluations(ring.from_integers(np.eye(1, ring.N, dtype=np.int64)))
    ProductSum(1).add(np.ones((1, 1), dtype=np.int64), np.stack([one, one], axis=1))
    ring.to_coefficients(one)


if __name__ == "__main__":
    main(sys.argv[1:])
