"""What a person's records are like on average: features, their spread, labels. One row per person, no model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from uldp.data.federation import IntArray, LabelArray, SiloData, Task
from uldp.learners.base import Vector

BLOCK_NUMBERS: Final = 2**20
"""How many numbers are looked at together; a person's row does not depend on it."""
CHUNK: Final = 256
"""A person's records are added up so many at a time, counted from the person's first one."""


def user_moments(
    data: SiloData, task: Task, outputs: int, centre: Vector | None, width: int
) -> Iterator[tuple[IntArray, Vector]]:
    """For every user with records: (users, rows of ``width`` numbers), in blocks.

    A row begins with a number for each feature and each output: the means over the user's records of the features and
    of the labels as a model has them (one-hot; 0 or 1 where there is one output). With a ``centre`` these are the mean
    squares of the differences from it instead. A value that is not finite makes the row so, and such a row counts as
    zero. Memory does not grow with the number of a person's records.

    >>> silo = SiloData("north", np.array([[1], [3], [5]], np.float32), np.array([0, 1, 1]), np.array([0, 0, 2]))
    >>> [(users.tolist(), rows.tolist()) for users, rows in user_moments(silo, Task(classes=2), 1, None, 3)]
    [([0, 2], [[2.0, 0.5, 0.0], [5.0, 1.0, 0.0]])]
    """
    order = np.argsort(data.users, kind="stable")
    users, starts, counts = np.unique(data.users[order], return_index=True, return_counts=True)
    block = max(1, BLOCK_NUMBERS // width)
    for first in range(0, len(users), block):
        some = slice(first, first + block)
        rows = np.zeros((len(users[some]), width))
        for owners, sums in _chunk_sums(data, order, (starts[some], counts[some]), (task, outputs), centre):
            with np.errstate(over="ignore", invalid="ignore"):
                np.add.at(rows[:, : sums.shape[1]], owners, sums)  # one after the other
        yield users[some], rows / counts[some, None]


def _chunk_sums(
    data: SiloData,
    order: IntArray,
    segments: tuple[IntArray, IntArray],
    labelled: tuple[Task, int],
    centre: Vector | None,
) -> Iterator[tuple[IntArray, Vector]]:
    """Sums over chunks of records, with the segment that each chunk belongs to, as many as fit into a block."""
    starts, counts = segments
    chunks = -(-counts // CHUNK)
    owners = np.repeat(np.arange(len(counts)), chunks)
    within = np.arange(len(owners)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
    begins = starts[owners] + CHUNK * within
    ends = np.minimum(begins + CHUNK, starts[owners] + counts[owners])
    size, first = int(np.prod(data.features.shape[1:])) + labelled[1], 0
    while first < len(owners):
        last = max(first + 1, int(np.searchsorted(ends, begins[first] + BLOCK_NUMBERS // size, side="right")))
        own = order[begins[first] : ends[last - 1]]
        features = data.features[own].reshape(len(own), -1).astype(np.float64)
        values = np.concatenate([features, _as_outputs(data.labels[own], *labelled)], axis=1)
        with np.errstate(over="ignore", invalid="ignore"):
            if centre is not None:
                values = np.square(values - centre)
            # In numpy's order, which depends on the chunk's length alone.
            sums = np.add.reduceat(values, begins[first:last] - begins[first], axis=0)
        yield owners[first:last], sums
        first = last


def _as_outputs(labels: LabelArray, task: Task, outputs: int) -> Vector:
    if task.kind == "classification" and outputs > 1:
        return np.asarray(np.arange(outputs) == labels[:, None], dtype=np.float64)
    return labels[:, None].astype(np.float64)
