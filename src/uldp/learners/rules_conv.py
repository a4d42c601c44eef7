"""Batched rules for convolution and pooling. Images are (users, channels, height, records, width).

In this order a convolution with stride 1 is a sum over kernel rows of one batched product each: with the image
unrolled along its width only, the image rows that belong to kernel row k are one contiguous range of columns for all
records of a user, k rows further down. That copies a kernel's height less than full unrolling.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from uldp.learners.rules import Moment, Rule, Slot, plain_slot, relu_backward
from uldp.learners.updates import Update, Weight


class _Conv(Rule):
    """What both ways of convolving share: padding, bias, sizes."""

    fresh = True

    def __init__(self, layer: nn.Conv2d, starts: list[int]) -> None:
        assert isinstance(layer.padding, tuple)
        self._kernel = (layer.kernel_size[0], layer.kernel_size[1])
        self._stride = (layer.stride[0], layer.stride[1])
        self._padding = (layer.padding[0], layer.padding[1])
        self._bias: Weight | None = None
        outputs = layer.out_channels
        self._bias_slot = (plain_slot(starts[1], (outputs, 1)),) if layer.bias is not None else ()

    def _pad(self, x: Tensor) -> Tensor:
        down, right = self._padding
        return functional.pad(x, (right, right, 0, 0, down, down)) if down or right else x

    def _crop(self, g: Tensor) -> Tensor:
        down, right = self._padding
        if not (down or right):
            return g
        return g[:, :, down : g.shape[2] - down, :, right : g.shape[4] - right].contiguous()


class ConvPatches(_Conv):
    """Full unrolling, one product. For the first layer (its patches are made once) and for strides."""

    def __init__(self, layer: nn.Conv2d, starts: list[int]) -> None:
        super().__init__(layer, starts)
        outputs, size = layer.out_channels, layer.weight[0].numel()
        self.slots = (plain_slot(starts[0], (outputs, size)), *self._bias_slot)

    def bind(self, weights: list[Weight]) -> None:
        self._weight = weights[0]
        self._bias = weights[1] if len(weights) > 1 else None

    def prepare(self, x: Tensor) -> Tensor:
        """(users, channels, kernel height, kernel width, height, records, width) of the result's pixels."""
        (kh, kw), (sh, sw) = self._kernel, self._stride
        padded = self._pad(x)
        self._input_shape = padded.shape
        return padded.unfold(2, kh, sh).unfold(4, kw, sw).permute(0, 1, 5, 6, 2, 3, 4).contiguous()

    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        if x.ndim == 5:
            x = self.prepare(x)
        self._patch_shape = x.shape
        self._patches = x.view(x.shape[0], prod(x.shape[1:4]), -1)
        return self._apply().view(x.shape[0], -1, *x.shape[4:])

    def _apply(self) -> Tensor:
        """(users, outputs, pixels)."""
        if self._bias is None:
            return torch.bmm(self._weight.now, self._patches)
        return torch.baddbmm(self._bias.now, self._weight.now, self._patches)

    def backward(self, g: Tensor, update: Update) -> Tensor:
        flat = g.reshape(g.shape[0], g.shape[1], -1)
        below = self._fold(flat) if self.input_gradient else g
        self._learn(flat, update)
        return below

    def _learn(self, flat: Tensor, update: Update) -> None:
        update.product(self._weight, flat, self._patches.transpose(1, 2))
        if self._bias is not None:
            update.dense(self._bias, flat.sum(2, keepdim=True))

    def _fold(self, flat: Tensor) -> Tensor:
        """Every patch's gradient back to the pixels it came from."""
        patches = torch.bmm(self._weight.turned, flat).view(self._patch_shape)
        (kh, kw), (sh, sw) = self._kernel, self._stride
        rows, columns = self._patch_shape[4], self._patch_shape[6]
        below = flat.new_zeros(self._input_shape)
        for i in range(kh):
            for j in range(kw):
                below[:, :, i : i + sh * rows : sh, :, j : j + sw * columns : sw] += patches[:, :, i, j]
        return self._crop(below)


