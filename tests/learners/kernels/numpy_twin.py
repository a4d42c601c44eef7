"""Plain numpy twins of all kernels: the formulas in float64, records first, images as (channels, height, width).

Nothing here knows of torch but :func:`mirror`, which reads sizes and parameters from modules. A layer has ``forward``
and ``backward``; the latter returns the gradient of the input and leaves those of the parameters in ``gradients``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from uldp.learners.blocks import Embedding, Residual

_WORD = 2**64 - 1


@dataclass
class Call:
    """What a call of the whole net knows besides its input: dropout's key and step, and how many dropouts came."""

    key: int = 0
    step: int = 0
    training: bool = True
    dropouts: int = 0


@dataclass
class Layer:
    parameters: list[np.ndarray] = field(default_factory=list)
    gradients: list[np.ndarray] = field(default_factory=list)


class Flat(Layer):
    def forward(self, x, call):
        self.shape = x.shape
        return x.reshape(len(x), -1)

    def backward(self, g):
        return g.reshape(self.shape)


class Dense(Layer):
    def forward(self, x, call):
        self.x = x
        y = np.zeros((len(x), len(self.parameters[0])))
        for r in range(len(x)):
            for o, row in enumerate(self.parameters[0]):
                y[r, o] = np.sum(row * x[r]) + (self.parameters[1][o] if len(self.parameters) > 1 else 0.0)
        return y

    def backward(self, g):
        weights = np.zeros_like(self.parameters[0])
        for r in range(len(g)):
            weights += np.outer(g[r], self.x[r])
        self.gradients = [weights, g.sum(0)][: len(self.parameters)]
        return np.stack([(self.parameters[0] * row[:, None]).sum(0) for row in g])


@dataclass
class Convolution(Layer):
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    def windows(self, padded, height, width):
        (sh, sw), (kh, kw) = self.stride, self.parameters[0].shape[2:]
        for i in range(height):
            for j in range(width):
                yield i, j, (slice(None), slice(None), slice(i * sh, i * sh + kh), slice(j * sw, j * sw + kw))

    def forward(self, x, call):
        weights, (sh, sw), (ph, pw) = self.parameters[0], self.stride, self.padding
        self.padded = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
        height = (self.padded.shape[2] - weights.shape[2]) // sh + 1
        width = (self.padded.shape[3] - weights.shape[3]) // sw + 1
        y = np.zeros((len(x), len(weights), height, width))
        for i, j, window in self.windows(self.padded, height, width):
            for o, kernel in enumerate(weights):
                y[:, o, i, j] = (self.padded[window] * kernel).sum((1, 2, 3))
        return y + (self.parameters[1][:, None, None] if len(self.parameters) > 1 else 0.0)

    def backward(self, g):
        weights, back = np.zeros_like(self.parameters[0]), np.zeros_like(self.padded)
        for i, j, window in self.windows(self.padded, *g.shape[2:]):
            for o, kernel in enumerate(self.parameters[0]):
                share = g[:, o, i, j][:, None, None, None]
                weights[o] += (self.padded[window] * share).sum(0)
                back[window] += share * kernel
        self.gradients = [weights, g.sum((0, 2, 3))][: len(self.parameters)]
        (ph, pw), (_, _, height, width) = self.padding, back.shape
        return back[:, :, ph : height - ph, pw : width - pw]


@dataclass
class Pool(Layer):
    """Windows as (rows, columns, divisor); a maximum goes to the first of equals."""

    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    ceil: bool = False
    largest: bool = True
    count_border: bool = False

    def starts(self, size, axis):
        """Where windows begin: another one while something is left, a whole window of it unless ``ceil``."""
        k, s, p = self.kernel[axis], self.stride[axis], self.padding[axis]
        found = [-p]
        while found[-1] + (k if self.ceil else k + s - 1) < size + p and found[-1] + s < size:
            found.append(found[-1] + s)
        return found

    def windows(self):
        _, _, height, width = self.shape
        for i, top in enumerate(self.starts(height, 0)):
            for j, left in enumerate(self.starts(width, 1)):
                bottom, right = top + self.kernel[0], left + self.kernel[1]
                rows, columns = range(max(top, 0), min(bottom, height)), range(max(left, 0), min(right, width))
                size = len(rows) * len(columns)
                if self.count_border:
                    size = (min(bottom, height + self.padding[0]) - top) * (min(right, width + self.padding[1]) - left)
                yield i, j, [(a, b) for a in rows for b in columns], size

    def forward(self, x, call):
        self.shape, self.x = x.shape, x
        y = np.zeros((*x.shape[:2], len(self.starts(x.shape[2], 0)), len(self.starts(x.shape[3], 1))))
        for i, j, pixels, size in self.windows():
            values = np.stack([x[:, :, a, b] for a, b in pixels])
            y[:, :, i, j] = values.max(0) if self.largest else values.sum(0) / size
        return y

    def backward(self, g):
        back = np.zeros(self.shape)
        for i, j, pixels, size in self.windows():
            chosen = np.stack([self.x[:, :, a, b] for a, b in pixels]).argmax(0)
            for number, (a, b) in enumerate(pixels):
                back[:, :, a, b] += g[:, :, i, j] * (chosen == number if self.largest else 1 / size)
        return back


