"""One linear layer trained by SGD on all records of a silo, step after step; and its sums of clipped gradients.

Federated averaging takes hundreds of thousands of tiny steps that cannot be batched over users: each follows the last.
There a step's price is the number of calls, and numpy's are several times cheaper than torch's. Same batches, same
arithmetic, same result up to rounding as the general path; the tests compare them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from uldp.data.federation import IntArray
from uldp.learners.base import LocalTraining, Vector
from uldp.learners.losses import BinaryCrossEntropy, CrossEntropy, Loss, SquaredError
from uldp.learners.noise import Noise

Array = npt.NDArray[Any]


def only_layer(module: nn.Module) -> nn.Linear | None:
    """The module's one linear layer, if it has no other part that computes."""
    parts = [part for part in module.modules() if not isinstance(part, nn.Sequential | nn.Flatten | nn.Identity)]
    if len(parts) != 1 or not isinstance(parts[0], nn.Linear) or parts[0].bias is None:
        return None
    return parts[0] if all(p.requires_grad for p in parts[0].parameters()) else None


def known(module: nn.Module, loss: Loss) -> bool:
    """Whether this is one linear layer with a loss that is written down here."""
    return isinstance(loss, BinaryCrossEntropy | CrossEntropy | SquaredError) and only_layer(module) is not None


def applies(module: nn.Module, loss: Loss, local: LocalTraining) -> bool:
    """Whether :func:`train` can do what the general path does."""
    return known(module, loss) and local.optimizer == "sgd"


class LinearSums:
    """Sums of clipped gradients of single records. Record i has e_i (x_i, 1), with e_i the gradient of its scores."""

    def __init__(self, features: Array, labels: Array, loss: Loss, outputs: int) -> None:
        self._inputs = features.reshape(len(features), -1)
        with np.errstate(over="ignore", invalid="ignore"):
            self._lengths = np.sqrt(np.square(self._inputs, dtype=np.float64).sum(axis=1) + 1.0)
        self._targets = _targets(labels, outputs, loss, features.dtype)
        self._loss = loss

    def __call__(self, x: Vector, records: IntArray, clip: float) -> Vector:
        outputs = self._targets.shape[1]
        inputs, size = self._inputs[records], x.size - outputs
        now = x.astype(inputs.dtype)
        with np.errstate(all="ignore"):
            scores = inputs @ now[:size].reshape(outputs, -1).T + now[size:]
            errors = _gradient(scores, self._targets[records], self._loss).astype(np.float64)
            norms = np.sqrt(np.square(errors).sum(axis=1)) * self._lengths[records]
            factors = np.minimum(1.0, clip * (1 - 1e-12) / norms)  # so that rounding does not carry beyond it
        lost = ~np.isfinite(norms)
        if lost.any():  # what is not finite counts as zero
            errors, factors, inputs = errors.copy(), factors.copy(), inputs.copy()
            errors[lost], factors[lost], inputs[lost] = 0.0, 0.0, 0.0
        errors *= factors[:, None]
        return np.concatenate([(errors.T @ inputs).ravel(), errors.sum(axis=0)])


def train(x: Array, features: Array, labels: Array, loss: Loss, local: LocalTraining, noise: Noise) -> Vector:
    """The change of the flat parameters ``x`` by Q epochs over all records; ``noise`` has one place, the silo."""
    count = len(features)
    inputs = features.reshape(count, -1)
    outputs = x.size // (inputs.shape[1] + 1)
    weight = x[: outputs * inputs.shape[1]].reshape(outputs, -1).T.copy()
    bias = x[outputs * inputs.shape[1] :].copy()
    targets = _targets(labels, outputs, loss, x.dtype)
    keep = x.dtype.type(1.0 - local.lr * local.weight_decay)
    with np.errstate(over="ignore", invalid="ignore"):
        for order in _orders(count, local, noise):
            rows, wanted = inputs[order], targets[order]
            for first in range(0, count, local.batch_size):
                batch = rows[first : first + local.batch_size]
                gradient = _gradient(batch @ weight + bias, wanted[first : first + local.batch_size], loss)
                gradient *= x.dtype.type(-local.lr / len(batch))
                if keep != 1:
                    weight *= keep
                    bias *= keep
                weight += batch.T @ gradient
                bias += gradient.sum(axis=0)
    change = np.concatenate([weight.T.ravel(), bias]) - x
    return change.astype(np.float64)


def _orders(count: int, local: LocalTraining, noise: Noise) -> Array:
    """(epochs, records): the order of the records in each epoch, as the general path takes them."""
    if count <= local.batch_size:
        return np.broadcast_to(np.arange(count), (local.epochs, count))
    place = np.zeros(local.epochs, dtype=np.int64)
    return noise.orders(place, np.arange(local.epochs), np.full(local.epochs, count))


def _targets(labels: Array, outputs: int, loss: Loss, dtype: Any) -> Array:
    if isinstance(loss, CrossEntropy):
        return np.eye(outputs, dtype=dtype)[labels.astype(np.int64)]
    return labels.astype(dtype)[:, None]


def _gradient(scores: Array, wanted: Array, loss: Loss) -> Array:
    """The gradient of the records' losses, before the mean is taken."""
    if isinstance(loss, SquaredError):
        return np.asarray(2.0 * (scores - wanted))
    if isinstance(loss, BinaryCrossEntropy):
        return np.asarray(1.0 / (1.0 + np.exp(-scores)) - wanted)
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    return np.asarray(chances / chances.sum(axis=1, keepdims=True) - wanted)
