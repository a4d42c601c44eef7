"""Sums of clipped gradients of single records, as DP-SGD needs them.

Two ways. *Rows*: single records take the place of users in the batched engine, one model per record, all of them at x;
their rows are clipped and added up. It works for every model. *Ghosts*, for tables and layers with batched rules: all
records go through one model, and nobody's gradient is ever formed. A dense layer's gradient of record i is the product
of its input a_i and of the gradient b_i of its output, so its norm is |a_i| |b_i|, and the clipped sum is one product
of matrices with the factors min(1, C / norm_i) in between (Goodfellow 2015; Li et al., ICLR 2022).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import Tensor

from uldp.data.federation import IntArray, SiloData
from uldp.errors import ConfigError, UldpError
from uldp.learners.base import Rows, Vector
from uldp.learners.compile import Compiled
from uldp.learners.losses import Loss, Targets
from uldp.learners.nets import Net, RulesNet
from uldp.learners.noise import Noise
from uldp.learners.rules import Dropout, Moment
from uldp.learners.threads import one_thread
from uldp.learners.updates import Accumulate, Weight
from uldp.rng import Streams
from uldp.vectors import clip_rows

MARGIN: Final = 1e-5
"""Ghost norms are float32: the clip is taken so much smaller, relatively, that rounding does not carry beyond it."""


class RecordTensors:
    """A silo's records, and what each is known by: its user and its place among that user's records.

    Neither changes when other users leave, so that what is random about a record (dropout) does not change either.
    """

    def __init__(self, data: SiloData, features: Tensor, labels: Tensor, loss: Loss) -> None:
        if not loss.additive:
            raise ConfigError(
                f"the {loss.name} compares records with each other, so a single record has no gradient; take a method "
                "that clips per user",
                place="method.name",
            )
        self.features, self.labels, self.loss = features, labels, loss
        order = np.argsort(data.users, kind="stable")
        counts = np.bincount(data.users)
        places = np.arange(len(data)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.names = np.empty(len(data), dtype=np.int64)
        self.names[order] = (data.users[order].astype(np.int64) << 32) + places


class RowSums:
    """One row per record, clipped and added up, a chunk at a time."""

    def __init__(
        self, records: RecordTensors, make: Callable[[Tensor, int], Net], dimension: int, capacity: int, small: bool
    ) -> None:
        self._records, self._make, self._dimension = records, make, dimension
        self._capacity, self._small = capacity, small
        self._nets: dict[int, Net] = {}

    def __call__(self, x: Tensor, chosen: IntArray, clip: float, step: int, streams: Streams) -> Vector:
        total = np.zeros(self._dimension)
        for first in range(0, len(chosen), self._capacity):
            rows = self._safely(x, chosen[first : first + self._capacity], step, streams)
            # A row that is not finite has to count as something of norm at most C: as zero.
            finite = np.isfinite(rows).all(axis=1)
            total += clip_rows(rows if finite.all() else rows[finite], clip).sum(axis=0)
        return total

    def _safely(self, x: Tensor, chosen: IntArray, step: int, streams: Streams) -> Rows:
        """A model may raise on one record: its row is then not a number. The error must not leave the silo."""
        try:
            return self.rows(x, chosen, step, streams)
        except (MemoryError, UldpError):
            raise
        except Exception:
            if len(chosen) == 1:
                return np.full((1, self._dimension), np.nan, dtype=np.float32)
            singles = (self._safely(x, chosen[i : i + 1], step, streams) for i in range(len(chosen)))
            return np.concatenate([row.astype(np.float64) for row in singles])

    def rows(self, x: Tensor, chosen: IntArray, step: int, streams: Streams) -> Rows:
        """The gradients of some records."""
        with torch.no_grad(), one_thread(self._small):
            net = self._net(x, len(chosen))
            places = torch.from_numpy(chosen)
            features = self._records.features[places].unsqueeze(1)
            labels = self._records.labels[places].unsqueeze(1)
            mask = torch.ones((len(chosen), 1), dtype=x.dtype, device=x.device)
            moment = Moment(Noise(streams, self._records.names[chosen]), step, ahead=1)
            net.step(net.prepare(features), Targets(labels, mask), moment, Accumulate())
            rows = torch.empty((len(chosen), self._dimension), dtype=x.dtype, device=x.device)
            net.store_states(rows)
            return rows.cpu().numpy()

    def _net(self, x: Tensor, records: int) -> Net:
        """A net with room for so many records, all of them at x; nets are kept, by powers of two."""
        room = min(1 << max(3, (records - 1).bit_length()), max(self._capacity, records))
        if room not in self._nets:
            self._nets[room] = self._make(x, room)
        self._nets[room].restart(x, records)
        return self._nets[room]


class GhostSums:
    """Clipped sums of table models without anybody's gradient."""

    def __init__(self, records: RecordTensors, compiled: Compiled, x: Tensor, capacity: int) -> None:
        self._records, self._capacity = records, capacity
        self._net = RulesNet(compiled, records.loss, x, 1)
        self._features = records.features.flatten(1)
        self._random = any(isinstance(rule, Dropout) for rule in compiled.rules)
        self._still = Noise(Streams.from_seed(0), np.zeros(1, dtype=np.int64))

    def __call__(self, x: Tensor, chosen: IntArray, clip: float, step: int, streams: Streams) -> Vector:
        total = torch.zeros((1, x.numel()), dtype=torch.float64)
        with torch.no_grad(), one_thread():
            for first in range(0, len(chosen), self._capacity):
                part = chosen[first : first + self._capacity]
                places = torch.from_numpy(part)
                labels = self._records.labels[places].unsqueeze(0)
                mask = torch.ones((1, len(part)), dtype=x.dtype)
                update = _Ghosts()
                self._net.restart(x, 1)
                noise = Noise(streams, self._records.names[part]) if self._random else self._still
                moment = Moment(noise, step, ahead=1, by_record=True)
                targets = Targets(labels, mask, share=torch.full((1,), len(part), dtype=x.dtype))
                self._net.step(self._features[places].unsqueeze(0), targets, moment, update)
                update.accumulate(clip * (1 - MARGIN))
                row = torch.empty((1, x.numel()), dtype=x.dtype)
                self._net.store_states(row)
                total += row.double()
        return total[0].numpy()