@dataclass
class Norm(Layer):
    """Layer norm is a group norm of one group; parameters belong to channels."""

    groups: int = 1
    epsilon: float = 1e-5

    def _each(self, values, x):
        return values.reshape(1, -1, *[1] * (x.ndim - 2))

    def forward(self, x, call):
        grouped = x.reshape(len(x), self.groups, -1)
        self.rate = 1 / np.sqrt(grouped.var(2, keepdims=True) + self.epsilon)
        self.hat = ((grouped - grouped.mean(2, keepdims=True)) * self.rate).reshape(x.shape)
        y = self.hat
        for parameter, step in zip(self.parameters, (np.multiply, np.add), strict=False):
            y = step(y, self._each(parameter, x))
        return y

    def backward(self, g):
        others = (0, *range(2, g.ndim))
        self.gradients = [(g * self.hat).sum(others), g.sum(others)][: len(self.parameters)]
        h = (g * self._each(self.parameters[0], g) if self.parameters else g).reshape(len(g), self.groups, -1)
        hat = self.hat.reshape(h.shape)
        back = h - h.mean(2, keepdims=True) - hat * (h * hat).mean(2, keepdims=True)
        return (self.rate * back).reshape(g.shape)


def _normal(x):
    return np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2)))(x)


def _logistic(x):
    return 1 / (1 + np.exp(-x))


