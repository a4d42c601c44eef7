"""From an ``nn.Sequential`` of well-known layers to a program, or the reason why there is none.

>>> from torch import nn
>>> from uldp.learners.kernels.objectives import LOGISTIC
>>> program = compile_program(nn.Sequential(nn.Linear(3, 1)), (3,), LOGISTIC)
>>> program.places[:8].tolist(), program.parameters
([0, -1, -1, -1, -1, -1, -1, -1], 4)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt
from torch import nn

from uldp.errors import ModelError
from uldp.learners.kernels import activations
from uldp.learners.kernels import layout as at
from uldp.learners.kernels.objectives import CROSS_ENTROPY
from uldp.learners.kernels.simd import LANES

Shape = tuple[int, ...]
IntArray = npt.NDArray[np.int64]

#: Records go through the layers together while their numbers stay in the processor's cache.
_TILE_NUMBERS: Final = 2**17
_MIN_TILE: Final = 8
_MAX_TILE: Final = 64


class NoKernelError(Exception):
    """The model has a layer, or a use of a layer, without a kernel."""


@dataclass(frozen=True)
class Program:
    """A model as the interpreter reads it. ``places`` says where each number of the parameter block belongs."""

    table: IntArray
    reals: npt.NDArray[np.float64]
    header: IntArray
    places: IntArray
    parameters: int
    units: int
    products: int

    @property
    def tile(self) -> int:
        return int(self.header[at.TILE])

    @property
    def outputs(self) -> int:
        return int(self.header[at.N_OUTPUTS])


@dataclass(frozen=True)
class _Form:
    """What a layer hands on: ``channels`` numbers for each of ``pixels``; a table has one channel.

    ``height`` and ``width`` are there for images only. A flattened image keeps its order, channels last.
    """

    channels: int
    pixels: int
    height: int = 0
    width: int = 0

    @property
    def size(self) -> int:
        return self.channels * self.pixels

    @property
    def is_image(self) -> bool:
        return self.height > 0

    def torch_order(self) -> IntArray:
        """For each number, where torch has it: (channels, pixels) instead of (pixels, channels)."""
        return np.arange(self.size, dtype=np.int64).reshape(self.channels, self.pixels).T.reshape(-1)


def _table(size: int) -> _Form:
    return _Form(1, size)


def ceiling(n: int) -> int:
    """Rounded up to whole vectors."""
    return -(-n // LANES) * LANES


@dataclass
class _Operation:
    """One row in the making. ``per_record`` buffers grow with the tile, ``rooms`` do not.

    ``run`` numbers of an image's row are in a convolution's window: more than the image has where the border is wide.
    """

    columns: dict[int, int]
    inputs: _Form
    outputs: _Form
    real: float = 0.0
    per_record: dict[int, int] = field(default_factory=dict)
    rooms: dict[int, int] = field(default_factory=dict)
    weight: IntArray | None = None
    bias: IntArray | None = None
    in_place: bool = False
    lists: int = 0
    run: int = 0
    products: int = 0


def layers(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of nested Sequentials in order."""
    if type(module) is nn.Sequential:
        for child in module:
            yield from layers(child)
    elif type(module) is not nn.Identity:
        yield module


def compile_program(module: nn.Module, feature_shape: Shape, loss: int) -> Program:
    """The program of a model; :class:`NoKernelError` says why it has none."""
    for part in module.modules():
        # A hook, or a forward of the instance's own, may do anything: a program would silently leave it out.
        if part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or "forward" in vars(part):
            raise NoKernelError(f"{type(part).__name__} has a hook or a forward of its own")
    starts = _starts(module)
    found = list(layers(module))
    if len(feature_shape) == 3 and not (found and type(found[0]) is nn.Flatten):
        form = _Form(feature_shape[0], feature_shape[1] * feature_shape[2], feature_shape[1], feature_shape[2])
    elif len(feature_shape) == 1 or (found and type(found[0]) is nn.Flatten):
        form = _table(prod(feature_shape))
    else:
        raise NoKernelError(f"features of shape {feature_shape}")
    first, operations, dropouts = form, [], 0
    for layer in found:
        if not type(layer).__module__.startswith("torch.nn.modules."):
            raise NoKernelError(f"no kernel for {type(layer).__name__}")
        if isinstance(layer, nn.Flatten):
            form = _flatten(layer, form)
            continue
        made = _operation(layer, form, [starts[id(p)] for p in layer.parameters()], dropouts)
        dropouts += isinstance(layer, nn.Dropout | nn.Dropout2d)
        if made is not None:
            operations.append(made)
            form = made.outputs
    if form.is_image:
        raise NoKernelError("the result is an image")
    return _lay_out(operations, first, form, loss)


