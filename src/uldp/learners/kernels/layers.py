"""From the layers of a model to operations, or the reason why there are none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from torch import nn

from uldp.learners.blocks import Embedding, Residual
from uldp.learners.kernels import activations, norms
from uldp.learners.kernels import layout as at
from uldp.learners.kernels.forms import Form, NoKernelError, Operation, ceiling
from uldp.native.simd import LANES

#: Whole numbers below this are exact in float32: a maximum's place is kept as one.
_EXACT: Final = 2**24


def layers(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of nested Sequentials and Residuals in order."""
    if type(module) in (nn.Sequential, Residual):
        for child in module.children():
            yield from layers(child)
    elif type(module) is not nn.Identity:
        yield module


@dataclass
class Translation:
    """Operations so far; ``starts`` says where each parameter begins in the flat vector, by its identity."""

    starts: dict[int, int]
    operations: list[Operation] = field(default_factory=list)
    dropouts: int = 0

    def append(self, module: nn.Module, form: Form) -> Form:
        """Append a module's operations on ``form``; what it hands on."""
        kind = type(module)
        if kind is nn.Sequential:
            for child in module.children():
                form = self.append(child, form)
            return form
        if isinstance(module, Residual) and kind is Residual:
            return self._residual(module.f, form)
        if kind is not Embedding and not kind.__module__.startswith("torch.nn.modules."):
            raise NoKernelError(f"no kernel for {kind.__name__}")
        if isinstance(module, nn.Identity):
            return form
        if isinstance(module, nn.Flatten):
            return _flatten(module, form)
        if isinstance(module, Embedding) and self.operations:
            raise NoKernelError(f"no kernel for {module} behind other layers")
        if isinstance(module, nn.GroupNorm) and module.num_groups > 1:
            form = self.in_torch_order(form)
        made = _operation(module, form, [self.starts[id(p)] for p in module.parameters()], self.dropouts)
        self.dropouts += isinstance(module, nn.Dropout | nn.Dropout2d)
        return form if made is None else self._add(made)

    def _add(self, operation: Operation) -> Form:
        self.operations.append(operation)
        return operation.outputs

    def in_torch_order(self, form: Form) -> Form:
        """A flattened image becomes a table in torch's order; everything else has it already, or is an image."""
        if form.is_image or min(form.channels, form.pixels) == 1:
            return form
        return self._add(Operation({at.KIND: at.REORDER}, form, Form.table(form.size)))

    def _residual(self, f: nn.Module, form: Form) -> Form:
        """FORK keeps the input, ADD adds it; on the way back ADD keeps the gradient, and FORK adds it."""
        form = self.in_torch_order(form)
        fork = len(self.operations)
        self._add(Operation({at.KIND: at.FORK}, form, form, in_place=True))
        if self.append(f, form) != form:
            raise NoKernelError("no kernel for a Residual whose layers change the shape")
        return self._add(
            Operation({at.KIND: at.ADD}, form, form, per_record={at.KEPT: form.size}, in_place=True, fork=fork)
        )


def _flatten(layer: nn.Flatten, form: Form) -> Form:
    if (layer.start_dim, layer.end_dim) != (1, -1):
        raise NoKernelError(f"no kernel for {layer}")
    return replace(form, height=0, width=0)


def _operation(layer: nn.Module, form: Form, starts: list[int], dropouts: int) -> Operation | None:
    """The operation of one layer; None for a layer that does nothing."""
    match layer:
        case nn.Linear() if not form.is_image and layer.in_features == form.size:
            return _linear(layer, form, starts)
        case nn.Conv2d() if form.is_image and layer.in_channels == form.channels:
            return _convolution(layer, form, starts)
        case Embedding() if form.channels == 1 and not form.is_image:
            return _embedding(layer, form, starts)
        case nn.GroupNorm() | nn.LayerNorm():
            return _norm(layer, form, starts)
        case nn.Dropout():
            return _dropout(layer.p, False, form, dropouts)
        case nn.Dropout2d() if form.is_image:
            return _dropout(layer.p, True, form, dropouts)
        case nn.MaxPool2d() | nn.AvgPool2d() if form.is_image:
            return _pool(layer, form)
        case nn.AdaptiveAvgPool2d() if form.is_image:
            return _adaptive_pool(layer, form)
    return _activation(layer, form)