class ConvPatchesMax(ConvPatches):
    """A first convolution together with the max-pooling above it.

    The patches are made once, so their order is free: the pixels that are pooled with each other come in separate
    blocks, and pooling is a maximum of whole blocks.
    """

    def __init__(self, layer: nn.Conv2d, starts: list[int], pool: tuple[int, int]) -> None:
        super().__init__(layer, starts)
        self._pool = pool

    def prepare(self, x: Tensor) -> Tensor:
        """(users, patch, pixels of a window, height, records, width): of the pooled image's pixels."""
        (kh, kw), (sh, sw), (ph, pw) = self._kernel, self._stride, self._pool
        patches = self._pad(x).unfold(2, kh, sh).unfold(4, kw, sw).permute(0, 1, 5, 6, 2, 3, 4)
        rows, columns = patches.shape[4] // ph, patches.shape[6] // pw
        made = x.new_empty((*patches.shape[:4], ph * pw, rows, x.shape[3], columns))
        for i in range(ph):
            for j in range(pw):
                made[:, :, :, :, i * pw + j] = patches[..., i : rows * ph : ph, :, j : columns * pw : pw]
        return made.flatten(1, 3)

    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        if x.ndim == 5:
            x = self.prepare(x)
        users, patch, window = x.shape[:3]
        self._patches = x.view(users, patch, -1)
        y = self._apply().view(users, -1, window, *x.shape[3:])
        best, self._excess = _running_max([y[:, :, i] for i in range(window)])
        return best

    def backward(self, g: Tensor, update: Update) -> Tensor:
        self._learn(_split_gradient(g, self._excess).flatten(2), update)
        return g


class ConvRows(_Conv):
    """Unrolling along the width only, one product per kernel row; stride 1."""

    def __init__(self, layer: nn.Conv2d, starts: list[int]) -> None:
        super().__init__(layer, starts)
        outputs, inputs = layer.out_channels, layer.in_channels
        kh, kw = self._kernel

        def row(k: int) -> Slot:
            return Slot(
                starts[0],
                layer.weight.numel(),
                (outputs, inputs * kw),
                lambda t: t.view(*t.shape[:-1], outputs, inputs, kh, kw)[..., k, :],
            )

        self.slots = (*(row(k) for k in range(kh)), *self._bias_slot)

    def bind(self, weights: list[Weight]) -> None:
        height = self._kernel[0]
        self._rows = weights[:height]
        self._bias = weights[height] if len(weights) > height else None

    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        padded = self._pad(x)
        users, channels, height, records, width = padded.shape
        kh, kw = self._kernel
        self._out = (height - kh + 1, records, width - kw + 1)
        self._line = records * self._out[2]
        unrolled = padded.unfold(4, kw, 1).permute(0, 1, 5, 2, 3, 4).reshape(users, channels * kw, -1)
        self._unrolled, self._input_shape = unrolled, padded.shape
        length = self._out[0] * self._line
        first = self._rows[0].now
        if self._bias is None:
            y = torch.bmm(first, unrolled[:, :, :length])
        else:
            y = torch.baddbmm(self._bias.now, first, unrolled[:, :, :length])
        for k in range(1, kh):
            y.baddbmm_(self._rows[k].now, unrolled[:, :, k * self._line : k * self._line + length])
        return y.view(users, y.shape[1], *self._out)

    def backward(self, g: Tensor, update: Update) -> Tensor:
        flat = g.reshape(g.shape[0], g.shape[1], -1)
        below = self._fold(flat) if self.input_gradient else g
        length = flat.shape[2]
        for k in range(self._kernel[0]):
            lines = self._unrolled[:, :, k * self._line : k * self._line + length]
            update.product(self._rows[k], flat, lines.transpose(1, 2))
        if self._bias is not None:
            update.dense(self._bias, flat.sum(2, keepdim=True))
        return below

    def _fold(self, flat: Tensor) -> Tensor:
        """The gradient of the unrolled image, with the result's gradient padded by empty lines, then of the image."""
        kh, kw = self._kernel
        users, channels, height, records, _ = self._input_shape
        margin = (kh - 1) * self._line
        padded = functional.pad(flat, (margin, margin))
        length = height * self._line
        unrolled = torch.bmm(self._rows[0].turned, padded[:, :, margin:])
        for k in range(1, kh):
            start = margin - k * self._line
            unrolled.baddbmm_(self._rows[k].turned, padded[:, :, start : start + length])
        parts = unrolled.view(users, channels, kw, height, records, self._out[2])
        below = flat.new_zeros(self._input_shape)
        for j in range(kw):
            below[..., j : j + self._out[2]] += parts[:, :, j]
        return self._crop(below)


