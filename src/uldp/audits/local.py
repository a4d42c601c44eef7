"""Clients that perturb by themselves: the epsilon of one weight, from the signs of very many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from uldp.audits.bounds import Bound, one_run_epsilon, pure_rates
from uldp.audits.canaries import SILENT
from uldp.audits.observe import Seen

THRESHOLDS: Final = (0.0, 0.5, -0.5, 0.9, -0.9)
"""In units of the largest output: outputs near its ends say most."""


def weight_bounds(runs: Sequence[Seen], level: float) -> list[Bound]:
    """Lower bounds on the epsilon of one weight in one round.

    Every client sends an end of the range in every dummy coordinate, which of the two is a fair coin. Each report is
    perturbed by itself, so every one of them is a guess of its own.
    """
    values, included = [], []
    for seen in runs:
        assert seen.silo_sums is not None, "local reports are residues"
        reports = seen.silo_sums[:, :, :-SILENT]
        values.append(reports.ravel())
        included.append(np.broadcast_to(seen.included[:, None], reports.shape).ravel())
    reported, coins = np.concatenate(values), np.concatenate(included)
    heard = reported != 0  # a client that was not picked sends zeros
    reported, coins = reported[heard], coins[heard]
    right = int(((reported > 0) == coins).sum())
    guesses = len(reported)
    signs = one_run_epsilon(guesses, guesses, right, 0.0, level / 2)
    return [
        Bound("one run", signs, "nothing but independent fair coins: reports may depend on one another"),
        pure_rates(reported, coins, 0.0, level / 2, THRESHOLDS),
    ]
