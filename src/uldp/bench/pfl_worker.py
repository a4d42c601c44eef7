"""One side of ``uldp bench train --case user-round``: a central iteration of Apple's pfl, in its own environment.

``python pfl_worker.py <problem.npz> <result.npz>``. Needs pfl and torch, and nothing of uldp: the two cannot be
installed into one environment, for pfl wants an older dp-accounting. Several workers share the users if the script is
started by ``torch.distributed.run``.

pfl always evaluates each user's model in the first iteration. So that one has few users, and the second is timed.
"""

from __future__ import annotations

import sys
import time
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import HyperParam, NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch import Tensor, nn

WARM_UP: Final = 20


class Network(nn.Sequential):
    """The zoo's ``creditcard`` without dropout, with what pfl asks of a module."""

    def __init__(self, features: int, width: int, outputs: int) -> None:
        stack: list[nn.Module] = []
        for block in range(5):
            stack += [nn.Linear(width if block else features, width), nn.ReLU(), nn.GroupNorm(1, width)]
        super().__init__(*stack, nn.Linear(width, outputs))

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self(features), labels)

    @torch.no_grad()
    def metrics(self, features: Tensor, labels: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(features, labels)) * len(labels), len(labels))}


class RoundTimer(TrainingProcessCallback):  # type: ignore[misc]
    """When each central iteration ended. After the first one the model is set to x again."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.ends: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if central_iteration == 0:
            nn.utils.vector_to_parameters(self.x.clone(), model.pytorch_model.parameters())
        self.ends.append(time.perf_counter())
        return False, Metrics()


class Cohort(HyperParam):  # type: ignore[misc]
    """A few users in the first iteration, all of them in the second."""

    def __init__(self, clock: RoundTimer, users: int) -> None:
        self._clock, self._users = clock, users

    def value(self) -> int:
        return self._users if self._clock.ends else min(self._users, WARM_UP)


def run(given: dict[str, np.ndarray[Any, Any]]) -> tuple[float, np.ndarray[Any, Any]]:
    """Seconds of the second central iteration, and the model after it."""
    torch.set_num_threads(int(given["threads"]))
    features, labels = torch.from_numpy(given["features"]), torch.from_numpy(given["labels"])
    bounds = [int(bound) for bound in given["bounds"]]
    users = {
        user: PyTorchTensorDataset((features[first:end], labels[first:end]), user_id=str(user))
        for user, (first, end) in enumerate(pairwise(bounds))
    }
    network = Network(features.shape[1], int(given["width"]), int(given["outputs"]))
    clock = RoundTimer(torch.from_numpy(given["x"]))
    nn.utils.vector_to_parameters(clock.x.clone(), network.parameters())
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    data = FederatedDataset(users.__getitem__, MinimizeReuseUserSampler(list(users)))
    mechanism = GaussianMechanism(float(given["clip"]), float(given["noise_multiplier"]))
    batch = int(given["batch_size"])
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(2, 2, Cohort(clock, len(users)), 0),
        backend=SimulatedBackend(data, data, [WeightByUser(), CentrallyAppliedPrivacyMechanism(mechanism)]),
        model=model,
        model_train_params=NNTrainHyperParams(batch, int(given["epochs"]), float(given["lr"])),
        model_eval_params=NNEvalHyperParams(batch),
        callbacks=[clock],
    )
    x = nn.utils.parameters_to_vector(network.parameters()).detach().numpy()
    return clock.ends[1] - clock.ends[0], x


if __name__ == "__main__":
    with np.load(sys.argv[1]) as problem:
        seconds, x = run(dict(problem))
    if pytorch_ops.distributed.global_rank == 0:
        np.savez(sys.argv[2], seconds=seconds, x=x)