class MaxPool(Rule):
    """Windows that do not overlap. Among equals the first one of the window counts, as in nn.MaxPool2d."""

    fresh = True

    def __init__(self, kernel: tuple[int, int]) -> None:
        self.kernel = kernel

    def _windows(self, x: Tensor) -> Tensor:
        """(users, channels, rows of a window, columns of a window, height, records, width), a view."""
        kh, kw = self.kernel
        rows, columns = x.shape[2] // kh, x.shape[4] // kw
        cropped = x[:, :, : rows * kh, :, : columns * kw]
        return split(split(cropped, 4, columns, kw), 2, rows, kh).permute(0, 1, 3, 6, 2, 4, 5)

    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        self._shape = x.shape
        windows = self._windows(x).flatten(2, 3)
        best, self._excess = _running_max([windows[:, :, i] for i in range(windows.shape[2])])
        return best

    def backward(self, g: Tensor, update: Update) -> Tensor:
        blocks = _split_gradient(g, self._excess)
        below = g.new_zeros(self._shape)
        windows = self._windows(below)
        windows.copy_(blocks.view(windows.shape))
        return below


def split(x: Tensor, dim: int, first: int, second: int) -> Tensor:
    """View one dimension as two."""
    return x.view(*x.shape[:dim], first, second, *x.shape[dim + 1 :])


def _running_max(parts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The maximum of all parts, and by how much each part but the first exceeds the best one before it."""
    best, excess = parts[0], []
    for part in parts[1:]:
        excess.append(part - best)
        best = torch.maximum(best, part)
    return (best if excess else best.clone()), excess


def _split_gradient(g: Tensor, excess: list[Tensor]) -> Tensor:
    """(users, channels, parts, ...): the gradient at the part that was the maximum, zero at the others."""
    blocks = g.new_empty((*g.shape[:2], 1 + len(excess), *g.shape[2:]))
    for i in range(len(excess), 0, -1):
        part = relu_backward(g, excess[i - 1], 0.0)
        blocks[:, :, i] = part
        g = g - part
    blocks[:, :, 0] = g
    return blocks


class AvgPool(Rule):
    """Means over windows that do not overlap."""

    fresh = True

    def __init__(self, kernel: tuple[int, int]) -> None:
        self._kernel = kernel

    def forward(self, x: Tensor, moment: Moment) -> Tensor:
        kh, kw = self._kernel
        self._shape = x.shape
        rows, columns = x.shape[2] // kh, x.shape[4] // kw
        windows = split(split(x[:, :, : rows * kh, :, : columns * kw], 4, columns, kw), 2, rows, kh)
        return windows.sum((3, 6)).div_(kh * kw)

    def backward(self, g: Tensor, update: Update) -> Tensor:
        kh, kw = self._kernel
        below = g.new_zeros(self._shape)
        rows, columns = g.shape[2], g.shape[4]
        windows = split(split(below[:, :, : rows * kh, :, : columns * kw], 4, columns, kw), 2, rows, kh)
        windows.copy_((g / (kh * kw))[:, :, :, None, :, :, None].expand(windows.shape))
        return below