def _starts(module: nn.Module) -> dict[int, int]:
    """Where each parameter starts in the flat vector."""
    starts, position = {}, 0
    for parameter in module.parameters():
        if not parameter.requires_grad:
            raise NoKernelError("some parameters are frozen")
        starts[id(parameter)] = position
        position += parameter.numel()
    owners = [id(p) for layer in layers(module) for p in layer.parameters()]
    if sorted(owners) != sorted(starts):
        raise NoKernelError("layers share parameters")
    return starts


# --- layers -----------------------------------------------------------------------------------------------------


def _flatten(layer: nn.Flatten, form: _Form) -> _Form:
    if (layer.start_dim, layer.end_dim) != (1, -1):
        raise NoKernelError(f"no kernel for {layer}")
    return replace(form, height=0, width=0)


def _operation(layer: nn.Module, form: _Form, starts: list[int], dropouts: int) -> _Operation | None:
    """The operation of one layer; None for a layer that does nothing."""
    match layer:
        case nn.Linear() if not form.is_image and layer.in_features == form.size:
            return _linear(layer, form, starts)
        case nn.Conv2d() if form.is_image and layer.in_channels == form.channels:
            return _convolution(layer, form, starts)
        case nn.GroupNorm() | nn.LayerNorm():
            return _norm(layer, form, starts)
        case nn.Dropout():
            return _dropout(layer.p, False, form, dropouts)
        case nn.Dropout2d() if form.is_image:
            return _dropout(layer.p, True, form, dropouts)
        case nn.MaxPool2d() | nn.AvgPool2d() | nn.AdaptiveAvgPool2d() if form.is_image:
            return _pool(layer, form)
    return _activation(layer, form)


def _padded_rows(numbers: IntArray) -> IntArray:
    """Rows rounded up to whole vectors, with -1 in the gaps."""
    gaps = np.full((*numbers.shape[:-1], ceiling(numbers.shape[-1])), -1, dtype=np.int64)
    gaps[..., : numbers.shape[-1]] = numbers
    return gaps.reshape(-1)


def _linear(layer: nn.Linear, form: _Form, starts: list[int]) -> _Operation:
    """Weights lie as (inputs, outputs): the forward product needs no transposition then."""
    inputs, outputs = layer.in_features, layer.out_features
    weight = starts[0] + np.arange(inputs * outputs, dtype=np.int64).reshape(outputs, inputs).T[form.torch_order()]
    bias = None if layer.bias is None else starts[1] + np.arange(outputs, dtype=np.int64)
    columns = {at.KIND: at.LINEAR, at.ROW: ceiling(outputs)}
    rooms = {at.TURNED: ceiling(inputs) * ceiling(outputs)}
    return _Operation(
        columns, form, _table(outputs), rooms=rooms, weight=weight, bias=bias, products=layer.weight.numel()
    )


def _convolution(layer: nn.Conv2d, form: _Form, starts: list[int]) -> _Operation:
    if isinstance(layer.padding, str) or layer.padding_mode != "zeros" or layer.groups != 1 or layer.dilation != (1, 1):
        raise NoKernelError(f"no kernel for {layer}")
    (kh, kw), (sh, sw), (ph, pw) = layer.kernel_size, layer.stride, layer.padding
    height, width = (form.height + 2 * ph - kh) // sh + 1, (form.width + 2 * pw - kw) // sw + 1
    if height < 1 or width < 1:
        raise NoKernelError(f"{layer} leaves nothing of an image of {form.height}x{form.width}")
    outputs = _Form(layer.out_channels, height * width, height, width)
    numbers = np.arange(layer.weight.numel(), dtype=np.int64).reshape(layer.weight.shape)
    weight = starts[0] + numbers.transpose(0, 2, 3, 1).reshape(layer.out_channels, kh, kw * form.channels)
    bias = None if layer.bias is None else starts[1] + np.arange(layer.out_channels, dtype=np.int64)
    bordered = (form.height + 2 * ph) * (form.width + 2 * pw) * form.channels
    columns = {
        at.KIND: at.CONVOLUTION, at.ROW: ceiling(layer.out_channels), at.KH: kh, at.KW: kw, at.SH: sh, at.SW: sw,
        at.PH: ph, at.PW: pw, at.OUT_CHANNELS: layer.out_channels, at.N_BORDERED: bordered,
    }  # fmt: skip
    return _Operation(
        columns, form, outputs,
        per_record={at.BORDERED: bordered} if ph or pw else {},
        rooms={at.TURNED: (kh * kw * form.channels + LANES) * ceiling(layer.out_channels), at.G_BORDERED: bordered},
        weight=weight, bias=bias, lists=max(outputs.pixels, layer.out_channels) + LANES,
        run=kw * form.channels,
        products=layer.weight.numel() * outputs.pixels,
    )  # fmt: skip


