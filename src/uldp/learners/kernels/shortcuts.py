"""Residual addition y = x + f(x), and the order of a flattened image.

FORK stands before f and ADD behind it. Forward, ADD takes the input that FORK has kept; backward, where gradients are
made in place, FORK takes the gradient that ADD has kept.
"""

from __future__ import annotations

from uldp.learners.kernels import layout as at
from uldp.native.jit import kernel, stay_apart
from uldp.native.simd import LANES, load, padded_length, store


@kernel
def copy(ws, source, target, n):
    """target = source, for n numbers, rounded up to whole vectors."""
    stay_apart()
    for i in range(0, n, LANES):
        store(ws, target + i, load(ws, source + i))


@kernel
def add(ws, x, y, target, n):
    """target = x + y, for n numbers, rounded up to whole vectors."""
    stay_apart()
    for i in range(0, n, LANES):
        store(ws, target + i, load(ws, x + i) + load(ws, y + i))


@kernel
def connect(ws, op, m):
    """Forward through one of the three."""
    stay_apart()
    if op[at.KIND] == at.FORK:
        copy(ws, op[at.X], op[at.Y], m * op[at.ROW_X])
    elif op[at.KIND] == at.ADD:
        add(ws, op[at.X], op[at.SKIP], op[at.Y], m * op[at.ROW_X])
    else:
        swap(ws, op[at.X], op[at.Y], m, op[at.PIXELS], op[at.CHANNELS])


@kernel
def connect_backward(ws, op, m):
    """Back through one of the three."""
    stay_apart()
    if op[at.KIND] == at.FORK:
        add(ws, op[at.GY], op[at.KEPT], op[at.GY], m * op[at.ROW_X])
    elif op[at.KIND] == at.ADD:
        copy(ws, op[at.GY], op[at.KEPT], m * op[at.ROW_X])
    else:
        swap(ws, op[at.GY], op[at.GX], m, op[at.CHANNELS], op[at.PIXELS])


@kernel
def swap(ws, x, y, m, rows, columns):
    """y[r, j, i] = x[r, i, j] for m records."""
    stay_apart()
    for r in range(m):
        start = r * padded_length(rows * columns)
        for i in range(rows):
            for j in range(columns):
                ws[y + start + j * rows + i] = ws[x + start + i * columns + j]
