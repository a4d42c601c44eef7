"""Where everything lies: offsets of operations, parameters and buffers in one flat workspace."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from uldp.learners.kernels import layout as at
from uldp.learners.kernels.forms import IntArray, NoKernelError, Operation, ceiling
from uldp.learners.kernels.objectives import CROSS_ENTROPY, LOGISTIC, SQUARED
from uldp.native.simd import LANES

#: Records go through the layers together while their numbers stay in the processor's cache.
_TILE_NUMBERS: Final = 2**17
_MAX_TILE: Final = 64


class _Workspace:
    """Hands out parts of one flat array. Each ends with a vector to spare: kernels write whole vectors."""

    def __init__(self) -> None:
        self.size = 0

    def room(self, numbers: int) -> int:
        start = self.size
        self.size += ceiling(numbers) + LANES
        return start


def _parameter_block(operations: list[Operation]) -> tuple[list[tuple[int, int]], IntArray, int]:
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


def _padded_rows(numbers: IntArray) -> IntArray:
    """Rows rounded up to whole vectors, with -1 in the gaps."""
    gaps = np.full((*numbers.shape[:-1], ceiling(numbers.shape[-1])), -1, dtype=np.int64)
    gaps[..., : numbers.shape[-1]] = numbers
    return gaps.reshape(-1)


def _tile(operations: list[Operation], features: int) -> int:
    per_record = features + sum(2 * op.outputs.size + sum(op.per_record.values()) for op in operations)
    return max(LANES, min(_MAX_TILE, _TILE_NUMBERS // per_record // LANES * LANES))


def lay_out(operations: list[Operation], loss: int) -> tuple[IntArray, IntArray, IntArray]:
    """Give every operation its place in the workspace: (table, header, places of the parameters)."""
    inputs, outputs = operations[0].inputs, operations[-1].outputs
    trained = [number for number, op in enumerate(operations) if op.weight is not None]
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
    head[at.RATE], head[at.RECORD_GRADIENTS] = space.room(1), space.room(tile * explicit)
    head[at.OFFSETS] = space.room(outputs.size)
    linear = [op for op in operations if op.columns[at.KIND] == at.LINEAR]
    head[at.CLIPPED_B] = len(places) + tile * (1 + max((op.inputs.size for op in linear), default=0))
    head[at.CLIPPED] = head[at.CLIPPED_B] + tile * max((op.columns[at.ROW] for op in linear), default=0) + LANES
    lists = max(op.lists for op in operations)
    head[at.VALUES], head[at.INTEGERS] = space.room(lists), lists
    head[at.N_FEATURES], head[at.FEATURE_CHANNELS] = inputs.size, inputs.channels
    head[at.FEATURES] = value = space.room(tile * ceiling(inputs.size))
    table = np.zeros((len(operations), at.COLUMNS), dtype=np.int64)
    gradient = -1
    for number, op in enumerate(operations):
        row = table[number]
        row[at.W], row[at.B] = offsets[number]
        _fill(row, op)
        row[at.X], row[at.GX] = value, gradient
        row[at.Y] = value = space.room(tile * ceiling(op.outputs.size))
        for column, numbers in op.per_record.items():
            row[column] = space.room(tile * ceiling(numbers))
        for column, numbers in op.rooms.items():
            row[column] = space.room(numbers)
        if op.columns[at.KIND] == at.CONVOLUTION and at.BORDERED not in op.per_record:
            row[at.BORDERED] = row[at.X]
        if op.fork is not None:
            row[at.SKIP], table[op.fork, at.KEPT] = table[op.fork, at.Y], row[at.KEPT]
        if number >= trained[0]:
            shared = op.in_place and gradient >= 0
            row[at.GY] = gradient = gradient if shared else space.room(tile * ceiling(op.outputs.size))
    for row, after in pairwise(table):
        if row[at.KIND] == at.CONVOLUTION and after[at.KIND] == at.MAX_POOL:
            row[at.POOLED] = 1
            if row[at.GX] < 0:
                after[at.GX] = -1
    head[at.OUTPUTS], head[at.N_OUTPUTS], head[at.G_OUTPUTS] = value, outputs.size, gradient
    head[at.FIRST_TRAINED], head[at.LOSS], head[at.WORKSPACE] = trained[0], loss, space.size
    single = len(operations) == 1 and operations[0].columns[at.KIND] == at.LINEAR and outputs.size == 1
    head[at.SINGLE] = single and loss in (LOGISTIC, SQUARED)
    return table, head, places


def _fill(row: IntArray, op: Operation) -> None:
    """The columns that do not depend on the workspace."""
    for column, value in op.columns.items():
        row[column] = value
    row[at.NX], row[at.NY] = op.inputs.size, op.outputs.size
    row[at.ROW_X], row[at.ROW_Y] = ceiling(op.inputs.size), ceiling(op.outputs.size)
    row[at.CHANNELS], row[at.PIXELS] = op.inputs.channels, op.inputs.pixels
    row[at.HEIGHT], row[at.WIDTH] = op.inputs.height, op.inputs.width
    row[at.OUT_HEIGHT], row[at.OUT_WIDTH] = op.outputs.height, op.outputs.width