def _linear(layer: nn.Linear, form: Form, starts: list[int]) -> Operation:
    """Weights lie as (inputs, outputs): the forward product needs no transposition then."""
    inputs, outputs = layer.in_features, layer.out_features
    weight = starts[0] + np.arange(inputs * outputs, dtype=np.int64).reshape(outputs, inputs).T[form.torch_order()]
    bias = None if layer.bias is None else starts[1] + np.arange(outputs, dtype=np.int64)
    columns = {at.KIND: at.LINEAR, at.ROW: ceiling(outputs)}
    rooms = {at.TURNED: ceiling(inputs) * ceiling(outputs)}
    return Operation(
        columns, form, Form.table(outputs), rooms=rooms, weight=weight, bias=bias, products=layer.weight.numel()
    )


def _embedding(layer: Embedding, form: Form, starts: list[int]) -> Operation:
    columns = form.size if layer.columns is None else layer.columns
    if columns > form.size:
        raise NoKernelError(f"{layer} on {form.size} columns")
    weight = starts[0] + np.arange(layer.weight.numel(), dtype=np.int64).reshape(layer.weight.shape)
    return Operation(
        {
            at.KIND: at.EMBEDDING,
            at.ROW: ceiling(layer.dimension),
            at.CATEGORIES: layer.categories,
            at.DIMENSION: layer.dimension,
            at.EMBEDDED: columns,
        },
        form,
        Form.table(columns * layer.dimension + form.size - columns),
        weight=weight,
    )


def _convolution(layer: nn.Conv2d, form: Form, starts: list[int]) -> Operation:
    if isinstance(layer.padding, str) or layer.padding_mode != "zeros" or layer.groups != 1 or layer.dilation != (1, 1):
        raise NoKernelError(f"no kernel for {layer}")
    (kh, kw), (sh, sw), (ph, pw) = layer.kernel_size, layer.stride, layer.padding
    height, width = (form.height + 2 * ph - kh) // sh + 1, (form.width + 2 * pw - kw) // sw + 1
    if height < 1 or width < 1:
        raise NoKernelError(f"{layer} leaves nothing of an image of {form.height}x{form.width}")
    outputs = Form.image(layer.out_channels, height, width)
    numbers = np.arange(layer.weight.numel(), dtype=np.int64).reshape(layer.weight.shape)
    weight = starts[0] + numbers.transpose(0, 2, 3, 1).reshape(layer.out_channels, kh, kw * form.channels)
    bias = None if layer.bias is None else starts[1] + np.arange(layer.out_channels, dtype=np.int64)
    bordered = (form.height + 2 * ph) * (form.width + 2 * pw) * form.channels
    columns = {
        at.KIND: at.CONVOLUTION, at.ROW: ceiling(layer.out_channels), at.KH: kh, at.KW: kw, at.SH: sh, at.SW: sw,
        at.PH: ph, at.PW: pw, at.OUT_CHANNELS: layer.out_channels, at.N_BORDERED: ceiling(bordered),
    }  # fmt: skip
    return Operation(
        columns, form, outputs,
        per_record={at.BORDERED: bordered} if ph or pw else {},
        rooms={at.TURNED: (kh * kw * form.channels + LANES) * ceiling(layer.out_channels), at.G_BORDERED: bordered},
        weight=weight, bias=bias, lists=max(outputs.pixels, layer.out_channels) + LANES,
        run=kw * form.channels,
        products=layer.weight.numel() * outputs.pixels,
    )  # fmt: skip


def _norm(layer: nn.GroupNorm | nn.LayerNorm, form: Form, starts: list[int]) -> Operation:
    order = form.torch_order()
    if isinstance(layer, nn.LayerNorm):
        if form.is_image or tuple(layer.normalized_shape) != (form.size,):
            raise NoKernelError(f"no kernel for {layer} on features of another shape")
        groups = 1
    else:
        groups = layer.num_groups
        if layer.num_channels != (form.channels if form.is_image else form.size):
            raise NoKernelError(f"no kernel for {layer} on features of another shape")
    columns = {at.KIND: at.IMAGE_NORM if form.is_image else at.ROW_NORM, at.GROUPS: groups}
    size = form.channels if form.is_image else form.size
    numbers = np.arange(size, dtype=np.int64) if form.is_image else order
    tensors = [start + numbers for start in starts]
    return Operation(
        columns, form, form, layer.eps,
        per_record={at.HAT: form.size, at.RATES: ceiling(form.channels) if form.is_image else groups},
        rooms={at.ROOM: 2 * ceiling(form.channels) if form.is_image else norms.ROOM},
        weight=tensors[0] if tensors else None, bias=tensors[1] if len(tensors) > 1 else None, in_place=True,
    )  # fmt: skip


