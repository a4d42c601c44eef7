"""ULDP-AVG for people with few of the classes each: training inside a silo adjusts logits to the user's own labels.

A user who has only images of 3 and 7 trains a model that says 3 or 7 to everything: most of the model delta, and of its
clip, says which labels the user has. Over users with other labels this cancels out, and little is left to stand against
the noise. Here the local loss of a record (f, y) of user u in silo s is ::

    -log softmax(z(f) + log p_su)_y       p_su[c] = (n_su[c] + a) / (n_su + K a)

with z the model's logits, n_su[c] the user's records of class c in the silo, K classes and a ``pseudo_count``. Logits
that are right for everybody are then right for u, and what is left to learn is how u's classes differ.

By default local training is one step on all of the user's records, so a row is a gradient, as in ULDP-SGD: the more
steps users take on records of their own kind, the less their deltas have in common. The rest is ULDP-AVG by records
(:mod:`uldp.methods.uldp_avg`): the row is still a function of the user's own records and x_t, so clip, weights, noise
and guarantee are the same.

The adjustment is that of Menon et al., "Long-tail Learning via Logit Adjustment", ICLR 2021; for clients whose labels
differ, see Zhang et al., "Federated Learning with Label Distribution Skew via Logits Calibration", ICML 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from uldp.errors import ConfigError, require
from uldp.learners.base import LocalTraining
from uldp.methods.uldp_avg import UldpAvg
from uldp.privacy.releases import GaussianSum, PublicFacts


@dataclass(frozen=True, kw_only=True)
class UldpAvgAdjusted(UldpAvg):
    """ULDP-AVG with adjusted logits; further arguments are those of :class:`~uldp.methods.uldp_avg.UldpAvg`.

    Args:
        local_epochs: Q; 1 and a large batch for a single step.
        local_lr: Of this training; with 1 and a single step a row is the gradient.
        batch_size: The number of records in a batch.
        pseudo_count: a; how many more records of every class a user is taken to have. The larger, the nearer to
            the plain loss.

    Raises:
        ConfigError: A value outside its range, or a task without classes.

    Example:
        >>> UldpAvgAdjusted(pseudo_count=0.5).local_training.pseudo_count
        0.5
    """

    weighting: str = "records"
    local_epochs: int = 1
    local_lr: float = 1.0
    batch_size: int = 10_000
    pseudo_count: float = 1.0

    summary: ClassVar[str] = (
        "ULDP-AVG by records for people with few of the classes each: logits adjusted to their labels"
    )
    paper: ClassVar[str] = "ULDP-FL (PVLDB 2024), Algorithm 3, with a local loss of ours"

    def __post_init__(self) -> None:
        require(0 < self.pseudo_count < math.inf, "method.pseudo_count", self.pseudo_count, "a positive number")
        super().__post_init__()

    @property
    def local_training(self) -> LocalTraining:
        return replace(super().local_training, pseudo_count=self.pseudo_count)

    def release(self, facts: PublicFacts) -> GaussianSum:
        if facts.task != "classification":
            reason = f"logits are adjusted to labels that are classes; take 'uldp-avg-w' for {facts.task}"
            raise ConfigError(reason, location="method.name", value="uldp-avg-adjusted")
        return super().release(facts)
