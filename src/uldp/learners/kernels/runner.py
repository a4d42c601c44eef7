"""Runs programs on a silo's records: users in blocks, blocks on threads, one user after the other within a block.

A user's row is computed by one thread, in a workspace in which nothing is read that was not written for this user. So
it depends on that user's records, on x and on the keys alone, bit for bit, whoever else is there.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from uldp.errors import ModelError
from uldp.learners.base import LocalTraining, Rows, Vector
from uldp.learners.kernels import SOURCES, objectives, optimisers
from uldp.learners.kernels import layout as at
from uldp.learners.kernels.forms import IntArray
from uldp.learners.kernels.program import Program
from uldp.native.simd import LANES
from uldp.native.threads import in_threads

Words = npt.NDArray[np.uint64]
Settings = tuple[float, float, float, float]
Item = TypeVar("Item")
Result = TypeVar("Result")

_OPTIMISERS: Final = {"sgd": optimisers.SGD, "adam": optimisers.ADAM, "adamw": optimisers.ADAMW}
#: A block's rows are at most this large, so that memory does not grow with the number of users.
_BLOCK_BYTES: Final = 4 * 2**20
_BLOCK_USERS: Final = 32
_BLOCK_RECORDS: Final = 256
#: Of a batch of DP-SGD: several blocks even of a small one, for several threads.
_CLIPPED_RECORDS: Final = 32
_BLOCKS: Final = 8
#: Less work than this (products) is done before a thread is started.
_LITTLE_WORK: Final = 3 * 10**6


@functools.cache
def compiled_interpreter() -> Any:
    """The interpreter, with its compiled code on disk."""
    from uldp.learners.kernels.interpreter import run
    from uldp.native.cache import keep_on_disk

    return keep_on_disk(run, SOURCES)


@dataclass(frozen=True)
class TrainingTable:
    """A silo's records as the kernels read them."""

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.float64]

    @classmethod
    def of(cls, features: npt.NDArray[Any], labels: npt.NDArray[Any]) -> TrainingTable:
        flat = np.ascontiguousarray(features, dtype=np.float32).reshape(len(features), prod(features.shape[1:]))
        return cls(flat, np.ascontiguousarray(labels, dtype=np.float64))


@dataclass(frozen=True)
class Groups:
    """Users, and where each one's records stand in ``records``; ``keys`` are (dropout, order) of each user."""

    users: IntArray
    starts: IntArray
    counts: IntArray
    records: IntArray
    keys: Words


class _Workspaces(threading.local):
    """One workspace per thread."""

    workspace: npt.NDArray[Any] | None = None