def _norm(layer: nn.GroupNorm | nn.LayerNorm, form: _Form, starts: list[int]) -> _Operation:
    order = form.torch_order()
    if isinstance(layer, nn.LayerNorm):
        if form.is_image or tuple(layer.normalized_shape) != (form.size,):
            raise NoKernelError(f"no kernel for {layer} on features of another shape")
        groups = 1
    else:
        groups = layer.num_groups
        if layer.num_channels != (form.channels if form.is_image else form.size):
            raise NoKernelError(f"no kernel for {layer} on features of another shape")
        if not form.is_image and groups > 1 and form.channels > 1:
            raise NoKernelError(f"no kernel for {layer} on a flattened image")
    columns = {at.KIND: at.IMAGE_NORM if form.is_image else at.ROW_NORM, at.GROUPS: groups}
    size = form.channels if form.is_image else form.size
    numbers = np.arange(size, dtype=np.int64) if form.is_image else order
    tensors = [start + numbers for start in starts]
    return _Operation(
        columns, form, form, layer.eps,
        per_record={at.HAT: form.size, at.RATES: ceiling(form.channels) if form.is_image else groups},
        rooms={at.ROOM: 2 * ceiling(form.channels)} if form.is_image else {},
        weight=tensors[0] if tensors else None, bias=tensors[1] if len(tensors) > 1 else None, in_place=True,
    )  # fmt: skip


def _dropout(rate: float, whole_channels: bool, form: _Form, number: int) -> _Operation | None:
    if not rate:
        return None
    threshold, factor = (0, 0.0) if rate >= 1.0 else (round((1.0 - rate) * 65536), 1.0 / (1.0 - rate))
    columns = {
        at.KIND: at.DROPOUT,
        at.LAYER: number,
        at.THRESHOLD: threshold,
        at.WHOLE_CHANNELS: int(whole_channels),
    }
    return _Operation(columns, form, form, factor, per_record={at.MASK: form.size}, in_place=True)


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _pool(layer: nn.MaxPool2d | nn.AvgPool2d | nn.AdaptiveAvgPool2d, form: _Form) -> _Operation:
    if isinstance(layer, nn.AdaptiveAvgPool2d):
        if layer.output_size not in (1, (1, 1)):
            raise NoKernelError(f"no kernel for {layer}")
        kernel = stride = (form.height, form.width)
    else:
        kernel, stride = _pair(layer.kernel_size), _pair(layer.stride)
        plain = _pair(layer.padding) == (0, 0) and not layer.ceil_mode
        if isinstance(layer, nn.MaxPool2d):
            plain = plain and _pair(layer.dilation) == (1, 1) and not layer.return_indices
        else:
            plain = plain and layer.divisor_override is None
        if not plain or kernel[0] > form.height or kernel[1] > form.width:
            raise NoKernelError(f"no kernel for {layer}")
    height, width = (form.height - kernel[0]) // stride[0] + 1, (form.width - kernel[1]) // stride[1] + 1
    is_max = isinstance(layer, nn.MaxPool2d)
    columns = {
        at.KIND: at.MAX_POOL if is_max else at.MEAN_POOL,
        at.KH: kernel[0],
        at.KW: kernel[1],
        at.SH: stride[0],
        at.SW: stride[1],
    }
    outputs = _Form(form.channels, height * width, height, width)
    return _Operation(columns, form, outputs, per_record={at.INDEX: outputs.size} if is_max else {})


