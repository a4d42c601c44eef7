"""Optimisers for many users at once: each weight is one tensor (users, ...), each user has a state of their own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from uldp.learners.base import LocalTraining


class Weight:
    """One parameter of many users. ``now`` is the part of the users that are still training: always a prefix.

    ``turned`` is the same with its matrices transposed (a view).
    """

    def __init__(self, full: Tensor) -> None:
        self.full = full
        self.now = full
        self.turned = full.mT if full.ndim == 3 else full
        self._states: list[Tensor] = []
        self.states: list[Tensor] = []

    def focus(self, active: int) -> None:
        """Let only the first ``active`` users move from here on."""
        self.now = self.full[:active]
        self.turned = self.now.mT if self.now.ndim == 3 else self.now
        self.states = [state[:active] for state in self._states]

    def add_states(self, count: int) -> list[Tensor]:
        """Give the weight ``count`` zeroed tensors of its own shape, once."""
        if not self._states:
            self._states = [torch.zeros_like(self.full) for _ in range(count)]
            self.states = [state[: len(self.now)] for state in self._states]
        return self.states


class Update(Protocol):
    """What is done with a gradient. ``product`` takes it as a batched product a @ b that need not be formed."""

    def begin(self, step: int) -> None:
        """A new step begins; steps count from 0."""
        ...

    def product(self, weight: Weight, a: Tensor, b: Tensor) -> None: ...

    def rows(self, weight: Weight, gradients: Tensor) -> None:
        """The gradient is the sum over the records of (users, records, features)."""
        ...

    def dense(self, weight: Weight, gradient: Tensor) -> None: ...


def over_records(g: Tensor) -> Tensor:
    """(users, 1, features): the sum over the records of (users, records, features)."""
    return g if g.shape[1] == 1 else g.sum(1, keepdim=True)


class _Summing(ABC):
    """An update that does not care which record a gradient came from."""

    @abstractmethod
    def dense(self, weight: Weight, gradient: Tensor) -> None: ...

    def rows(self, weight: Weight, gradients: Tensor) -> None:
        self.dense(weight, over_records(gradients))


class Sgd(_Summing):
    """p <- p - lr (g + decay p), as torch.optim.SGD."""

    def __init__(self, lr: float, decay: float) -> None:
        self._lr = lr
        self._keep = 1.0 - lr * decay

    def begin(self, step: int) -> None:
        pass

    def product(self, weight: Weight, a: Tensor, b: Tensor) -> None:
        weight.now.baddbmm_(a, b, beta=self._keep, alpha=-self._lr)

    def dense(self, weight: Weight, gradient: Tensor) -> None:
        if self._keep != 1.0:
            weight.now.mul_(self._keep)
        weight.now.add_(gradient, alpha=-self._lr)


class Adam(_Summing):
    """As torch.optim.Adam with its default constants; the decay is added to the gradient."""

    BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

    def __init__(self, lr: float, decay: float) -> None:
        self._lr = lr
        self._decay = decay
        self._size = lr
        self._root = 1.0

    def begin(self, step: int) -> None:
        self._size = self._lr / (1.0 - self.BETA1 ** (step + 1))
        self._root = math.sqrt(1.0 - self.BETA2 ** (step + 1))

    def product(self, weight: Weight, a: Tensor, b: Tensor) -> None:
        self.dense(weight, torch.bmm(a, b))

    def dense(self, weight: Weight, gradient: Tensor) -> None:
        mean, square = weight.add_states(2)
        if self._decay:
            gradient = gradient.add(weight.now, alpha=self._decay)
        mean.lerp_(gradient, 1.0 - self.BETA1)
        square.mul_(self.BETA2).addcmul_(gradient, gradient, value=1.0 - self.BETA2)
        weight.now.addcdiv_(mean, square.sqrt().div_(self._root).add_(self.EPSILON), value=-self._size)


class Accumulate(_Summing):
    """No step at all: the gradients are summed up and the parameters stay."""

    def begin(self, step: int) -> None:
        pass

    def product(self, weight: Weight, a: Tensor, b: Tensor) -> None:
        weight.add_states(1)[0].baddbmm_(a, b)

    def dense(self, weight: Weight, gradient: Tensor) -> None:
        weight.add_states(1)[0].add_(gradient)


def choose_update(local: LocalTraining) -> Update:
    """The optimiser that ``local`` names."""
    kinds: dict[str, Callable[[float, float], Update]] = {"sgd": Sgd, "adam": Adam}
    return kinds[local.optimizer](local.lr, local.weight_decay)
