"""What a guarantee allows: no attack on a user has more than this, whatever it knows of everybody else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from uldp.attacks.rates import FALSE_IN
from uldp.audits.bounds import Claim
from uldp.experiment.build import PreparedExperiment
from uldp.privacy.events import Event
from uldp.privacy.releases import Adversary, NoisedModel, views
from uldp.privacy.sentences import finite_or_none

DELTAS: Final = (1e-5, 1e-3, 0.003, 0.01, 0.03, 0.06, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8)
"""Where the curve of a sampled release is computed: a ceiling between the lines lies above the true one."""
_GRID: Final = 4001


@dataclass(frozen=True)
class Ceiling:
    """The largest rates that the guarantee allows against a user with so many records.

    Args:
        epsilon: For such a user; infinite where nothing is promised.
        auc: The largest AUC.
        true_in: The largest rate of true "in" at a rate of false "in" of 1 %.
    """

    epsilon: float
    auc: float
    true_in: float

    def to_json(self) -> dict[str, Any]:
        return {"epsilon": finite_or_none(self.epsilon), "auc": self.auc, "true_in": self.true_in}


def ceiling(prepared: PreparedExperiment, records: int) -> Ceiling:
    """The ceiling against anyone who sees all rounds' totals, for a user with this many records.

    Where users are protected it is the same for all of them. Where single records are, it is that of a group of so
    many. It follows from the trade-off curve of the composed mechanism: f(a) is the smallest rate of false "out" at a
    rate of false "in" of a, so at most 1 - f(a) of the members are recognised, and the AUC is at most its integral.
    """
    delta, composition = prepared.experiment.privacy.delta, _composition(prepared, records)
    statement = prepared.planned_statement()
    claim = Claim.of(composition, delta)
    epsilon = claim.epsilon() if composition and not prepared.no_guarantee else math.inf
    if statement.privacy_unit is None or not math.isfinite(epsilon):
        return Ceiling(math.inf, 1.0, 1.0)
    grid = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, _GRID)])
    false_out = claim.false_out(grid, deltas=DELTAS)
    auc = float(np.sum(np.diff(grid) * (1 - false_out[1:])))  # from above: 1 - f grows
    return Ceiling(epsilon, min(1.0, auc), float(1 - claim.false_out(np.array([FALSE_IN]), deltas=DELTAS)[0]))


def _composition(prepared: PreparedExperiment, records: int) -> Mapping[Event, int]:
    plan = prepared.plan
    release = plan.release
    if isinstance(release, NoisedModel) and release.privacy_unit == "record":
        return {release.group_event(records): plan.rounds}
    turns = release.participation
    return views(release, Adversary(), [1] * turns.rounds_of_a_user(plan.rounds))
