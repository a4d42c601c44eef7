"""Sums over the people whom silos hold out, and the means that the server makes of the totals.

Every record's value is clipped to [0, 2^16] and truncated to multiples of 2^-20, and integers are added. So the totals
are the same under every aggregation, bit for bit, and masks modulo 2^64 cancel in them. They carry no noise.

Who holds out fewer than ``MIN_HOLDOUT_PEOPLE`` people counts none of them: what anybody can take from the totals,
knowing the other silos' sums, is over that many people or over nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from uldp.data.federation import Records, SiloData
from uldp.learners.base import Learner
from uldp.privacy.sentences import MIN_HOLDOUT_PEOPLE
from uldp.vectors import Integers, Vector

MAX_VALUE: Final = 2.0**16
SCALE: Final = 1 << 20
MAX_RECORDS: Final = 1 << 26
"""Sums of so many records in all silos fit 63 bits."""

MeanMetrics = Sequence[tuple[str, float]]


def holdout_sums(x: Vector, holdout: SiloData | None, learner: Learner, mean_metrics: MeanMetrics) -> Integers:
    """One sum for each metric, and the number of records."""
    if holdout is None or len(np.unique(holdout.users)) < MIN_HOLDOUT_PEOPLE:
        return np.zeros(len(mean_metrics) + 1, dtype=np.int64)
    values = learner.record_metrics(x, Records(holdout.features, holdout.labels))
    # A value that is not a number counts as the largest: an error would reveal something about one record.
    values = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=MAX_VALUE, posinf=MAX_VALUE)
    scaled = np.trunc(np.clip(values, 0.0, MAX_VALUE) * SCALE).astype(np.int64)
    return np.append(scaled.sum(axis=0), len(scaled)).astype(np.int64)


def holdout_means(total: Integers, mean_metrics: MeanMetrics) -> dict[str, float] | None:
    """The metrics; empty without records, None for a total that cannot be one (masks that do not cancel)."""
    *sums, records = (int(value) for value in total)
    if not 0 <= records <= MAX_RECORDS or not all(0 <= value <= records * SCALE * MAX_VALUE for value in sums):
        return None
    if not records:
        return {}
    means = {
        f"holdout_{name}": value / SCALE / records * by for value, (name, by) in zip(sums, mean_metrics, strict=True)
    }
    return {**means, "holdout_records": float(records)}
