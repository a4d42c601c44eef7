"""Train one user after the other by autograd: for models with layers that have no kernel, and for other devices.

A call sees the records of one user, so that user's row depends on nobody else's. It is slow.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from uldp.errors import UldpError
from uldp.learners.base import LocalTraining, Rows, Vector
from uldp.learners.losses import Loss, adjusted
from uldp.learners.randomness import Place, TrainingRandomness
from uldp.learners.seeding import seed_cpu
from uldp.vectors import clip_rows

#: How many records of one user are differentiated at once, which bounds the memory.
_PART = 256


class Loop:
    """Trains copies of ``module``. Dropout masks come from :class:`TrainingRandomness`; other random layers draw from
    torch's generator, which is seeded by user and step."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        self._here = DropoutAddress()
        # A copy: its dropout layers are replaced, and its parameters move.
        self._module = address_dropout(copy.deepcopy(module).train(), self._here)
        self._parameters = [p for p in self._module.parameters() if p.requires_grad]
        self._loss = loss

    def delta(
        self, x: Tensor, features: Tensor, labels: Tensor, local: LocalTraining, randomness: TrainingRandomness
    ) -> Rows:
        """x_u - x after Q epochs over these records of one user."""
        self._load(x)
        optimizer = _optimizer(self._parameters, local)
        loss = adjusted(self._loss, labels, local.pseudo_count) if local.pseudo_count else self._loss
        for step, batch in enumerate(batches(len(labels), local, randomness)):
            self._differentiate(features[batch], labels[batch], randomness, step, 0, loss)
            optimizer.step()
        return (self._flat([p.detach() for p in self._parameters]) - x).cpu().numpy()

    def gradient(
        self, x: Tensor, features: Tensor, labels: Tensor, randomness: TrainingRandomness, step: int = 0
    ) -> Rows:
        """The gradient of the mean loss over these records of one user."""
        self._load(x)
        count = len(labels)
        size = _PART if self._loss.additive else count
        total = torch.zeros_like(x)
        for first in range(0, count, size):
            part = slice(first, min(first + size, count))
            self._differentiate(features[part], labels[part], randomness, step, first, self._loss)
            gradients = [p.grad for p in self._parameters if p.grad is not None]
            total += self._flat(gradients) * (len(labels[part]) / count)
        return total.cpu().numpy()

    def _load(self, x: Tensor) -> None:
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(x.clone(), self._parameters)

    def _flat(self, tensors: list[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])

    def _differentiate(
        self,
        features: Tensor,
        labels: Tensor,
        randomness: TrainingRandomness,
        step: int,
        first: int,
        loss_of: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        """Leave the gradient in the parameters: zero in those that the loss does not depend on."""
        self._here.set(randomness, step, first)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            seed_cpu(randomness.seed(0, step) ^ first)
            loss = loss_of(self._module(features), labels)
            gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = torch.zeros_like(parameter) if gradient is None else gradient

    def clipped_sum(
        self, x: Tensor, features: Tensor, labels: Tensor, clip: float, step: int, randomness: TrainingRandomness
    ) -> Vector:
        """The sum of single records' clipped gradients; one that is not finite, or that raises, counts as zero.

        ``randomness`` has an entry for each record.
        """
        total = np.zeros(x.numel())
        for i in range(len(labels)):
            try:
                row = self.gradient(x, features[i : i + 1], labels[i : i + 1], randomness.of(i), step)
            except (MemoryError, UldpError):
                raise
            except Exception:  # an error would reveal something about the record
                continue
            if np.isfinite(row).all():
                total += clip_rows(row[None], clip)[0]
        return total


def _optimizer(parameters: list[nn.Parameter], local: LocalTraining) -> torch.optim.Optimizer:
    if local.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=local.lr, momentum=local.momentum, weight_decay=local.weight_decay)
    kind = torch.optim.Adam if local.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=local.lr, weight_decay=local.weight_decay)


def batches(count: int, local: LocalTraining, randomness: TrainingRandomness) -> Iterator[Tensor]:
    """The records of every step; a user with several batches has a new order in every epoch."""
    order = np.arange(count)
    for epoch in range(local.epochs):
        if count > local.batch_size:
            order = randomness.orders(np.array([0]), np.array([epoch]), np.array([count]))[0]
        for first in range(0, count, local.batch_size):
            yield torch.from_numpy(order[first : first + local.batch_size])


class DropoutAddress:
    """Whose turn it is, filled in before every call of the module; ``calls`` counts the uses of a layer within it."""

    def __init__(self) -> None:
        self.randomness: TrainingRandomness | None = None
        self.step = 0
        self.first = 0
        self.calls: Counter[int] = Counter()

    def set(self, randomness: TrainingRandomness, step: int, first: int) -> None:
        """The next call is for the first user of ``randomness``."""
        self.randomness, self.step, self.first = randomness, step, first
        self.calls.clear()


class AddressedDropout(nn.Module):
    """Dropout whose choices come from a :class:`TrainingRandomness` instead of torch's generator."""

    def __init__(self, rate: float, layer: int, channels_only: bool, here: DropoutAddress) -> None:
        super().__init__()
        self._rate, self._layer, self._channels_only, self._here = rate, layer, channels_only, here

    def forward(self, x: Tensor) -> Tensor:
        here = self._here
        if not self._rate or here.randomness is None:
            return x
        layer = self._layer + (here.calls[self._layer] << 16)
        here.calls[self._layer] += 1
        location = Place(layer, range(here.step, here.step + 1), here.first)
        shape = (1, len(x), x.shape[1] if self._channels_only else x[0].numel())
        dtype = np.float64 if x.dtype == torch.float64 else np.float32
        mask = torch.from_numpy(here.randomness.dropout(self._rate, location, shape, dtype)[0, 0])
        mask = mask.to(x.device)
        return x * (mask[:, :, None, None] if self._channels_only else mask.view_as(x))


def address_dropout(module: nn.Module, here: DropoutAddress) -> nn.Module:
    """The module with its dropout layers replaced, numbered in the order of ``modules()``."""
    found = [m for m in module.modules() if type(m) in (nn.Dropout, nn.Dropout2d)]
    numbers = {id(dropout): number for number, dropout in enumerate(found)}
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Dropout | nn.Dropout2d) and id(child) in numbers:
                channels_only = type(child) is nn.Dropout2d
                setattr(parent, name, AddressedDropout(child.p, numbers[id(child)], channels_only, here))
    return module
