"""Clients that perturb by themselves: the epsilon of one weight, from the signs of very many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from uldp.audits.bounds import Bound, one_run_epsilon, pure_rates, upper_rate
from uldp.audits.canaries import SILENT, Mask
from uldp.audits.observe import Array, Seen

THRESHOLDS: Final = (0.0, 0.5, -0.5, 0.9, -0.9)
"""In units of the largest output: outputs near its ends say most."""


def weight_bounds(runs: Sequence[Seen], level: float) -> list[Bound]:
    """Lower bounds on the epsilon of one weight in one round.

    Every client sends an end of the range in every dummy coordinate, which of the two is a fair coin. It is the same
    coin in all rounds, so guesses by sign alone, which assume nothing else, count round by round: the best round's
    bound holds. A client that was not picked sends zeros everywhere.
    """
    reported, coins = zip(*(_reports(runs, round_) for round_ in range(len(runs[0].totals))), strict=True)
    each = level / 2 / len(reported)
    signs = [_by_sign(values, drawn, each) for values, drawn in zip(reported, coins, strict=True)]
    return [
        Bound("one run", max(signs), "nothing but independent fair coins: reports may depend on one another"),
        pure_rates(np.concatenate(reported), np.concatenate(coins), 0.0, level / 2, THRESHOLDS),
    ]


def fewest_reports(epsilon: float, rounds: int, level: float) -> int:
    """A power of 2: with fewer reports of a round nothing is refuted, even if ``epsilon`` is exact."""
    accuracy = 1 / (1 + math.exp(-epsilon))

    def refutes(reports: int) -> bool:
        half = reports * rounds // 2
        wrong = upper_rate(round(half * (1 - accuracy)), half, level / 4 / len(THRESHOLDS))
        by_sign = one_run_epsilon(reports, reports, round(reports * accuracy), 0.0, level / 2 / rounds)
        return by_sign > 0 or wrong < 1 / 2

    return next(reports for reports in (1 << power for power in range(1, 60)) if refutes(reports))


def _reports(runs: Sequence[Seen], round_: int) -> tuple[Array, Mask]:
    """All that the clients who were picked reported in a round of all runs, and the coins behind it."""
    reported, coins = [], []
    for seen in runs:
        assert seen.silo_sums is not None, "local reports are residues"
        reports = seen.silo_sums[:, round_, :-SILENT]
        picked = reports.any(axis=1)
        reported.append(reports[picked].ravel())
        coins.append(seen.included[picked].ravel())
    return np.concatenate(reported), np.concatenate(coins)


def _by_sign(reported: Array, coins: Mask, level: float) -> float:
    right = int(((reported > 0) == coins).sum())
    return one_run_epsilon(len(reported), len(reported), right, 0.0, level)
