"""Losses for many users at once: outputs (users, records, outputs) and a mask give one mean loss per user.

The mask is part of the interface, so that padding stays out, also for a loss that couples the records of one user.
``gradient`` is written by hand for the batched rules; the value itself is differentiable for everyone else.
"""

from __future__ import annotations

import copy
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from uldp.data.federation import Task
from uldp.errors import ModelError


class Targets:
    """Labels and mask (users, records) of one batch, with the weight of each record in its user's mean.

    ``share`` (users,) scales a user's loss: a part of a batch counts as much as it has records.
    """

    def __init__(self, labels: Tensor, mask: Tensor, share: Tensor | None = None) -> None:
        self.labels = labels
        self.mask = mask
        self.share = share
        self.weights = mask / mask.sum(1, keepdim=True).clamp(min=1.0)
        if share is not None:
            self.weights *= share.unsqueeze(1)
        self._hot: Tensor | None = None
        self._risk_sets: RiskSets | None = None
        self._whole: tuple[Targets, int, int] | None = None

    def part(self, first: int, last: int) -> Targets:
        """Of some of the rows."""
        some = copy.copy(self)
        some.labels, some.mask, some.weights = self.labels[first:last], self.mask[first:last], self.weights[first:last]
        some.share = None if self.share is None else self.share[first:last]
        some._hot = some._risk_sets = None
        some._whole = (self, first, last)
        return some

    def weighted_hot(self, classes: int) -> Tensor:
        """One-hot labels times weights, made once: most batches are used in every epoch."""
        if self._hot is None:
            hot = torch.zeros((*self.labels.shape, classes), dtype=self.weights.dtype, device=self.labels.device)
            self._hot = hot.scatter_(2, self.labels.unsqueeze(2), self.weights.unsqueeze(2))
        return self._hot

    def risk_sets(self) -> RiskSets:
        """Of labels that are survival times; made once, for the batches of several steps together."""
        if self._risk_sets is None:
            if self._whole is None:
                self._risk_sets = RiskSets(self.labels, self.mask)
            else:
                whole, first, last = self._whole
                self._risk_sets = whole.risk_sets().part(first, last)
        return self._risk_sets


class RiskSets:
    """Who was under observation when an event happened. Labels are +T for an event at time T, -T for censored at T.

    ``order`` (users, records) sorts by falling time, padding last. The risk set of a record, all records of the user
    with the same time or a later one, is then everything up to the place ``last``; whom a record was at risk with,
    everything from the place ``first`` on. Both count places of the order. ``events`` is a user's number of events, at
    least 1.
    """

    def __init__(self, labels: Tensor, mask: Tensor) -> None:
        present = mask > 0
        # Stable: records with the same time keep their own order, whatever the sorting algorithm.
        times, self.order = torch.where(present, labels.abs(), -1.0).sort(dim=1, descending=True, stable=True)
        self.event = ((labels > 0) & present).gather(1, self.order)
        self.events = self.event.sum(1, keepdim=True).clamp(min=1)
        edge = torch.ones_like(self.event[:, :1])
        new = torch.cat([edge, times[:, 1:] != times[:, :-1]], 1)
        places = torch.arange(times.shape[1], device=times.device).expand_as(times)
        self.first = torch.where(new, places, 0).cummax(1).values
        final = torch.cat([new[:, 1:], edge], 1)
        self.last = torch.where(final, places, times.shape[1]).flip(1).cummin(1).values.flip(1)

    def part(self, first: int, last: int) -> RiskSets:
        """Of some of the rows."""
        some = copy.copy(self)
        some.order, some.event, some.events = self.order[first:last], self.event[first:last], self.events[first:last]
        some.first, some.last = self.first[first:last], self.last[first:last]
        return some


