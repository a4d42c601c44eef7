"""Where kernels cannot be used, users are trained one by one by autograd, and it is said why."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_TRAIN = """
import sys, warnings
{before}
import numpy as np
from torch import nn
from uldp.data.federation import SiloData, Task
from uldp.learners.base import LocalTraining
from uldp.learners.torch import TorchLearner
from uldp.rng import Streams
learner = TorchLearner(nn.Sequential(nn.Linear(3, 1)), Task(2))
data = SiloData("a", np.ones((4, 3), np.float32), np.array([0, 1, 1, 1]), np.array([0, 0, 1, 2]))
streams = Streams.from_seed(1)
x = learner.initial(streams)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    rows = list(learner.user_deltas(x, data, LocalTraining(), streams))
    learner.clipped_sums(data, 1.0)(x, np.arange(4), 0, streams)
    learner.predict(x, data.features)
print(learner.training((3,)).path, len(rows), [str(w.message) for w in said if issubclass(w.category, UserWarning)])
"""


@pytest.mark.parametrize(
    ("before", "variables", "reason"),
    [
        ("sys.modules['numba'] = sys.modules['llvmlite'] = None", {}, "numba cannot be imported"),
        (
            "import platform; platform.machine = lambda: 'x86_64'",
            {"NUMBA_CPU_FEATURES": "+avx"},
            "no fused multiply-add",
        ),
        ("", {"NUMBA_DISABLE_JIT": "1"}, "NUMBA_DISABLE_JIT"),
    ],
)
def test_without_kernels_the_loop_trains_and_it_is_said_once_why(before, variables, reason):
    code = _TRAIN.replace("{before}", before)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("loop 3 [")
    assert done.stdout.count("cannot be trained by kernels") == 1
    assert reason in done.stdout
