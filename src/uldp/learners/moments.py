"""What a person's records are like on average: features, their spread, labels. One row per person, no model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from uldp.data.federation import IntArray, LabelArray, SiloData, Task
from uldp.learners.base import Vector

BLOCK_NUMBERS: Final = 2**22
"""How many numbers are looked at together; a person's row does not depend on it."""


def user_moments(data: SiloData, task: Task, outputs: int, centre: Vector | None) -> Iterator[tuple[IntArray, Vector]]:
    """For every user with records: (users, rows), in blocks; a row has a number for each feature and each output.

    These are the means over the user's records of the features and of the labels as a model has them (one-hot; 0 or 1
    where there is one output). With a ``centre`` they are the mean squares of the differences from it instead. A value
    that is not finite makes the row so, and such a row counts as zero.

    >>> silo = SiloData("north", np.array([[1], [3], [5]], np.float32), np.array([0, 1, 1]), np.array([0, 0, 2]))
    >>> [(users.tolist(), rows.tolist()) for users, rows in user_moments(silo, Task(classes=2), 1, None)]
    [([0, 2], [[2.0, 0.5], [5.0, 1.0]])]
    """
    order = np.argsort(data.users, kind="stable")
    users, starts, counts = np.unique(data.users[order], return_index=True, return_counts=True)
    ends, first = starts + counts, 0
    block = max(1, BLOCK_NUMBERS // (int(np.prod(data.features.shape[1:])) + outputs))
    while first < len(users):
        last = max(first + 1, int(np.searchsorted(ends, starts[first] + block, side="right")))
        own = order[starts[first] : ends[last - 1]]
        features = data.features[own].reshape(len(own), -1).astype(np.float64)
        values = np.concatenate([features, _as_outputs(data.labels[own], task, outputs)], axis=1)
        with np.errstate(over="ignore", invalid="ignore"):
            if centre is not None:
                values = np.square(values - centre)
            # A segment is added up from its own rows alone, one after the other.
            sums = np.add.reduceat(values, starts[first:last] - starts[first], axis=0)
        yield users[first:last], sums / counts[first:last, None]
        first = last


def _as_outputs(labels: LabelArray, task: Task, outputs: int) -> Vector:
    if task.kind == "classification" and outputs > 1:
        return np.asarray(np.arange(outputs) == labels[:, None], dtype=np.float64)
    return labels[:, None].astype(np.float64)
