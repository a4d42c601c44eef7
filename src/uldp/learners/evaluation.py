"""Losses and probabilities from a model's outputs, in float64: the same bits on every processor.

``losses`` has the same losses for autograd, whose functions differ between processors in the last bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.data.federation import LabelArray
from uldp.elementary import Floats, exp, log, log1p, logistic, mean, row_sums

COX: Final = "Cox partial likelihood"


def probabilities(outputs: Floats) -> Floats:
    """(records, classes): the logistic function of a single output, else the softmax of outputs (records, classes)."""
    if outputs.shape[1] == 1:
        chance = logistic(outputs)
        return np.concatenate([1.0 - chance, chance], axis=1)
    _, powers = _powers(outputs)
    return powers / row_sums(powers)[:, None]


def mean_loss(name: str, outputs: Floats, labels: LabelArray) -> float:
    """The loss called ``name`` of all records together."""
    if name == COX:
        return _cox(outputs[:, 0], labels.astype(np.float64))
    return mean(record_losses(name, outputs, labels))


def record_losses(name: str, outputs: Floats, labels: LabelArray) -> Floats:
    """(records,): every record's part of a loss that is a mean over records."""
    with np.errstate(invalid="ignore", over="ignore"):  # outputs may be anything
        return _RECORD_LOSSES[name](outputs, labels)


def _binary_cross_entropy(outputs: Floats, labels: LabelArray) -> Floats:
    """log(1 + exp(z)) - y z for a logit z, without large powers."""
    z = outputs[:, 0]
    return np.maximum(z, 0.0) - z * labels + log1p(exp(-np.abs(z)))


def _cross_entropy(outputs: Floats, labels: LabelArray) -> Floats:
    """log of the sum over c of exp(z_c), less the output of the record's own class."""
    largest, powers = _powers(outputs)
    classes = labels.astype(np.int64)
    known = (classes >= 0) & (classes < outputs.shape[1])
    own = outputs[np.arange(len(outputs)), np.where(known, classes, 0)]
    return np.where(known, log(row_sums(powers)) - (own - largest), math.nan)


def _squared_error(outputs: Floats, labels: LabelArray) -> Floats:
    error = outputs[:, 0] - labels
    return np.asarray(error * error)


_RECORD_LOSSES: Final[dict[str, Callable[[Floats, LabelArray], Floats]]] = {
    "binary cross-entropy": _binary_cross_entropy,
    "cross-entropy": _cross_entropy,
    "squared error": _squared_error,
}


def _powers(outputs: Floats) -> tuple[Floats, Floats]:
    """The largest output m of each record, and exp(z - m)."""
    largest = outputs.max(axis=1)
    with np.errstate(invalid="ignore"):
        return largest, exp(outputs - largest[:, None])


def _cox(scores: Floats, labels: Floats) -> float:
    """See ``losses.CoxPartialLikelihood``. Sums are relative to the largest score so far: none is too large."""
    order = np.argsort(-np.abs(labels), kind="stable")
    times, events, scores = np.abs(labels)[order], labels[order] > 0, scores[order]
    if not events.any():
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        largest = np.maximum.accumulate(scores)
        terms = exp(scores - largest)
        shrink = exp(np.concatenate([[-math.inf], largest[:-1]]) - largest)
        last = np.searchsorted(-times, -times, side="right") - 1
        risks = largest + log(_running_sums(terms, shrink))
        return mean((risks[last] - scores)[events])


def _running_sums(terms: Floats, factors: Floats) -> npt.NDArray[np.float64]:
    """s_k = s_(k-1) factor_k + term_k, from 0."""
    total, sums = 0.0, []
    for term, factor in zip(terms.tolist(), factors.tolist(), strict=True):
        total = total * factor + term
        sums.append(total)
    return np.array(sums)
