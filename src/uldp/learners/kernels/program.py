"""From a chain of well-known layers to a program, or the reason why there is none.

>>> from torch import nn
>>> from uldp.learners.kernels.objectives import LOGISTIC
>>> program = compile_program(nn.Sequential(nn.Linear(3, 1)), (3,), LOGISTIC)
>>> program.places[:8].tolist(), program.parameters
([0, -1, -1, -1, -1, -1, -1, -1], 4)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
from torch import nn

from uldp.errors import ModelError
from uldp.learners.kernels import layout as at
from uldp.learners.kernels import norms
from uldp.learners.kernels.chain import unroll
from uldp.learners.kernels.forms import Form, IntArray, NoKernelError, Shape, ceiling
from uldp.learners.kernels.layers import Translation, layers
from uldp.learners.kernels.workspace import lay_out
from uldp.native.simd import LANES


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


def compile_program(module: nn.Module, feature_shape: Shape, loss: int) -> Program:
    """The program of a model; :class:`NoKernelError` says why it has none."""
    for part in module.modules():
        # A hook, or a forward of the instance's own, may do anything: a program would silently leave it out.
        hooks = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
        if any(hooks) or "forward" in vars(part):
            raise NoKernelError(f"{type(part).__name__} has a hook or a forward of its own")
    chain = unroll(module, feature_shape)
    form = _features(chain, feature_shape)
    translation = Translation(_starts(module, chain))
    if translation.in_torch_order(translation.append(chain, form)).is_image:
        raise NoKernelError("the result is an image")
    operations = translation.operations
    if all(op.weight is None for op in operations):
        raise NoKernelError("no layer has parameters")
    table, head, places = lay_out(operations, loss)
    program = Program(
        table, np.array([op.real for op in operations]), head, places, int((places >= 0).sum()),
        form.size + sum(op.outputs.size + sum(op.per_record.values()) for op in operations),
        sum(op.products for op in operations),
    )  # fmt: skip
    validate(program)
    return program


def _features(module: nn.Module, shape: Shape) -> Form:
    """What the first layer gets. Features that are flattened at once are a table, in torch's order."""
    first = next(layers(module), None)
    if len(shape) == 1 or type(first) is nn.Flatten:
        return Form.table(prod(shape))
    if len(shape) == 3:
        return Form.image(*shape)
    raise NoKernelError(f"features of shape {shape}")


def _starts(module: nn.Module, chain: nn.Module) -> dict[int, int]:
    """Where each parameter starts in the flat vector: in the module's own order, whatever that of its layers is."""
    starts, position = {}, 0
    for parameter in module.parameters():
        if not parameter.requires_grad:
            raise NoKernelError("some parameters are frozen")
        starts[id(parameter)] = position
        position += parameter.numel()
    owners = [id(p) for layer in layers(chain) for p in layer.parameters()]
    if not starts.keys() <= set(owners):
        raise NoKernelError("some parameters are not used")
    if sorted(owners) != sorted(starts):
        raise NoKernelError("layers share parameters")
    return starts


# --- checks -------------------------------------------------------------------------------------------------------


def validate(program: Program) -> None:
    """Refuse a program that would reach outside of its workspace: kernels do not look."""
    head, tile = program.header, program.tile
    block = int(head[at.PARAMETERS])
    parts = [(int(head[column]), block) for column in (at.GRADIENTS, at.MEANS, at.SQUARES)]
    parts += [(0, block), (int(head[at.ZERO]), int(head[at.ZEROS])), (int(head[at.LABELS]), tile)]
    parts += [
        (int(head[at.RECORD_GRADIENTS]), tile * int(head[at.EXPLICIT])),
        (int(head[at.ONE]), 1),
        (int(head[at.RATE]), 1),
        (int(head[at.OFFSETS]), program.outputs),
    ]
    parts += [
        (int(head[at.FEATURES]), tile * ceiling(int(head[at.N_FEATURES]))),
        (int(head[at.VALUES]), int(head[at.INTEGERS])),
    ]
    parts += [(int(head[column]), tile * ceiling(program.outputs)) for column in (at.OUTPUTS, at.G_OUTPUTS)]
    for row in program.table.tolist():
        parts += _extents(row, tile)
        for offset, numbers in zip((row[at.W], row[at.B]), _parameters(row), strict=True):
            if offset >= 0 and offset + numbers > block:
                raise ModelError("a program's parameters lie outside of their block", location="model")
    for offset, numbers in parts:
        if offset < 0 or offset + ceiling(numbers) + LANES > head[at.WORKSPACE]:
            raise ModelError("a program reaches outside of its workspace", location="model")


def _extents(row: list[int], tile: int) -> list[tuple[int, int]]:
    """What one operation reads and writes: (offset, numbers)."""
    parts = [(row[at.X], tile * row[at.ROW_X]), (row[at.Y], tile * row[at.ROW_Y])]
    if row[at.GX] >= 0:
        parts.append((row[at.GX], tile * row[at.ROW_X]))
    parts.append((row[at.GY], tile * row[at.ROW_Y]))
    if row[at.KIND] == at.LINEAR:
        parts.append((row[at.TURNED], ceiling(row[at.NX]) * ceiling(row[at.NY])))
    if row[at.KIND] in (at.ROW_NORM, at.IMAGE_NORM):
        image = row[at.KIND] == at.IMAGE_NORM
        parts.append((row[at.HAT], tile * row[at.ROW_X]))
        parts.append((row[at.RATES], tile * (ceiling(row[at.CHANNELS]) if image else row[at.GROUPS])))
        parts.append((row[at.ROOM], 2 * ceiling(row[at.CHANNELS]) if image else norms.ROOM))
    if row[at.KIND] == at.DROPOUT:
        parts.append((row[at.MASK], tile * row[at.ROW_X]))
    if row[at.KIND] == at.CONVOLUTION:
        run = row[at.KH] * row[at.KW] * row[at.CHANNELS]
        parts.append((row[at.TURNED], (run + LANES) * row[at.ROW]))
        parts.append((row[at.BORDERED], tile * row[at.N_BORDERED]))
        parts.append((row[at.G_BORDERED], row[at.N_BORDERED]))
    if row[at.KIND] in (at.FORK, at.ADD):
        parts.append((row[at.KEPT], tile * row[at.ROW_X]))
    if row[at.KIND] == at.ADD:
        parts.append((row[at.SKIP], tile * row[at.ROW_X]))
    if row[at.KIND] == at.MAX_POOL:
        parts.append((row[at.INDEX], tile * row[at.ROW_Y]))
    return parts


def _parameters(row: list[int]) -> tuple[int, int]:
    """How many numbers an operation's weights and bias take in the block."""
    match row[at.KIND]:
        case at.LINEAR:
            return row[at.NX] * row[at.ROW], row[at.ROW]
        case at.CONVOLUTION:
            runs = row[at.KH] * ceiling(row[at.KW] * row[at.CHANNELS])
            return row[at.OUT_CHANNELS] * runs, row[at.ROW]
        case at.EMBEDDING:
            return row[at.CATEGORIES] * row[at.ROW], 0
    size = ceiling(row[at.CHANNELS] if row[at.KIND] == at.IMAGE_NORM else row[at.NX])
    return size, size
