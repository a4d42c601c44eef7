"""Batched rules: forward and backward of a layer for many users at once, each user with parameters of their own.

A record's activations are (users, records, features) for tables and (users, channels, height, records, width) for
images: in the latter order the rows of an image that a convolution needs lie next to each other for all records of
a user (see ``rules_conv``). Every rule works user by user in the same way whatever the number of users, so that a
user's result does not depend on who else is in the chunk.

A rule may overwrite what it is given: activations and gradients are never read again by the caller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from uldp.learners.losses import logistic
from uldp.learners.noise import Noise
from uldp.learners.updates import Update, Weight

Shape = tuple[int, ...]


@dataclass
class Moment:
    """Where training stands: addresses the randomness of this step."""

    noise: Noise
    step: int
    first: int = 0


@dataclass(frozen=True)
class Slot:
    """A part of the flat parameter vector, the view of it that a rule wants, and the shape it computes with."""

    start: int
    size: int
    shape: Shape
    arrange: Callable[[Tensor], Tensor]

    def load(self, x: Tensor, users: int) -> Tensor:
        """(users, *shape): the slot of the vector x, once for every user."""
        values = self.arrange(x[self.start : self.start + self.size]).reshape(self.shape)
        # A copy in any case: for one user, contiguous() would be x itself.
        return values.expand(users, *self.shape).clone(memory_format=torch.contiguous_format)

    def store(self, values: Tensor, rows: Tensor) -> None:
        """Write (users, *shape) to its place in rows (users, d)."""
        view = self.arrange(rows[:, self.start : self.start + self.size])
        view.copy_(values.reshape(view.shape))


def plain_slot(start: int, shape: Shape) -> Slot:
    """A slot that is used in the order in which it lies in the vector."""
    return Slot(start, prod(shape), shape, lambda t: t)


class Rule(ABC):
    """One layer.

    ``input_gradient`` is False for the first layer with parameters: nobody asks for it there. ``fresh`` says that
    the layer does not need its result again, ``in_place`` that the layer below is such a one.
    """

    fresh = False
    in_place = False
    input_gradient = True
    slots: tuple[Slot, ...] = ()

    def bind(self, weights: list[Weight]) -> None:
        """Use these weights, one per slot."""

    def prepare(self, x: Tensor) -> Tensor:
        """What can be done once for records that come in every epoch. Called for the first layer only."""
        return x

    @abstractmethod
    def forward(self, x: Tensor, moment: Moment) -> Tensor: ...

    @abstractmethod
    def backward(self, g: Tensor, update: Update) -> Tensor:
        """The gradient with respect to the input; the layer's own parameters make their step."""


class Linear(Rule):
    """Weights are kept as (users, inputs, outputs): the forward product needs no transposition then."""

    fresh = True

    def __init__(self, layer: nn.Linear, starts: list[int]) -> None:
        inputs, outputs = layer.in_features, layer.out_features
        self.slots = (
            Slot(
                starts[0],
                inputs * outputs,
                (inputs, outputs),
                lambda t: t.unflatten(-1, (outputs, inputs)).transpose(-1, -2),
            ),
        )
        if layer.bias is not None:
            self.slots += (plain_slot(starts[1], (1, outputs)),)

    def bind(self, weights: list[Weight]) -> None:
        self._weight = weights[0]
        self._bias = weights[1] if len(weights) > 1 else None

    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        self._x = x
        if self._bias is None:
            return torch.bmm(x, self._weight.now)
        return torch.baddbmm(self._bias.now, x, self._weight.now)

    def backward(self, g: Tensor, update: Update) -> Tensor:
        below = torch.bmm(g, self._weight.now.transpose(1, 2)) if self.input_gradient else g
        update.product(self._weight, self._x.transpose(1, 2), g)
        if self._bias is not None:
            update.dense(self._bias, g.sum(1, keepdim=True))
        return below


class Relu(Rule):
    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        self._y = x.relu_() if self.in_place else x.relu()
        return self._y

    def backward(self, g: Tensor, update: Update) -> Tensor:
        return torch.ops.aten.threshold_backward(g, self._y, 0.0)  # type: ignore[no-any-return]


class LeakyRelu(Rule):
    def __init__(self, slope: float) -> None:
        self._slope = slope

    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        self._positive = x > 0
        return torch.where(self._positive, x, x * self._slope)

    def backward(self, g: Tensor, update: Update) -> Tensor:
        return torch.where(self._positive, g, g * self._slope)


class Tanh(Rule):
    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        self._y = x.tanh_() if self.in_place else x.tanh()
        return self._y

    def backward(self, g: Tensor, update: Update) -> Tensor:
        return g * (1.0 - self._y * self._y)


class Sigmoid(Rule):
    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        self._y = logistic(x)
        return self._y

    def backward(self, g: Tensor, update: Update) -> Tensor:
        return g * (self._y * (1.0 - self._y))


class Silu(Rule):
    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        self._x, self._s = x, logistic(x)
        return x * self._s

    def backward(self, g: Tensor, update: Update) -> Tensor:
        return g * (self._s * (1.0 + self._x * (1.0 - self._s)))


class Gelu(Rule):
    """x Phi(x), written with erf for the reason given in ``losses.logistic``."""

    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        self._x, self._phi = x, (x * 0.5**0.5).erf_().add_(1.0).mul_(0.5)
        return x * self._phi

    def backward(self, g: Tensor, update: Update) -> Tensor:
        density = (self._x * self._x).mul_(-0.5).exp_().mul_(1.0 / (2.0 * torch.pi) ** 0.5)
        return g * (self._phi + self._x * density)


