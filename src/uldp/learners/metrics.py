"""Test metrics by name. A metric that is not defined for the records at hand is left out; there are no NaN entries."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from itertools import groupby
from typing import Final

import numpy as np
import numpy.typing as npt

from uldp.data.federation import IntArray, LabelArray, Task
from uldp.elementary import log, mean

Floats = npt.NDArray[np.float64]
Metric = Callable[[Floats, npt.NDArray[np.bool_]], float | None]

PRECISION: Final = 0.5
"""At which precision ``recall_at_precision`` is measured: every second record that is called positive is one."""


def score(
    task: Task, predictions: Floats, labels: LabelArray, loss: float, *, unbalanced: bool = False
) -> dict[str, float]:
    """All metrics that apply.

    ``predictions`` are class probabilities (records, classes), labels (records,) or, for survival, risks (records,).
    ``unbalanced`` says that a class is publicly known to be rare; metrics of rare classes apply then.
    """
    if not len(labels):
        return {}
    metrics: dict[str, float | None] = {"loss": loss}
    if task.kind == "classification":
        classes = labels.astype(np.int64)
        metrics["accuracy"] = float((predictions.argmax(1) == classes).mean())
        metrics["balanced_accuracy"] = balanced_accuracy(predictions.argmax(1), classes, predictions.shape[1])
        metrics["roc_auc"] = _over_classes(binary_auc, predictions, classes)
        if unbalanced:
            metrics["pr_auc"] = _over_classes(average_precision, predictions, classes)
            metrics["recall_at_precision"] = _over_classes(recall_at_precision, predictions, classes)
    elif task.kind == "survival":
        metrics["c_index"] = concordance(predictions, labels.astype(np.float64))
    else:
        errors = predictions - labels.astype(np.float64)
        metrics["r2"] = r_squared(errors, labels.astype(np.float64))
        metrics["mae"] = mean(np.abs(errors)) * abs(task.label_scale)
    return {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}


def base_loss(task: Task, known: LabelArray, labels: LabelArray) -> float:
    """The loss on ``labels`` of who has seen the labels ``known`` only, and predicts their shares or their mean.

    A class that was not seen counts as half a record.

    >>> base_loss(Task(0), np.array([1.0, 3.0], np.float32), np.array([2.0, 4.0], np.float32))
    2.0
    """
    if task.kind == "regression":
        errors = labels.astype(np.float64) - mean(known.astype(np.float64))
        return mean(errors * errors)
    counts = np.bincount(known.astype(np.int64), minlength=task.classes)
    shares = np.maximum(counts, 0.5) / len(known)
    return -mean(log(shares)[labels.astype(np.int64)])


def constant_loss(task: Task, labels: LabelArray) -> float | None:
    """The loss of always predicting how frequent each class is among ``labels``, or their mean; None for survival.

    >>> round(constant_loss(Task(classes=2), np.array([0, 0, 0, 1])), 4)
    0.5623
    """
    if not len(labels) or task.kind == "survival":
        return None
    if task.kind == "regression":
        offsets = labels.astype(np.float64) - mean(labels)
        return mean(offsets * offsets)
    shares = np.bincount(labels.astype(np.int64), minlength=task.classes) / len(labels)
    some = shares[shares > 0]
    return -math.fsum((some * log(some)).tolist())


def constant_accuracy(task: Task, labels: LabelArray) -> float | None:
    """The accuracy of always predicting the most frequent class among ``labels``; None without classes.

    >>> constant_accuracy(Task(classes=2), np.array([0, 0, 0, 1]))
    0.75
    """
    if not len(labels) or task.kind != "classification":
        return None
    return int(np.bincount(labels.astype(np.int64)).max()) / len(labels)


def balanced_accuracy(predicted: IntArray, classes: IntArray, count: int) -> float | None:
    """The mean over the classes of the share of their records that is predicted right; None when one is missing.

    >>> balanced_accuracy(np.array([0, 0, 0, 0]), np.array([0, 0, 0, 1]), count=2)
    0.5
    """
    records = np.bincount(classes, minlength=count)
    right = np.bincount(classes[predicted == classes], minlength=count)
    return math.fsum((right / records).tolist()) / count if records.all() else None


def _over_classes(metric: Metric, chances: Floats, classes: IntArray) -> float | None:
    """A metric of class 1 for two classes, the mean over one-against-rest for more.

    None when a class is missing, or when a score is not a number.
    """
    if not np.isfinite(chances).all():
        return None
    count = chances.shape[1]
    targets = [1] if count == 2 else range(count)
    areas = [metric(chances[:, target], classes == target) for target in targets]
    known = [area for area in areas if area is not None]
    return math.fsum(known) / len(known) if len(known) == len(areas) else None


def _precision_recall(scores: Floats, positive: npt.NDArray[np.bool_]) -> tuple[Floats, Floats] | None:
    """Precision and recall of calling positive all records from a score on, by falling score. None without both."""
    positives = int(positive.sum())
    if not 0 < positives < len(positive):
        return None
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)  # records of equal scores are called positive together
    found = np.cumsum(positive[order])[last]
    return found / (np.flatnonzero(last) + 1.0), found / positives


def average_precision(scores: Floats, positive: npt.NDArray[np.bool_]) -> float | None:
    """Area under the precision-recall curve, as a sum of steps. By chance it is the share of positives.

    >>> average_precision(np.array([0.1, 0.9, 0.4]), np.array([False, True, True]))
    1.0
    """
    curve = _precision_recall(scores, positive)
    return None if curve is None else math.fsum((curve[0] * np.diff(curve[1], prepend=0.0)).tolist())


def recall_at_precision(scores: Floats, positive: npt.NDArray[np.bool_], precision: float = PRECISION) -> float | None:
    """The largest share of the positives that can be found if at least ``precision`` of those called positive are.

    >>> recall_at_precision(np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, False, False, True]), precision=0.8)
    0.5
    """
    curve = _precision_recall(scores, positive)
    return None if curve is None else max(0.0, *curve[1][curve[0] >= precision].tolist(), 0.0)


def binary_auc(scores: Floats, positive: npt.NDArray[np.bool_]) -> float | None:
    """P(score of a positive > score of a negative), ties half: the rank-sum statistic. None without both kinds."""
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return None
    _, location, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[location]
    return float((ranks[positive].sum() - positives * (positives + 1) / 2.0) / (positives * negatives))


def concordance(risks: Floats, labels: Floats) -> float | None:
    """Harrell's C: of the pairs of which we know who had the event first, the share in which that one's risk is higher.

    Labels are +T for an event, -T for censored. A pair counts if the event came before the other's event or last
    observation; who was censored at the time of the event lived longer. Two events at one time say nothing. Equal
    risks count one half. None without such a pair, or when a risk is not a number.

    >>> concordance(np.array([3.0, 1.0, 2.0]), np.array([1.0, -2.0, 3.0]))
    1.0
    """
    if not np.isfinite(risks).all():
        return None
    # By falling time, and at one time the censored first: those seen before an event are the ones that outlived it.
    order = np.lexsort((labels > 0, -np.abs(labels)))
    longer: list[float] = []
    twice, pairs = 0, 0
    for label, group in groupby(order.tolist(), key=lambda record: float(labels[record])):
        members = [float(risks[record]) for record in group]
        if label > 0:
            twice += sum(bisect_left(longer, risk) + bisect_right(longer, risk) for risk in members)
            pairs += len(members) * len(longer)
        for risk in members:
            insort(longer, risk)
    return twice / (2 * pairs) if pairs else None


def r_squared(errors: Floats, labels: Floats) -> float | None:
    """1 - residual / total sum of squares; None when all labels are equal."""
    offsets = labels - mean(labels)
    total = mean(offsets * offsets)
    return 1.0 - mean(errors * errors) / total if total > 0 else None