def _activation(layer: nn.Module, form: _Form) -> _Operation:
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
            raise NoKernelError(f"no kernel for {layer}")
    return _Operation({at.KIND: at.ACTIVATION, at.FUNCTION: function}, form, form, slope, in_place=True)


# --- the workspace ------------------------------------------------------------------------------------------------


class _Workspace:
    """Hands out parts of one flat array. Each ends with a vector to spare: kernels write whole vectors."""

    def __init__(self) -> None:
        self.size = 0

    def room(self, numbers: int) -> int:
        start = self.size
        self.size += ceiling(numbers) + LANES
        return start


def _parameter_block(operations: list[_Operation]) -> tuple[list[tuple[int, int]], IntArray, int]:
    """Offsets of each operation's (weight, bias), the places of all numbers, and how many come before linear layers."""
    offsets = [(-1, -1)] * len(operations)
    places: list[IntArray] = [np.zeros(0, dtype=np.int64)]
    size = explicit = 0
    for linear in (False, True):
        for number, op in enumerate(operations):
            if (op.columns[at.KIND] == at.LINEAR) == linear:
                pair = []
                for tensor in (op.weight, op.bias):
                    pair.append(-1 if tensor is None else size)
                    if tensor is not None:
                        places.append(_padded_rows(tensor))
                        size += len(places[-1])
                offsets[number] = (pair[0], pair[1])
        explicit = explicit if linear else size
    return offsets, np.concatenate(places), explicit


