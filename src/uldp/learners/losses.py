"""Losses over the records of one user: the mean, differentiable, and each record's part where there is one.

The kernels have gradients of their own (``kernels.objectives``, under the same numbers); these are for models
that autograd trains. Evaluation has its own (``evaluation``), which are the same bits on every processor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from uldp.data.federation import Task
from uldp.errors import ModelError


class Loss(Protocol):
    """``additive`` says that the mean over records may be accumulated over parts of a batch."""

    name: str
    additive: bool

    def labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """Labels in the type that this loss computes with."""
        ...

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of some records of one user: outputs (records, outputs), labels (records,)."""
        ...


class AdditiveLoss(ABC):
    """A mean over records."""

    additive = True

    def labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        return labels.to(dtype)

    @abstractmethod
    def per_record(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(records,): every record's part."""

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.per_record(outputs, labels).mean()


class BinaryCrossEntropy(AdditiveLoss):
    """Two classes, one logit."""

    name = "binary cross-entropy"

    def per_record(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(outputs.squeeze(1), labels, reduction="none")


class CrossEntropy(AdditiveLoss):
    """One output per class."""

    name = "cross-entropy"

    def labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        return labels.to(torch.int64)

    def per_record(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, labels, reduction="none")


class SquaredError(AdditiveLoss):
    """A number per record; the loss is (output - label)^2."""

    name = "squared error"

    def per_record(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs.squeeze(1) - labels).square()


class CoxPartialLikelihood:
    """Cox's proportional hazards: one score per record, the log of its relative risk.

    Labels are +T for an event at time T, -T for censored at T. The negative log partial likelihood of a user's batch,
    divided by its number of events: mean over events i of log(sum over j with T_j >= T_i of exp(s_j)) - s_i. Records
    with the same time are all in each other's risk sets (Breslow's treatment of ties: it needs no case for them, and
    costs little accuracy while ties are few). Without an event, and for a record alone, loss and gradient are zero.
    """

    name = "Cox partial likelihood"
    additive = False

    def labels(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        return labels.to(dtype)

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        # By falling time, stably: a risk set is then everything up to the last record with the same time.
        times, order = labels.abs().sort(descending=True, stable=True)
        last = torch.searchsorted(-times, -times, right=True) - 1
        scores, event = outputs.squeeze(1)[order], labels[order] > 0
        # Logarithms throughout: no score is too large.
        terms = torch.where(event, scores.logcumsumexp(0)[last] - scores, 0.0)
        return terms.sum() / event.sum().clamp(min=1)


def adjusted(loss: Loss, labels: Tensor, pseudo_count: float) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss with the logarithms of the shares of classes among ``labels`` added to the scores of classes.

    Each class is counted ``pseudo_count`` times more. Of one score for two classes it is their difference.
    """

    def value(outputs: Tensor, some: Tensor) -> Tensor:
        classes = max(2, outputs.shape[1])
        counts = torch.bincount(labels.to(torch.int64), minlength=classes).to(outputs.dtype) + pseudo_count
        logs = (counts / counts.sum()).log()
        return loss(outputs + (logs if outputs.shape[1] > 1 else logs[1] - logs[0]), some)

    return value


def choose_loss(task: Task, outputs: int) -> Loss:
    """The loss for a task and a model's number of outputs."""
    if task.kind in ("regression", "survival"):
        if outputs == 1:
            return CoxPartialLikelihood() if task.kind == "survival" else SquaredError()
        raise ModelError(f"a {task.kind} model has one output, this one has {outputs}", location="model", value=outputs)
    if task.classes == 2 and outputs == 1:
        return BinaryCrossEntropy()
    if outputs == task.classes:
        return CrossEntropy()
    wanted = "1 or 2" if task.classes == 2 else str(task.classes)
    raise ModelError(
        f"{task.classes} classes need {wanted} outputs, the model has {outputs}", location="model", value=outputs
    )
