"""Where training starts if base rates or the mean label are public: at a model that predicts them for every record.

The last layer begins with weights of zero and a bias that gives the public base rates (or the public mean). Training
then need not unlearn random weights, which costs signal when there are few people, and a rare class is rare from the
first round on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from uldp.data.federation import Task
from uldp.elementary import log
from uldp.errors import ConfigError, require
from uldp.learners.base import Vector

if TYPE_CHECKING:
    from torch import nn

MAX_DEVIATION = 1e-3
"""By how much the base rates of all classes may miss 1 together: people write them with a few digits."""


@dataclass(frozen=True)
class Prior:
    """What is public about the labels.

    Args:
        rates: The base rate of each class; for two classes that of the second one is enough. Empty if nothing is known.
        mean: The mean label of a regression, in its own units.
        required: Whether a model without a fitting last layer is refused.

    Raises:
        ConfigError: A base rate is no probability between 0 and 1.

    Example:
        >>> Prior(rates=(0.09,)).outputs(Task(classes=2), outputs=1).round(2)
        array([-2.31])
    """

    rates: tuple[float, ...] = ()
    mean: float | None = None
    required: bool = False

    def __post_init__(self) -> None:
        for rate in self.rates:
            require(0 < rate < 1, "data.base_rate", rate, "between 0 and 1: the public share of a class")
        require(self.mean is None or math.isfinite(self.mean), "data.label_mean", self.mean, "a finite number")

    def check(self, task: Task) -> None:
        """Refuse what does not fit the task."""
        if self.rates and task.kind != "classification":
            reason = f"goes with classes, not with {task.kind}; a public mean is data.label_mean"
            raise ConfigError(reason, location="data.base_rate", value=list(self.rates))
        if self.mean is not None and task.kind != "regression":
            raise ConfigError(
                "goes with numbers to predict; of classes give data.base_rate", location="data.label_mean"
            )
        if self.rates and not (task.classes == 2 and len(self.rates) == 1):
            wanted = f"one share for each of the {task.classes} classes, 1 in all"
            fits = len(self.rates) == task.classes and abs(math.fsum(self.rates) - 1) <= MAX_DEVIATION
            require(fits, "data.base_rate", list(self.rates), wanted)

    def unbalanced(self, task: Task) -> bool:
        """Whether a class is known to be rare: it has less than half of an equal share.

        >>> Prior(rates=(0.09,)).unbalanced(Task(classes=2)), Prior().unbalanced(Task(classes=2))
        (True, False)
        """
        if task.kind != "classification" or not self.rates:
            return False
        return min(self._class_rates(task)) < 0.5 / task.classes

    def _class_rates(self, task: Task) -> tuple[float, ...]:
        return self.rates if len(self.rates) == task.classes else (1 - self.rates[0], self.rates[0])

    def outputs(self, task: Task, outputs: int) -> Vector:
        """What a model with this many outputs predicts for every record."""
        self.check(task)
        if self.mean is not None:
            return np.array([(self.mean - task.label_offset) / task.label_scale])
        if not self.rates:
            return np.zeros(outputs)
        logs = log(np.array(self._class_rates(task)))
        return logs[1:] - logs[:1] if outputs == 1 else logs

    def apply(self, x: Vector, module: nn.Module, task: Task) -> Vector:
        """x_0 with a last layer that predicts this; unchanged if the last layer is no ``nn.Linear`` with a bias."""
        from torch import nn

        layers = [layer for layer in module.modules() if not list(layer.children())]
        last = next((layer for layer in reversed(layers) if list(layer.parameters(recurse=False))), None)
        if not (isinstance(last, nn.Linear) and last.bias is not None and last.bias.requires_grad):
            if not self.required:
                return x
            reason = "the model's last layer is no nn.Linear with a bias that could start there; leave it out"
            raise ConfigError(reason, location="data.base_rate" if self.rates else "data.label_mean")
        values = self.outputs(task, last.out_features)
        x = x.copy()
        x[len(x) - last.weight.numel() - len(values) :] = 0.0
        x[len(x) - len(values) :] = values
        return x
