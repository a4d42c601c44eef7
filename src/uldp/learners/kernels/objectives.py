"""Gradients of the losses with respect to a model's outputs. Each record counts with ``weight``."""

from __future__ import annotations

from typing import Final

import numpy as np

from uldp.learners.kernels.maths import exp, log, logistic
from uldp.learners.kernels.randomness import sort_stably
from uldp.native.jit import inline, kernel, stay_apart
from uldp.native.simd import LANES, clear_lanes, first_lane, load, padded_length, splat, spread_like, store, total

CROSS_ENTROPY: Final = 0
LOGISTIC: Final = 1
SQUARED: Final = 2
COX: Final = 3

#: By the names of ``uldp.learners.losses``.
NUMBERS: Final = {
    "cross-entropy": CROSS_ENTROPY,
    "binary cross-entropy": LOGISTIC,
    "squared error": SQUARED,
    "Cox partial likelihood": COX,
}


@kernel
def cross_entropy(ws, z, offsets, labels, g, m, n, weight):
    """g[r, c] = weight (exp(s[r, c]) / sum over c of exp(s[r, c]) - [c is the label of r]) with s = z + offsets."""
    stay_apart()
    weights, zero = spread_like(ws, weight), spread_like(ws, 0.0)
    for r in range(m):
        row, target = z + r * padded_length(n), g + r * padded_length(n)
        largest = ws[row] + ws[offsets]
        for c in range(1, n):
            largest = max(largest, ws[row + c] + ws[offsets + c])
        sums = zero
        for c in range(0, n, LANES):
            value = exp(load(ws, row + c) + load(ws, offsets + c) - splat(largest))
            sums = sums + clear_lanes(value, n - c)
            store(ws, target + c, value)
        share = weights / splat(total(sums))
        for c in range(0, n, LANES):
            store(ws, target + c, load(ws, target + c) * share)
        label = ws[labels + r]
        if label >= 0 and label < n:
            ws[target + int(label)] -= first_lane(weights)
        else:  # no class of the model: nothing that a kernel may take for a place
            for c in range(n):
                ws[target + c] = np.nan


@kernel
def logistic_loss(ws, z, offsets, labels, g, m, weight):
    """g[r] = weight (1 / (1 + exp(-(z[r] + offset))) - y[r])."""
    stay_apart()
    weights, offset = spread_like(ws, weight), splat(ws[offsets])
    for r in range(m):
        at = r * LANES
        store(ws, g + at, (logistic(load(ws, z + at) + offset) - splat(ws[labels + r])) * weights)


@kernel
def label_offsets(ws, offsets, n, labels, records, count, pseudo_count):
    """log((n_c + a) / (sum of n_c + n a)) for each class c, of one user's labels; a is the pseudo-count.

    A model with a single output has the difference of the two.
    """
    stay_apart()
    for c in range(max(2, n)):
        ws[offsets + c] = pseudo_count
    for k in range(count):
        label = labels[records[k]]
        if label >= 0 and label < max(2, n):
            ws[offsets + int(label)] += 1.0
    whole = splat(ws[offsets])
    for c in range(1, max(2, n)):
        whole = whole + splat(ws[offsets + c])
    for c in range(max(2, n)):
        ws[offsets + c] = first_lane(log(splat(ws[offsets + c]) / whole))
    if n == 1:
        ws[offsets] = ws[offsets + 1] - ws[offsets]


@kernel
def squared_error(ws, z, labels, g, m, weight):
    """g[r] = 2 weight (z[r] - y[r])."""
    stay_apart()
    weights = spread_like(ws, 2.0 * weight)
    for r in range(m):
        at = r * LANES
        store(ws, g + at, (load(ws, z + at) - splat(ws[labels + r])) * weights)


@inline
def _log_sum(a, b):
    """log(exp(a) + exp(b))."""
    if a == -np.inf:
        return b
    if b == -np.inf:
        return a
    largest = a if a > b else b
    return largest + first_lane(log(splat(1.0 + first_lane(exp(splat(-abs(a - b)))))))


@kernel
def cox(scores, labels, gradient, m, keys, order, other_keys, other_order):
    """The gradient of Cox's partial likelihood, all in float64; labels are +T for an event, -T for censored at T.

    For record k: (sum over events i with T_i <= T_k of exp(s_k) / (sum over j with T_j >= T_i of exp(s_j)) - event_k)
    / events. Sums are kept as logarithms: no score is too large. ``scores`` is used up.
    """
    stay_apart()
    events = 0
    for k in range(m):
        # Positive numbers rise with their bits: by falling time, equal times in the records' own order.
        keys[k], order[k] = ~np.float64(abs(labels[k])).view(np.uint64), k
        events += labels[k] > 0
    sort_stably(keys, order, m, other_keys, other_order)
    for k in range(m):
        gradient[k] = 0.0
    if events == 0:
        return
    # risks: log of the sum over all with the same time or a later one, kept at the last of equal times
    running = -np.inf
    for k in range(m):
        running = _log_sum(running, scores[order[k]])
        gradient[k] = running
    for k in range(m - 2, -1, -1):
        if keys[k] == keys[k + 1]:
            gradient[k] = gradient[k + 1]
    # shares: log of the sum over events at the same time or an earlier one of 1 / risk
    running = -np.inf
    for k in range(m - 1, -1, -1):
        if labels[order[k]] > 0:
            running = _log_sum(running, -gradient[k])
        gradient[k] = running
    for k in range(1, m):
        if keys[k] == keys[k - 1]:
            gradient[k] = gradient[k - 1]
    for k in range(m):
        score = scores[order[k]]
        value = 0.0 if gradient[k] == -np.inf else first_lane(exp(splat(score + gradient[k])))
        gradient[k] = (value - (1.0 if labels[order[k]] > 0 else 0.0)) / events
    for k in range(m):
        scores[order[k]] = gradient[k]
    for k in range(m):
        gradient[k] = scores[k]