class Normalize(Rule):
    """LayerNorm over a record's features, and GroupNorm of a table: groups of neighbouring features."""

    fresh = True

    def __init__(self, features: int, groups: int, epsilon: float, starts: list[int]) -> None:
        self._features, self._groups, self._epsilon = features, groups, epsilon
        self.slots = tuple(plain_slot(start, (1, features)) for start in starts)

    def bind(self, weights: list[Weight]) -> None:
        self._scale = weights[0] if weights else None
        self._shift = weights[1] if len(weights) > 1 else None

    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        parts = x.view(*x.shape[:2], self._groups, -1)
        size = parts.shape[-1]
        centred = parts - parts.sum(-1, keepdim=True).div_(size)
        self._rate = centred.square().sum(-1, keepdim=True).div_(size).add_(self._epsilon).rsqrt_()
        self._hat = centred.mul_(self._rate).view_as(x)
        if self._scale is None:
            return self._hat.clone()
        y = self._hat * self._scale.now
        return y if self._shift is None else y.add_(self._shift.now)

    def backward(self, g: Tensor, update: Update) -> Tensor:
        hat = self._hat
        if self._scale is not None:
            scaled = g * self._scale.now
            if self._shift is not None:
                update.dense(self._shift, g.sum(1, keepdim=True))
            update.dense(self._scale, g.mul_(hat).sum(1, keepdim=True))
            g = scaled
        parts = g.view(*g.shape[:2], self._groups, -1)
        hats = hat.view_as(parts)
        size = parts.shape[-1]
        along = (parts * hats).sum(-1, keepdim=True).div_(-size)
        parts = parts - parts.sum(-1, keepdim=True).div_(size)
        return parts.add_(hats.mul_(along)).mul_(self._rate).view_as(g)


class ImageNorm(Rule):
    """GroupNorm of images: over the pixels of a group of channels of one record."""

    fresh = True

    def __init__(self, channels: int, groups: int, epsilon: float, starts: list[int]) -> None:
        self._groups, self._epsilon = groups, epsilon
        self.slots = tuple(plain_slot(start, (channels, 1, 1, 1)) for start in starts)

    def bind(self, weights: list[Weight]) -> None:
        self._scale = weights[0] if weights else None
        self._shift = weights[1] if len(weights) > 1 else None

    def _parts(self, x: Tensor) -> Tensor:
        """(users, records, groups, channels of the group x pixels)."""
        return x.permute(0, 3, 1, 2, 4).reshape(x.shape[0], x.shape[3], self._groups, -1)

    def _image(self, parts: Tensor, shape: torch.Size) -> Tensor:
        users, channels, height, records, width = shape
        return parts.view(users, records, channels, height, width).permute(0, 2, 3, 1, 4).contiguous()

    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        parts = self._parts(x)
        size = parts.shape[-1]
        centred = parts - parts.sum(-1, keepdim=True).div_(size)
        self._rate = centred.square().sum(-1, keepdim=True).div_(size).add_(self._epsilon).rsqrt_()
        self._hat = centred.mul_(self._rate)
        y = self._image(self._hat, x.shape)
        if self._scale is not None:
            y.mul_(self._scale.now)
        return y if self._shift is None else y.add_(self._shift.now)

    def backward(self, g: Tensor, update: Update) -> Tensor:
        if self._scale is not None:
            scaled = g * self._scale.now
            if self._shift is not None:
                update.dense(self._shift, g.sum((2, 3, 4), keepdim=True))
            update.dense(self._scale, g.mul_(self._image(self._hat, g.shape)).sum((2, 3, 4), keepdim=True))
            g = scaled
        parts = self._parts(g)
        size = parts.shape[-1]
        along = (parts * self._hat).sum(-1, keepdim=True).div_(-size)
        parts = parts - parts.sum(-1, keepdim=True).div_(size)
        return self._image(parts.add_(self._hat.mul_(along)).mul_(self._rate), g.shape)


class Dropout(Rule):
    """Every unit of every record falls out on its own; for Dropout2d, every channel does."""

    def __init__(self, rate: float, layer: int, shape: Shape, channels_only: bool) -> None:
        self._rate, self._layer, self._shape, self._channels_only = rate, layer, shape, channels_only
        self._units = shape[0] if channels_only else prod(shape)

    def _factors(self, x: Tensor, moment: Moment) -> Tensor:
        records = x.shape[3] if x.ndim == 5 else x.shape[1]
        dtype = np.float64 if x.dtype == torch.float64 else np.float32
        flat = torch.from_numpy(
            moment.noise.dropout(
                self._rate, self._layer, moment.step, moment.first, (x.shape[0], records, self._units), dtype
            )
        ).to(x.device)
        if x.ndim == 3:
            return flat
        if self._channels_only:
            return flat.transpose(1, 2)[:, :, None, :, None]
        return flat.unflatten(2, self._shape).permute(0, 2, 3, 1, 4)

    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        if self._rate > 0:
            self._mask = self._factors(x, moment)
            x = x * self._mask
        return x

    def backward(self, g: Tensor, update: Update) -> Tensor:
        return g.mul_(self._mask) if self._rate > 0 else g


class Flatten(Rule):
    """Images to rows of features, in the order of nn.Flatten."""

    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        self._shape = x.shape
        return x.permute(0, 3, 1, 2, 4).reshape(x.shape[0], x.shape[3], -1)

    def backward(self, g: Tensor, update: Update) -> Tensor:
        users, channels, height, records, width = self._shape
        return g.view(users, records, channels, height, width).permute(0, 2, 3, 1, 4).contiguous()