class Runner:
    """A program, the type it computes in, and the number of threads (torch's own by default).

    ``allocate(size, dtype)`` makes the arrays that kernels work in: no result depends on what they hold.
    """

    def __init__(
        self,
        program: Program,
        dtype: npt.DTypeLike,
        threads: int | None = None,
        allocate: Callable[[int, Any], npt.NDArray[Any]] = np.zeros,
    ) -> None:
        self.program, self.dtype, self._threads, self._allocate = program, np.dtype(dtype), threads, allocate
        self._room = _Workspaces()

    def deltas(
        self, x: Vector, table: TrainingTable, groups: Groups, local: LocalTraining
    ) -> Iterator[tuple[IntArray, Rows]]:
        """(users, rows x_u - x) after Q epochs, block by block."""
        optimiser = optimisers.MOMENTUM if local.momentum else _OPTIMISERS[local.optimizer]
        settings = (local.lr, local.weight_decay, local.momentum, local.pseudo_count)
        return self._users(at.TRAIN, x, table, groups, settings, (local.epochs, local.batch_size, optimiser))

    def gradients(self, x: Vector, table: TrainingTable, groups: Groups) -> Iterator[tuple[IntArray, Rows]]:
        """(users, rows): the gradients of the users' mean losses, block by block."""
        return self._users(at.GRADIENT, x, table, groups, _NO_SETTINGS, (0, 0, 0))

    def clipped_sum(
        self, x: Vector, table: TrainingTable, records: IntArray, keys: Words, step: int, clip: float
    ) -> Vector:
        """The sum of the records' clipped gradients; blocks of records have a fixed size, and are added in order."""
        if self.program.header[at.LOSS] == objectives.COX:
            raise ModelError("this loss compares records: a single one has no gradient", location="model")
        start = self._start(x)

        def block(begin: int) -> Vector:
            sums = np.zeros(self.program.parameters)
            part = slice(begin, begin + _CLIPPED_RECORDS)
            users = Groups(_NONE, _NONE, _NONE, records[part], keys[part])
            _check(self.program, table, users, at.CLIP)
            self._call(at.CLIP, start, table, users, (clip, 0.0, 0.0, 0.0), (step, 0, 0), self._rows(0), sums)
            return sums

        total, part = np.zeros(self.program.parameters), np.zeros(self.program.parameters)
        for number, sums in enumerate(self._spread(block, range(0, len(records), _CLIPPED_RECORDS)), 1):
            part += sums
            if number % _BLOCKS == 0:  # in two stages: a sum of millions rounds less
                total += part
                part[:] = 0
        return total + part

    def outputs(self, x: Vector, table: TrainingTable) -> npt.NDArray[np.float64]:
        """(records, outputs) of the model, dropout off."""
        start = self._start(x)

        def block(begin: int) -> npt.NDArray[np.float64]:
            records = np.arange(begin, min(begin + _BLOCK_RECORDS, len(table.labels)), dtype=np.int64)
            rows = np.zeros((len(records), self.program.outputs), dtype=self.dtype)
            users = Groups(_NONE, _NONE, _NONE, records, np.zeros((0, 2), dtype=np.uint64))
            _check(self.program, table, users, at.PREDICT)
            self._call(at.PREDICT, start, table, users, _NO_SETTINGS, (0, 0, 0), rows, np.zeros(0))
            return rows.astype(np.float64)

        parts = list(self._spread(block, range(0, len(table.labels), _BLOCK_RECORDS)))
        return np.concatenate([np.zeros((0, self.program.outputs)), *parts])

    # --- blocks ---------------------------------------------------------------------------------------------------

    def _users(
        self,
        what: int,
        x: Vector,
        table: TrainingTable,
        groups: Groups,
        settings: Settings,
        options: tuple[int, int, int],
    ) -> Iterator[tuple[IntArray, Rows]]:
        start = self._start(x)
        _check(self.program, table, groups, what)
        work = int(groups.counts.sum()) * max(1, options[0]) * self.program.products
        most = len(groups.users) if work < _LITTLE_WORK else _BLOCK_USERS
        size = max(1, min(most, _BLOCK_BYTES // (self.program.parameters * self.dtype.itemsize)))

        def block(begin: int) -> tuple[IntArray, Rows]:
            part = slice(begin, begin + size)
            users = Groups(
                groups.users[part], groups.starts[part], groups.counts[part], groups.records, groups.keys[part]
            )
            rows = self._rows(len(users.users))
            self._call(what, start, table, users, settings, options, rows, np.zeros(0))
            return users.users, rows

        return self._spread(block, range(0, len(groups.users), size))

    def _spread(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        threads = min(self._threads or torch.get_num_threads(), len(items))
        return in_threads(work, items, threads) if threads > 1 else map(work, items)

    def _rows(self, count: int) -> npt.NDArray[Any]:
        return np.zeros((count, self.program.parameters), dtype=self.dtype)

    def _start(self, x: Vector) -> npt.NDArray[Any]:
        """The parameters as they lie in the workspace."""
        compiled_interpreter()  # here, not in several threads at once
        places = self.program.places
        start = np.zeros(len(places) + LANES, dtype=self.dtype)
        inside = places >= 0
        start[: len(places)][inside] = x[places[inside]]
        return start

    def _workspace(self) -> npt.NDArray[Any]:
        if self._room.workspace is None:
            self._room.workspace = self._allocate(int(self.program.header[at.WORKSPACE]) + LANES, self.dtype)
        return self._room.workspace

    def _call(
        self,
        what: int,
        start: npt.NDArray[Any],
        table: TrainingTable,
        users: Groups,
        settings: Settings,
        options: tuple[int, int, int],
        rows: npt.NDArray[Any],
        sums: Vector,
    ) -> None:
        program, head = self.program, self.program.header
        most = int(users.counts.max(initial=1))
        given = (
            program.table, program.reals, head, np.array(settings, dtype=np.float64),
            np.array(options, dtype=np.int64), start, program.places, table.features, table.labels,
            users.records, users.starts, users.counts, users.keys,
        )  # fmt: skip
        compiled_interpreter()(
            what,
            self._workspace(),
            self._allocate(int(head[at.INTEGERS]) + 4 * most, np.int64),
            self._allocate(2 * program.tile + 4 * most, np.uint64),
            self._allocate(int(head[at.CLIPPED]) if what == at.CLIP else 3 * most, np.float64),
            *(_read_only(array) for array in given),
            rows,
            sums,
        )


_NO_SETTINGS: Final = (0.0, 0.0, 0.0, 0.0)
_NONE: Final[IntArray] = np.zeros(0, dtype=np.int64)


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What kernels only read. Arrays that may be written are of another type, for which all would be compiled again."""
    view = array.view()
    view.flags.writeable = False
    return view


def _check(program: Program, table: TrainingTable, users: Groups, what: int) -> None:
    """Kernels do not look where they read: everything is looked at here, once for all blocks of users."""
    starts, counts, records = users.starts, users.counts, users.records
    keys = 0 if what == at.PREDICT else len(records) if what == at.CLIP else len(starts)
    if not (
        table.features.shape == (len(table.labels), program.header[at.N_FEATURES])
        and users.keys.shape == (keys, 2)
        and len(starts) == len(counts)
        and records.min(initial=0) >= 0
        and records.max(initial=-1) < len(table.labels)
        and starts.min(initial=0) >= 0
        and counts.min(initial=1) >= 1
        and (starts + counts).max(initial=0) <= len(records)
    ):
        raise ModelError("records and program do not fit together", location="model")