def _dropout(rate: float, whole_channels: bool, form: Form, number: int) -> Operation | None:
    if not rate:
        return None
    threshold, factor = (0, 0.0) if rate >= 1.0 else (round((1.0 - rate) * 65536), 1.0 / (1.0 - rate))
    columns = {at.KIND: at.DROPOUT, at.LAYER: number, at.THRESHOLD: threshold, at.WHOLE_CHANNELS: int(whole_channels)}
    return Operation(columns, form, form, factor, per_record={at.MASK: form.size}, in_place=True)


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _pool(layer: nn.MaxPool2d | nn.AvgPool2d, form: Form) -> Operation:
    kernel, stride, padding = _pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding)
    is_max, count_border = isinstance(layer, nn.MaxPool2d), False
    if isinstance(layer, nn.MaxPool2d):
        plain = _pair(layer.dilation) == (1, 1) and not layer.return_indices
    else:
        plain, count_border = layer.divisor_override is None, layer.count_include_pad
    height, width = (
        _pooled_size(size, kernel[i], stride[i], padding[i], layer.ceil_mode)
        for i, size in enumerate((form.height, form.width))
    )
    if not plain or min(height, width) < 1 or any(2 * padding[i] > kernel[i] for i in (0, 1)):
        raise NoKernelError(f"no kernel for {layer} on an image of {form.height}x{form.width}")
    if is_max and kernel[0] * kernel[1] >= _EXACT:
        raise NoKernelError(f"no kernel for {layer} on an image of {form.height}x{form.width}")
    outputs = Form.image(form.channels, height, width)
    columns = {
        at.KIND: at.MAX_POOL if is_max else at.MEAN_POOL,
        at.KH: kernel[0],
        at.KW: kernel[1],
        at.SH: stride[0],
        at.SW: stride[1],
        at.PH: padding[0],
        at.PW: padding[1],
        at.COUNT_BORDER: int(count_border),
    }
    return Operation(columns, form, outputs, per_record={at.INDEX: outputs.size} if is_max else {},
                     lists=outputs.pixels + kernel[0] * kernel[1] + LANES)  # fmt: skip


def _pooled_size(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> int:
    """How many windows there are; with ceil_mode a last one may be cut off, but none begins behind the image."""
    room = size + 2 * padding - kernel
    if not ceil_mode:
        return room // stride + 1
    count = -(-room // stride) + 1
    return count - 1 if (count - 1) * stride >= size + padding else count


def _adaptive_pool(layer: nn.AdaptiveAvgPool2d, form: Form) -> Operation:
    """Sizes that divide the image's: windows of one size then, side by side."""
    given = layer.output_size if isinstance(layer.output_size, tuple) else (layer.output_size, layer.output_size)
    height, width = (
        size if wanted is None else wanted for wanted, size in zip(given, (form.height, form.width), strict=True)
    )
    if height < 1 or width < 1 or form.height % height or form.width % width:
        raise NoKernelError(f"no kernel for {layer} on an image of {form.height}x{form.width}")
    return _pool(nn.AvgPool2d((form.height // height, form.width // width)), form)


def _activation(layer: nn.Module, form: Form) -> Operation:
    slope = 0.0
    match layer:
        case nn.ReLU():
            function = activations.RELU
        case nn.LeakyReLU():
            function, slope = activations.LEAKY_RELU, layer.negative_slope
        case nn.Tanh():
            function = activations.TANH
        case nn.Sigmoid():
            function = activations.SIGMOID
        case nn.SiLU():
            function = activations.SILU
        case nn.GELU() if layer.approximate == "none":
            function = activations.GELU
        case _:
            # the name of a layer that holds others: they would take a line each
            raise NoKernelError(f"no kernel for {type(layer).__name__ if list(layer.children()) else layer}")
    return Operation({at.KIND: at.ACTIVATION, at.FUNCTION: function}, form, form, slope, in_place=True)
