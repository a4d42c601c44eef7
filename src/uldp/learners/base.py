"""What a method asks of a learner. Methods know this interface only, never PyTorch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from uldp.data.federation import IntArray, Records, SiloData
from uldp.errors import ConfigError, require
from uldp.limits import MAX_BATCH, MAX_LOCAL_EPOCHS, check_whole
from uldp.rng import Streams

Vector = npt.NDArray[np.float64]
Rows = npt.NDArray[np.float64] | npt.NDArray[np.float32]

OPTIMIZERS = ("sgd", "adam", "adamw")


@dataclass(frozen=True)
class LocalTraining:
    """How a model is trained inside a silo: Q epochs of mini-batches, each epoch in a new order.

    Args:
        epochs: Q.
        lr: The learning rate.
        batch_size: B.
        optimizer: ``sgd``, ``adam`` or ``adamw``.
        weight_decay: Added to the gradient by SGD and Adam; AdamW shrinks the parameters directly.
        momentum: Of SGD (v <- momentum v + g, no dampening).
        pseudo_count: Above 0, the loss of a class gets the logarithm of its share among the labels of the user (or
            silo) that is trained, each class counted so many times more; 0 for the plain loss.

    Raises:
        ConfigError: A value outside its range.

    Example:
        >>> LocalTraining(optimizer="sgd", momentum=0.9).momentum
        0.9
    """

    epochs: int = 1
    lr: float = 0.01
    batch_size: int = 64
    optimizer: str = "sgd"
    weight_decay: float = 0.0
    momentum: float = 0.0
    pseudo_count: float = 0.0

    def __post_init__(self) -> None:
        check_whole(self.epochs, 1, MAX_LOCAL_EPOCHS, "method.local_epochs")
        require(0 < self.lr < math.inf, "method.local_lr", self.lr, "a positive number")
        check_whole(self.batch_size, 1, MAX_BATCH, "method.batch_size")
        if self.optimizer not in OPTIMIZERS:
            unknown = f"unknown optimizer {self.optimizer!r}. Known: {', '.join(OPTIMIZERS)}"
            raise ConfigError(unknown, location="method.optimizer", value=self.optimizer)
        require(
            0 <= self.weight_decay < math.inf, "method.weight_decay", self.weight_decay, "zero or a positive number"
        )
        require(0 <= self.momentum < 1, "method.momentum", self.momentum, "a number from 0 to below 1")
        require(
            0 <= self.pseudo_count < math.inf, "method.pseudo_count", self.pseudo_count, "zero or a positive number"
        )
        if self.momentum and self.optimizer != "sgd":
            misplaced = f"only for optimizer 'sgd', not {self.optimizer!r}; leave it out"
            raise ConfigError(misplaced, location="method.momentum", value=self.momentum)


class ClippedSums(Protocol):
    """Sums of clipped gradients of some records of a silo, at any model."""

    def __call__(self, x: Vector, records: IntArray, step: int, streams: Streams, /) -> Vector:
        """The sum over the records of their gradients, each clipped. One that is not finite counts as zero.

        A record's gradient depends on x, on that record, on its user and on its position among that user's records.
        """
        ...


class TrainingCosts(Protocol):
    """What a plan needs to know about how records are trained."""

    @property
    def slow(self) -> str:
        """Why training is slow; empty where it is not."""
        ...

    @property
    def layers(self) -> tuple[type, ...]:
        """Third-party code that is run on records."""
        ...


class Learner(Protocol):
    """Trains a model that is given as one flat vector of parameters.

    Randomness is derived from ``streams`` by user, epoch, step and layer. A user's row depends on that user's records,
    on x and on ``streams``, on nothing else, bit for bit.

    Example:
        >>> from torch import nn
        >>> from uldp.data.federation import Task
        >>> from uldp.learners.torch import TorchLearner
        >>> learner = TorchLearner(nn.Linear(3, 1), Task(classes=2))
        >>> silo = SiloData("north", np.ones((3, 3), np.float32), np.array([0, 1, 1]), np.array([0, 2, 2]))
        >>> [(users.tolist(), rows.shape) for users, rows in
        ...  learner.user_gradients(np.zeros(4), silo, Streams.from_seed(0))]
        [([0, 2], (2, 4))]
    """

    @property
    def dimension(self) -> int:
        """d, the number of trainable parameters."""
        ...

    def initial(self, streams: Streams) -> Vector:
        """x_0."""
        ...

    def user_deltas(
        self, x: Vector, data: SiloData, local: LocalTraining, streams: Streams
    ) -> Iterator[tuple[IntArray, Rows]]:
        """For every user with records: (users, rows x_su - x), in blocks; each user occurs once."""
        ...

    def user_gradients(self, x: Vector, data: SiloData, streams: Streams) -> Iterator[tuple[IntArray, Rows]]:
        """For every user with records: (users, rows g_su), the gradient of the mean loss over their records."""
        ...

    def user_moments(self, data: SiloData, centre: Vector | None) -> Iterator[tuple[IntArray, Rows]]:
        """For every user with records: (users, rows) as long as x. A row begins with the means over the user's records
        of each feature and each output (labels, one-hot); with a ``centre``, of their squared differences from it."""
        ...

    def clipped_sums(self, data: SiloData, clip: float) -> ClippedSums:
        """Gradients of single records of ``data``, clipped and added up: what DP-SGD takes in a step."""
        ...

    def silo_delta(self, x: Vector, data: SiloData, local: LocalTraining, streams: Streams) -> Vector:
        """Ordinary local training on all records of the silo: x_s - x (zero for an empty silo)."""
        ...

    def evaluate(self, x: Vector, records: Records) -> Mapping[str, float]:
        """Test metrics by name: loss and accuracy, roc_auc, r2, mae, c_index and others as they apply."""
        ...

    @property
    def mean_metrics(self) -> tuple[tuple[str, float], ...]:
        """Names of metrics that are means over records, each with the factor from its mean to the label's units."""
        ...

    def record_metrics(self, x: Vector, records: Records) -> Vector:
        """Every record's value of each of the :attr:`mean_metrics`, of shape (records, metrics); none is negative."""
        ...

    def predict(self, x: Vector, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Class probabilities (records, classes), predicted labels (records,) in the model's units, or for survival
        the logs of relative risks (records,)."""
        ...


class PlannedLearner(Learner, Protocol):
    """A learner with what the parties of an experiment must agree on before they use it."""

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """How many parameters each of the model's tensors has."""
        ...

    @property
    def linear_outputs(self) -> int:
        """How many outputs the model W f + b has; 0 if it is not of this form."""
        ...

    @property
    def architecture(self) -> str:
        """A digest of what the model consists of."""
        ...

    @property
    def caveat(self) -> str:
        """Why a row may have other bits when it is computed again; empty if it has not."""
        ...

    def training(self, feature_shape: tuple[int, ...]) -> TrainingCosts:
        """How records of this shape are trained."""
        ...
