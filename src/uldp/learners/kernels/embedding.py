"""Embedding: the first columns of a record are numbers of categories, each with a row of trained numbers."""

from __future__ import annotations

from typing import Final

import numpy as np

from uldp.learners.kernels import layout as at
from uldp.learners.kernels.pooling import fill_zero
from uldp.native.jit import inline, kernel, stay_apart
from uldp.native.simd import LANES, clear_lanes, load, spread_like, store, store_tail

_UNKNOWN: Final = -1
_NOT_A_NUMBER: Final = -2


@inline
def category(value, categories):
    """The row of a value: its whole part where there is such a row. No other number is ever taken for a place."""
    if value >= 0 and value < categories:
        return int(value)
    return _UNKNOWN if value - value == 0 else _NOT_A_NUMBER


@kernel
def embed(ws, op, m):
    """y = (table[x[0]], ..., table[x[e - 1]], x[e], x[e + 1], ...); zeros for unknown categories, NaN for NaN."""
    stay_apart()
    dimension, embedded = op[at.DIMENSION], op[at.EMBEDDED]
    nothing, nan = spread_like(ws, 0.0), spread_like(ws, np.nan)
    for r in range(m):
        x, y = op[at.X] + r * op[at.ROW_X], op[at.Y] + r * op[at.ROW_Y]
        for k in range(embedded):
            number = category(ws[x + k], op[at.CATEGORIES])
            for i in range(0, dimension, LANES):
                value = nothing if number == _UNKNOWN else nan
                if number >= 0:
                    value = load(ws, op[at.W] + number * op[at.ROW] + i)
                store_tail(ws, y + k * dimension + i, value, dimension - i)
        for k in range(embedded, op[at.NX]):
            ws[y + embedded * (dimension - 1) + k] = ws[x + k]


@kernel
def add_rows(ws, op, r, dw):
    """dw[x[k]] += g[k] for the embedded columns k of record r, in their order."""
    stay_apart()
    dimension = op[at.DIMENSION]
    for k in range(op[at.EMBEDDED]):
        number = category(ws[op[at.X] + r * op[at.ROW_X] + k], op[at.CATEGORIES])
        if number >= 0:
            target, g = dw + number * op[at.ROW], op[at.GY] + r * op[at.ROW_Y] + k * dimension
            for i in range(0, dimension, LANES):
                store(ws, target + i, load(ws, target + i) + clear_lanes(load(ws, g + i), dimension - i))


@kernel
def embedding_gradient(ws, op, head, m, dw, fresh, explicit):
    """The gradient of the table: of all records, or with ``explicit`` each record's own, where zeros are."""
    stay_apart()
    if fresh and not explicit:
        fill_zero(ws, dw, op[at.CATEGORIES] * op[at.ROW])
    for r in range(m):
        add_rows(ws, op, r, head[at.RECORD_GRADIENTS] + r * head[at.EXPLICIT] + op[at.W] if explicit else dw)
