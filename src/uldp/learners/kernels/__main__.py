"""``python -m uldp.learners.kernels [float32] [float64]``: compile the kernels now, so that no run waits for it."""

from __future__ import annotations

import sys

import numpy as np

from uldp.data.federation import SiloData, Task
from uldp.learners.base import LocalTraining
from uldp.learners.models import build_model
from uldp.learners.torch import TorchLearner
from uldp.rng import Streams


def main(dtypes: list[str]) -> None:
    """Train a model of four parameters; the code that it compiles is that of every model."""
    users = np.array([0, 0, 1, 1])
    data = SiloData("here", np.ones((4, 3), dtype=np.float32), users, users)
    streams = Streams.from_seed(0)
    for dtype in dtypes or ["float32"]:
        learner = TorchLearner(build_model("logistic", (3,), Task(2)), Task(2), dtype=dtype)
        for _ in learner.user_deltas(learner.initial(streams), data, LocalTraining(), streams):
            pass


if __name__ == "__main__":
    main(sys.argv[1:])