#: f and f'
ACTIVATIONS = {
    nn.ReLU: (lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
    nn.LeakyReLU: (lambda x: np.where(x > 0, x, 0.01 * x), lambda x: np.where(x > 0, 1.0, 0.01)),
    nn.Tanh: (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    nn.Sigmoid: (_logistic, lambda x: _logistic(x) * (1 - _logistic(x))),
    nn.SiLU: (lambda x: x * _logistic(x), lambda x: _logistic(x) * (1 + x * (1 - _logistic(x)))),
    nn.GELU: (
        lambda x: x * _normal(x),
        lambda x: _normal(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    ),
}


@dataclass
class Activation(Layer):
    kind: type = nn.ReLU

    def forward(self, x, call):
        self.x = x
        return ACTIVATIONS[self.kind][0](x)

    def backward(self, g):
        return g * ACTIVATIONS[self.kind][1](self.x)


def _mix(z):
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & _WORD
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & _WORD
    return z ^ z >> 31


def _counter(number):
    return (number + 1) * 0x9E3779B97F4A7C15 & _WORD


def unit_word(key, step, layer, position, unit):
    """The 16 bits that decide whether a unit stays."""
    row = _mix((key + step * 0xD1B54A32D192ED03 + layer * 0xABC98388FB8FAC03) & _WORD)
    row = _mix((row + _counter(position)) & _WORD)
    bits = (row + _counter(unit // 2)) % 2**32
    bits = (bits ^ bits >> 16) * 0x21F0AAAD % 2**32 ^ row >> 32
    bits = (bits ^ bits >> 15) * 0xD35A2D97 % 2**32
    return (bits ^ bits >> 15) >> 16 * (unit % 2) & 0xFFFF


@dataclass
class Dropout(Layer):
    rate: float = 0.0
    channels_only: bool = False

    def forward(self, x, call):
        layer, call.dropouts = call.dropouts, call.dropouts + 1
        self.mask = np.ones_like(x)
        if not call.training:
            return x
        for r, record in enumerate(x):
            units = len(record) if self.channels_only else record.size
            words = np.array([unit_word(call.key, call.step, layer, r, unit) for unit in range(units)])
            stays = (words < round((1 - self.rate) * 65536)) / (1 - self.rate)
            self.mask[r] = stays[:, None, None] if self.channels_only else stays.reshape(record.shape)
        return x * self.mask

    def backward(self, g):
        return g * self.mask


@dataclass
class Table(Layer):
    columns: int | None = None

    def forward(self, x, call):
        self.x, table = x, self.parameters[0]
        count = x.shape[1] if self.columns is None else self.columns
        self.count, parts = count, []
        for record in x:
            rows = [table[int(v)] if 0 <= v < len(table) else np.zeros(table.shape[1]) for v in record[:count]]
            parts.append(np.concatenate([*rows, record[count:]]))
        return np.stack(parts)

    def backward(self, g):
        gradient, width = np.zeros_like(self.parameters[0]), self.parameters[0].shape[1]
        for r, record in enumerate(self.x):
            for k, v in enumerate(record[: self.count]):
                if 0 <= v < len(gradient):
                    gradient[int(v)] += g[r, k * width : (k + 1) * width]
        self.gradients = [gradient]
        return np.zeros_like(self.x)


class Net(Layer):
    """Layers one after the other."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x, call):
        for layer in self.layers:
            x = layer.forward(x, call)
        return x

    def backward(self, g):
        for layer in reversed(self.layers):
            g = layer.backward(g)
        self.parameters = [p for layer in self.layers for p in layer.parameters]
        self.gradients = [p for layer in self.layers for p in layer.gradients]
        return g


class Shortcut(Net):
    def forward(self, x, call):
        return x + super().forward(x, call)

    def backward(self, g):
        return g + super().backward(g)


def _two(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def mirror(module):
    """The numpy twin of a module, with its parameters."""
    parameters = [p.detach().double().numpy() for p in module.parameters()]
    match module:
        case nn.Sequential():
            return Net([mirror(child) for child in module])
        case Residual():
            return Shortcut([mirror(module.f)])
        case nn.Identity():
            return Net([])
        case nn.Flatten():
            return Flat()
        case nn.Linear():
            return Dense(parameters)
        case nn.Conv2d():
            return Convolution(parameters, stride=module.stride, padding=module.padding)
        case nn.LayerNorm():
            return Norm(parameters, epsilon=module.eps)
        case nn.GroupNorm():
            return Norm(parameters, groups=module.num_groups, epsilon=module.eps)
        case nn.Dropout() | nn.Dropout2d():
            return Dropout(rate=module.p, channels_only=isinstance(module, nn.Dropout2d))
        case Embedding():
            return Table(parameters, columns=module.columns)
        case nn.MaxPool2d() | nn.AvgPool2d():
            sizes = [_two(value) for value in (module.kernel_size, module.stride, module.padding)]
            border = not isinstance(module, nn.MaxPool2d) and module.count_include_pad
            return Pool([], [], *sizes, module.ceil_mode, isinstance(module, nn.MaxPool2d), border)
    return Activation(kind=type(module))


# --- losses: the gradient at the outputs of the mean over records ---------------------------------------------------


def cross_entropy(z, labels):
    powers = np.exp(z - z.max(1, keepdims=True))
    return (powers / powers.sum(1, keepdims=True) - np.eye(z.shape[1])[labels.astype(int)]) / len(z)


def logistic(z, labels):
    return (_logistic(z) - labels[:, None]) / len(z)


def squared(z, labels):
    return 2 * (z - labels[:, None]) / len(z)


def cox(z, labels):
    """Of the mean over events i of log(sum of exp(z_j) over j with T_j >= T_i) - z_i."""
    gradient, events = np.zeros(len(z)), [i for i in range(len(z)) if labels[i] > 0]
    for i in events:
        risk = [j for j in range(len(z)) if abs(labels[j]) >= labels[i]]
        total = sum(math.exp(z[j, 0]) for j in risk)
        for j in risk:
            gradient[j] += math.exp(z[j, 0]) / total / len(events)
        gradient[i] -= 1 / len(events)
    return gradient[:, None]


LOSSES = {
    "cross-entropy": cross_entropy,
    "binary cross-entropy": logistic,
    "squared error": squared,
    "Cox partial likelihood": cox,
}


# --- optimisers: steps on a flat vector -----------------------------------------------------------------------------


def optimise(x, gradient_at, steps, local):
    """x after so many steps."""
    velocity, mean, square = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    for step in range(1, steps + 1):
        g = gradient_at(x, step - 1)
        if local.optimizer == "sgd":
            velocity = local.momentum * velocity + g + local.weight_decay * x
            x = x - local.lr * velocity
            continue
        if local.optimizer == "adamw":
            x = x - local.lr * local.weight_decay * x
        else:
            g = g + local.weight_decay * x
        mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g * g
        x = x - local.lr * mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    return x