class Loss(Protocol):
    """A user's loss over a batch of that user's records.

    ``additive`` says that the mean over records may be accumulated over parts of a batch.
    """

    name: str
    additive: bool

    def labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """Labels in the type that this loss computes with."""
        ...

    def __call__(self, outputs: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """(users,): the mean over each user's unmasked records."""
        ...

    def gradient(self, outputs: Tensor, targets: Targets) -> Tensor:
        """(users, records, outputs): the gradient of each user's loss."""
        ...


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    # where, not a product: a padded record's infinity must not become NaN.
    return torch.where(mask > 0, values, 0.0).sum(1) / mask.sum(1).clamp(min=1.0)


class BinaryCrossEntropy:
    """Two classes, one logit."""

    name = "binary cross-entropy"
    additive = True

    def labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        return labels.to(dtype)

    def __call__(self, outputs: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        values = functional.binary_cross_entropy_with_logits(outputs.squeeze(2), labels, reduction="none")
        return _mean(values, mask)

    def gradient(self, outputs: Tensor, targets: Targets) -> Tensor:
        return logistic(outputs.squeeze(2)).sub_(targets.labels).mul_(targets.weights).unsqueeze(2)


class CrossEntropy:
    """One output per class."""

    name = "cross-entropy"
    additive = True

    def labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        return labels.to(torch.int64)

    def __call__(self, outputs: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        logs = torch.log_softmax(outputs, 2)
        return _mean(-logs.gather(2, labels.unsqueeze(2)).squeeze(2), mask)

    def gradient(self, outputs: Tensor, targets: Targets) -> Tensor:
        if outputs.shape[2] == 2:
            # The same, and several times faster than a softmax over two.
            chance = logistic(outputs[:, :, 1] - outputs[:, :, 0])
            second = chance.sub_(targets.labels).mul_(targets.weights)
            return torch.stack([-second, second], 2)
        chances = torch.softmax(outputs, 2)
        return chances.mul_(targets.weights.unsqueeze(2)).sub_(targets.weighted_hot(outputs.shape[2]))


class SquaredError:
    """A number per record; the loss is (output - label)^2."""

    name = "squared error"
    additive = True

    def labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        return labels.to(dtype)

    def __call__(self, outputs: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return _mean((outputs.squeeze(2) - labels).square(), mask)

    def gradient(self, outputs: Tensor, targets: Targets) -> Tensor:
        return (outputs.squeeze(2) - targets.labels).mul_(targets.weights).mul_(2.0).unsqueeze(2)


class CoxPartialLikelihood:
    """Cox's proportional hazards: one score per record, the log of its relative risk.

    The negative log partial likelihood of a user's batch, divided by its number of events:
    mean over events i of log(sum over j with T_j >= T_i of exp(s_j)) - s_i. Records with the same time are all in
    each other's risk sets (Breslow's treatment of ties: it needs no case for them, and costs little accuracy while
    ties are few). Without an event, and for a record alone, loss and gradient are zero.

    The sums are kept as logarithms throughout: no score is too large. They run along the records of one user in one
    fixed order, so that a user's result does not depend on the place where the user stands.
    """

    name = "Cox partial likelihood"
    additive = False

    def labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        return labels.to(dtype)

    def __call__(self, outputs: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        sets = RiskSets(labels, mask)
        scores = outputs.squeeze(2).gather(1, sets.order)
        terms = torch.where(sets.event, scores.logcumsumexp(1).gather(1, sets.last) - scores, 0.0)
        return terms.sum(1) / sets.events.squeeze(1)

    def gradient(self, outputs: Tensor, targets: Targets) -> Tensor:
        # For record k: (sum over events i with T_i <= T_k of exp(s_k) / (sum over i's risk set) - event_k) / events.
        sets = targets.risk_sets()
        scores = outputs.squeeze(2).gather(1, sets.order)
        risks = scores.logcumsumexp(1).gather(1, sets.last)
        shares = torch.where(sets.event, -risks, -torch.inf).flip(1).logcumsumexp(1).flip(1).gather(1, sets.first)
        # No share, no gradient: padding comes after the last event, and may hold any number.
        g = torch.where(shares == -torch.inf, 0.0, (scores + shares).exp()).sub_(sets.event.to(scores.dtype))
        g /= sets.events
        return torch.empty_like(g).scatter_(1, sets.order, g).unsqueeze(2)


def logistic(values: Tensor) -> Tensor:
    """1 / (1 + exp(-v)).

    ``torch.sigmoid`` rounds the last elements of an array differently from the others, and a user's row must not
    depend on the place where the user stands.
    """
    return values.neg().exp_().add_(1.0).reciprocal_()


def choose_loss(task: Task, outputs: int) -> Loss:
    """The loss for a task and a model's number of outputs."""
    if task.kind in ("regression", "survival"):
        if outputs == 1:
            return CoxPartialLikelihood() if task.kind == "survival" else SquaredError()
        raise ModelError(f"a {task.kind} model has one output, this one has {outputs}", place="model", value=outputs)
    if task.classes == 2 and outputs == 1:
        return BinaryCrossEntropy()
    if outputs == task.classes:
        return CrossEntropy()
    wanted = "1 or 2" if task.classes == 2 else str(task.classes)
    raise ModelError(
        f"{task.classes} classes need {wanted} outputs, the model has {outputs}", place="model", value=outputs
    )
