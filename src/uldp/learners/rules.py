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
from math import prod, sqrt
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from uldp.learners.losses import logistic
from uldp.learners.noise import Noise, Place
from uldp.learners.updates import Update, Weight

Shape = tuple[int, ...]

# The kernels that autograd uses, called by name: one pass instead of several.
_norm_backward: Final[Callable[..., tuple[Tensor, ...]]] = torch.ops.aten.native_layer_norm_backward.default
relu_backward: Final[Callable[[Tensor, Tensor, float], Tensor]] = torch.ops.aten.threshold_backward.default
#: Which gradients the norm's kernel shall return.
_INPUT_ONLY: Final = [True, False, False]
#: Dropout factors are made for several steps at once while they are few.
_FACTORS: Final = 2**17


@dataclass
class Moment:
    """Where training stands: addresses the randomness of this step."""

    noise: Noise
    step: int
    first: int = 0
    ahead: int = 16
    """For how many steps random choices may be made at once: the same users go on that long."""
    by_record: bool = False
    """One user's records have random choices of their own: ``noise`` has a place for each record."""


@dataclass(frozen=True)
class Slot:
    """A part of the flat parameter vector, the view of it that a rule wants, and the shape it computes with."""

    start: int
    size: int
    shape: Shape
    arrange: Callable[[Tensor], Tensor]

    def view(self, x: Tensor) -> Tensor:
        """The slot of the vector x, in the shape that the rule computes with."""
        return self.arrange(x[self.start : self.start + self.size]).reshape(self.shape)

    def load(self, x: Tensor, users: int) -> Tensor:
        """(users, *shape): the slot of the vector x, once for every user."""
        values = self.view(x)
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

    def bind(self, weights: list[Weight]) -> None:  # noqa: B027 (most layers have no weights)
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
                lambda t: t.view(*t.shape[:-1], outputs, inputs).transpose(-1, -2),
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
        below = torch.bmm(g, self._weight.turned) if self.input_gradient else g
        update.product(self._weight, self._x.transpose(1, 2), g)
        if self._bias is not None:
            update.rows(self._bias, g)
        return below


class Relu(Rule):
    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        self._y = x.relu_() if self.in_place else x.relu()
        return self._y

    def backward(self, g: Tensor, update: Update) -> Tensor:
        return relu_backward(g, self._y, 0.0)


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
        self._x = x
        self._phi = (x * sqrt(0.5)).erf_().add_(1.0).mul_(0.5)
        return x * self._phi

    def backward(self, g: Tensor, update: Update) -> Tensor:
        density = (self._x * self._x).mul_(-0.5).exp_().mul_(1.0 / sqrt(2.0 * torch.pi))
        return g * (self._phi + self._x * density)


class Normalize(Rule):
    """LayerNorm over a record's features, and GroupNorm of a table: groups of neighbouring features."""

    fresh = True

    def __init__(self, features: int, groups: int, epsilon: float, starts: list[int]) -> None:
        self._groups, self._size, self._epsilon = groups, features // groups, epsilon
        self.slots = tuple(plain_slot(start, (1, features)) for start in starts)

    def bind(self, weights: list[Weight]) -> None:
        self._scale = weights[0] if weights else None
        self._shift = weights[1] if len(weights) > 1 else None

    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        self._x = x if self._groups == 1 else x.view(*x.shape[:2], self._groups, self._size)
        # torch's own kernel, without scale and shift: those differ between users.
        hat, self._mean, self._rate = torch.native_layer_norm(self._x, [self._size], None, None, self._epsilon)
        self._hat = hat if self._groups == 1 else hat.view(x.shape)
        if self._scale is None:
            return self._hat
        if self._shift is None:
            return self._hat * self._scale.now
        return torch.addcmul(self._shift.now, self._hat, self._scale.now)

    def backward(self, g: Tensor, update: Update) -> Tensor:
        scaled = g
        if self._scale is not None:
            scaled = g * self._scale.now
            if self._shift is not None:
                update.rows(self._shift, g)
            update.rows(self._scale, g.mul_(self._hat))
        if self._groups != 1:
            scaled = scaled.view(self._x.shape)
        below = _norm_backward(scaled, self._x, [self._size], self._mean, self._rate, None, None, _INPUT_ONLY)[0]
        return below if self._groups == 1 else below.view(g.shape)


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
        # A new tensor in any case: for one record, _image is a view of _hat, and the layer above may overwrite ours.
        hat = self._image(self._hat, x.shape)
        if self._scale is None or self._shift is None:
            return hat.clone() if self._scale is None else hat * self._scale.now
        return torch.addcmul(self._shift.now, hat, self._scale.now)

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
        self._made: tuple[int, int, int, Tensor, Noise] | None = None

    def _factors(self, x: Tensor, moment: Moment) -> Tensor:
        """Factors in the shape of x, from a block that covers this step."""
        users, records = x.shape[0], x.shape[3] if x.ndim == 5 else x.shape[1]
        made = self._made
        if (
            made is None
            or made[4] is not moment.noise
            or made[1:3] != (users, moment.first)
            or not made[0] <= moment.step < made[0] + len(made[3])
        ):
            steps = max(1, min(moment.ahead, _FACTORS // (users * records * self._units)))
            dtype = np.float64 if x.dtype == torch.float64 else np.float32
            place = Place(self._layer, range(moment.step, moment.step + steps), moment.first)
            if moment.by_record:
                block = moment.noise.dropout(self._rate, place, (records, 1, self._units), dtype).swapaxes(1, 2)
            else:
                block = moment.noise.dropout(self._rate, place, (users, records, self._units), dtype)
            made = self._made = (moment.step, users, moment.first, torch.from_numpy(block).to(x.device), moment.noise)
        flat = made[3][moment.step - made[0]]
        if x.ndim == 3:
            return flat
        if self._channels_only:
            return flat.transpose(1, 2)[:, :, None, :, None]
        return flat.view(users, records, *self._shape).permute(0, 2, 3, 1, 4)

    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        if not self._rate:
            return x
        self._mask = self._factors(x, moment)
        return x * self._mask

    def backward(self, g: Tensor, update: Update) -> Tensor:
        return g.mul_(self._mask) if self._rate else g


class Flatten(Rule):
    """Images to rows of features, in the order of nn.Flatten."""

    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        self._shape = x.shape
        return x.permute(0, 3, 1, 2, 4).reshape(x.shape[0], x.shape[3], -1)

    def backward(self, g: Tensor, update: Update) -> Tensor:
        users, channels, height, records, width = self._shape
        return g.view(users, records, channels, height, width).permute(0, 2, 3, 1, 4).contiguous()