class _Ghosts:
    """An update that keeps the factors of every record's gradient, and adds up the clipped ones at the end."""

    def __init__(self) -> None:
        self._products: list[tuple[Weight, Tensor, Tensor]] = []
        self._rows: list[tuple[Weight, Tensor]] = []
        self._squares: Tensor | None = None

    def begin(self, step: int) -> None:
        pass

    def product(self, weight: Weight, a: Tensor, b: Tensor) -> None:
        # a is (1, inputs, records), b is (1, records, outputs)
        self._products.append((weight, a, b))
        self._add(torch.linalg.vector_norm(a, dim=1).mul_(torch.linalg.vector_norm(b, dim=2)))

    def rows(self, weight: Weight, gradients: Tensor) -> None:
        # The layer may go on to overwrite them.
        self._rows.append((weight, gradients.clone()))
        self._add(torch.linalg.vector_norm(gradients, dim=2))

    def dense(self, weight: Weight, gradient: Tensor) -> None:
        raise AssertionError("a gradient that is already summed over records cannot be clipped: the layer has no rows")

    def _add(self, norms: Tensor) -> None:
        squares = norms.double().square_()
        self._squares = squares if self._squares is None else self._squares.add_(squares)

    def accumulate(self, clip: float) -> None:
        """Leave the clipped sum in the weights' states."""
        if self._squares is None:
            return
        # A gradient that is not finite counts as zero; so that 0 times infinity does not come back, its factors do too.
        lost = ~torch.isfinite(self._squares)
        factors = (clip / self._squares.sqrt()).clamp_(max=1.0).masked_fill_(lost, 0.0).unsqueeze(2)
        any_lost = bool(lost.any())
        for weight, a, b in self._products:
            factor = factors.to(b.dtype)
            if any_lost:
                a, b = a.masked_fill(lost.unsqueeze(1), 0.0), b.masked_fill(lost.unsqueeze(2), 0.0)
            weight.add_states(1)[0].baddbmm_(a, b * factor)
        for weight, gradients in self._rows:
            rows = gradients.masked_fill(lost.unsqueeze(2), 0.0) if any_lost else gradients
            weight.add_states(1)[0].add_((rows * factors.to(rows.dtype)).sum(1, keepdim=True))