def _tile(operations: list[_Operation], features: int) -> int:
    per_record = features + sum(2 * op.outputs.size + sum(op.per_record.values()) for op in operations)
    return max(_MIN_TILE, min(_MAX_TILE, _TILE_NUMBERS // per_record))


def _lay_out(operations: list[_Operation], inputs: _Form, outputs: _Form, loss: int) -> Program:
    """Give every operation its place in the workspace."""
    trained = [number for number, op in enumerate(operations) if op.weight is not None]
    if not trained:
        raise NoKernelError("no layer has parameters")
    if loss != CROSS_ENTROPY and outputs.size != 1:
        raise NoKernelError(f"the loss is one of a single output, not of {outputs.size}")
    offsets, places, explicit = _parameter_block(operations)
    head = np.zeros(at.HEADER, dtype=np.int64)
    space, tile = _Workspace(), _tile(operations, inputs.size)
    head[at.TILE], head[at.PARAMETERS], head[at.EXPLICIT] = tile, len(places), explicit
    space.room(len(places))
    for column in (at.GRADIENTS, at.MEANS, at.SQUARES):
        head[column] = space.room(len(places))
    widest = max(max(op.inputs.size, op.outputs.size, op.run) for op in operations)
    head[at.ZEROS] = ceiling(widest) + LANES
    head[at.ZERO], head[at.ONE], head[at.LABELS] = space.room(widest + LANES), space.room(1), space.room(tile)
    head[at.RECORD_GRADIENTS] = space.room(tile * explicit)
    linear = [op for op in operations if op.columns[at.KIND] == at.LINEAR]
    head[at.CLIPPED_B] = len(places) + tile * (1 + max((op.inputs.size for op in linear), default=0))
    head[at.CLIPPED] = head[at.CLIPPED_B] + tile * max((op.columns[at.ROW] for op in linear), default=0) + LANES
    lists = max(op.lists for op in operations)
    head[at.VALUES], head[at.INTEGERS] = space.room(lists), lists
    head[at.N_FEATURES], head[at.FEATURE_CHANNELS] = inputs.size, inputs.channels
    head[at.FEATURES] = value = space.room(tile * inputs.size)
    table = np.zeros((len(operations), at.COLUMNS), dtype=np.int64)
    gradient = -1
    for number, op in enumerate(operations):
        row = table[number]
        row[at.W], row[at.B] = offsets[number]
        _fill(row, op)
        row[at.X], row[at.GX] = value, gradient
        row[at.Y] = value = space.room(tile * op.outputs.size)
        for column, numbers in op.per_record.items():
            row[column] = space.room(tile * numbers)
        for column, numbers in op.rooms.items():
            row[column] = space.room(numbers)
        if op.columns[at.KIND] == at.CONVOLUTION and at.BORDERED not in op.per_record:
            row[at.BORDERED] = row[at.X]
        if number >= trained[0]:
            shared = op.in_place and gradient >= 0
            row[at.GY] = gradient = gradient if shared else space.room(tile * op.outputs.size)
    head[at.OUTPUTS], head[at.N_OUTPUTS], head[at.G_OUTPUTS] = value, outputs.size, gradient
    head[at.FIRST_TRAINED], head[at.LOSS], head[at.WORKSPACE] = trained[0], loss, space.size
    program = Program(
        table, np.array([op.real for op in operations]), head, places, int((places >= 0).sum()),
        inputs.size + sum(op.outputs.size + sum(op.per_record.values()) for op in operations),
        sum(op.products for op in operations),
    )  # fmt: skip
    validate(program)
    return program


def _fill(row: IntArray, op: _Operation) -> None:
    """The columns that do not depend on the workspace."""
    for column, value in op.columns.items():
        row[column] = value
    row[at.NX], row[at.NY] = op.inputs.size, op.outputs.size
    row[at.CHANNELS], row[at.PIXELS] = op.inputs.channels, op.inputs.pixels
    row[at.HEIGHT], row[at.WIDTH] = op.inputs.height, op.inputs.width
    row[at.OUT_HEIGHT], row[at.OUT_WIDTH] = op.outputs.height, op.outputs.width


# --- checks -------------------------------------------------------------------------------------------------------


def validate(program: Program) -> None:
    """Refuse a program that would reach outside of its workspace: kernels do not look."""
    head, tile = program.header, program.tile
    block = int(head[at.PARAMETERS])
    parts = [(int(head[column]), block) for column in (at.GRADIENTS, at.MEANS, at.SQUARES)]
    parts += [(0, block), (int(head[at.ZERO]), int(head[at.ZEROS])), (int(head[at.LABELS]), tile)]
    parts += [(int(head[at.RECORD_GRADIENTS]), tile * int(head[at.EXPLICIT])), (int(head[at.ONE]), 1)]
    parts += [(int(head[at.FEATURES]), tile * int(head[at.N_FEATURES])), (int(head[at.VALUES]), int(head[at.INTEGERS]))]
    parts += [(int(head[column]), tile * program.outputs) for column in (at.OUTPUTS, at.G_OUTPUTS)]
    for row in program.table.tolist():
        parts += _extents(row, tile)
        for offset in (row[at.W], row[at.B]):
            if offset >= block:
                raise ModelError("a program's parameters lie outside of their block", place="model")
    for offset, numbers in parts:
        if offset < 0 or offset + ceiling(numbers) + LANES > head[at.WORKSPACE]:
            raise ModelError("a program reaches outside of its workspace", place="model")


def _extents(row: list[int], tile: int) -> list[tuple[int, int]]:
    """What one operation reads and writes: (offset, numbers)."""
    parts = [(row[at.X], tile * row[at.NX]), (row[at.Y], tile * row[at.NY])]
    if row[at.GX] >= 0:
        parts.append((row[at.GX], tile * row[at.NX]))
    parts.append((row[at.GY], tile * row[at.NY]))
    if row[at.KIND] == at.LINEAR:
        parts.append((row[at.TURNED], ceiling(row[at.NX]) * ceiling(row[at.NY])))
    if row[at.KIND] in (at.ROW_NORM, at.IMAGE_NORM):
        image = row[at.KIND] == at.IMAGE_NORM
        parts.append((row[at.HAT], tile * row[at.NX]))
        parts.append((row[at.RATES], tile * (ceiling(row[at.CHANNELS]) if image else row[at.GROUPS])))
        parts.append((row[at.ROOM], 2 * ceiling(row[at.CHANNELS]) if image else 0))
    if row[at.KIND] == at.DROPOUT:
        parts.append((row[at.MASK], tile * row[at.NX]))
    if row[at.KIND] == at.CONVOLUTION:
        run = row[at.KH] * row[at.KW] * row[at.CHANNELS]
        parts.append((row[at.TURNED], (run + LANES) * row[at.ROW]))
        parts.append((row[at.BORDERED], tile * row[at.N_BORDERED]))
        parts.append((row[at.G_BORDERED], row[at.N_BORDERED]))
    if row[at.KIND] == at.MAX_POOL:
        parts.append((row[at.INDEX], tile * row[at.NY]))
    return parts
