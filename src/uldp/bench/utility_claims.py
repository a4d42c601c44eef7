"""What ``uldp bench utility`` claims, and whether its outcomes bear it out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Final

from uldp.bench import utility_models as models
from uldp.bench.utility import EPSILONS, CellResult, start_skill
from uldp.bench.utility_sets import RANDOM

AUTO: Final = models.AUTO.name
TRIED: Final = "best tuned"
DIVERGED: Final = 10.0
COLUMNS: Final = (*models.POOLED, *(one.name for one in models.CONTENDERS), TRIED)
LINES: Final = (models.LINEAR, models.BOOSTING, models.PAPERS.name, models.PREVIOUS.name, AUTO)
"""What the picture shows."""


@dataclass(frozen=True)
class Row:
    """A set at an epsilon: rho of the linear model, and the mean skill of each contender over its seeds.

    ``best tuned`` is the best of all private settings on the seeds that they share, and ``regret`` what ``auto`` falls
    behind it on these.
    """

    dataset: str
    epsilon: float
    rho: float
    parameters: int
    skills: Mapping[str, float]
    regret: float


@dataclass(frozen=True)
class ClaimCheck:
    """A sentence; whether it holds (None where nothing here tells); and the number that decides."""

    text: str
    holds: bool | None
    detail: str

    @property
    def verdict(self) -> str:
        return {True: "holds", False: "DOES NOT HOLD", None: "not measured"}[self.holds]


def rows(outcomes: Sequence[CellResult]) -> list[Row]:
    """One row for each set and epsilon that ``auto`` was trained with."""
    names = dict.fromkeys(one.cell.dataset for one in outcomes if one.cell.dataset != RANDOM.name)
    return [row for name in names for row in _rows_of(name, outcomes)]


def _rows_of(name: str, outcomes: Sequence[CellResult]) -> Iterator[Row]:
    here = [one for one in outcomes if one.cell.dataset == name]
    for epsilon in EPSILONS:
        found: dict[str, dict[int, CellResult]] = {}
        for one in here:
            if one.cell.epsilon in (epsilon, math.inf):
                found.setdefault(one.cell.contender, {})[one.cell.seed] = one
        if AUTO not in found:
            continue
        skills = {contender: mean(one.skill for one in seeds.values()) for contender, seeds in found.items()}
        private = {contender: seeds for contender, seeds in found.items() if contender not in models.POOLED}
        shared = set.intersection(*(set(seeds) for seeds in private.values()))
        best = max(mean(seeds[seed].skill for seed in shared) for seeds in private.values())
        own = mean(found[AUTO][seed].skill for seed in shared)
        first = found[AUTO][0]
        yield Row(name, epsilon, first.rho, first.parameters, {**skills, TRIED: best}, best - own)


def claims(table: Sequence[Row]) -> list[ClaimCheck]:
    """The claims about ``auto``, each judged by the rows that it is about."""
    linear = models.LINEAR
    known = models.WITH_BASE_RATE.name

    def behind(row: Row) -> float:
        return row.skills[linear] - row.skills[AUTO]

    return [
        _at_most(0.05, "epsilon 1, rho <= 0.05: behind the pooled linear model", _at(table, 0.05, 1.0), behind),
        _at_most(0.03, "epsilon 3, rho <= 0.05: behind the pooled linear model", _at(table, 0.05, 3.0), behind),
        _at_most(0.15, "rho <= 0.2: behind the pooled linear model", _at(table, 0.2), behind),
        _at_most(0.02, "rho <= 0.5: below the base rate", _at(table, 0.5), lambda row: -row.skills[AUTO]),
        _at_most(
            0.02,
            "any rho, base rate or mean given: below the base rate",
            [row for row in table if known in row.skills],
            lambda row: -row.skills[known],
        ),
        _at_most(
            0.05,
            "below the previous defaults",
            list(table),
            lambda row: row.skills[models.PREVIOUS.name] - row.skills[AUTO],
        ),
        _gain(_at(table, 0.5)),
    ]


def _at(table: Sequence[Row], rho: float, epsilon: float | None = None) -> list[Row]:
    return [row for row in table if row.rho <= rho and epsilon in (None, row.epsilon)]


def _at_most(limit: float, what: str, table: Sequence[Row], amount: Callable[[Row], float]) -> ClaimCheck:
    text = f"{what} by at most {limit:g}"
    if not table:
        return ClaimCheck(text, None, "no such set here")
    worst = max(table, key=amount)
    over = sum(amount(row) > limit for row in table)
    where = f"largest {amount(worst):.3f}: {worst.dataset} at epsilon {worst.epsilon:g}"
    return ClaimCheck(text, not over, f"{where}; {len(table) - over} of {len(table)} within")


def _gain(table: Sequence[Row]) -> ClaimCheck:
    text = "rho <= 0.5: better than the previous defaults by at least 0.1, on average"
    if not table:
        return ClaimCheck(text, None, "no such set here")
    gain = mean(row.skills[AUTO] - row.skills[models.PREVIOUS.name] for row in table)
    # One previous model that diverged would make any average; the base rate is there for free.
    floored = mean(row.skills[AUTO] - max(row.skills[models.PREVIOUS.name], 0.0) for row in table)
    return ClaimCheck(
        text, gain >= 0.1, f"by {gain:.3f}; where the previous skill below 0 counts as 0, by {floored:.3f}"
    )


def divergence(outcomes: Sequence[CellResult]) -> ClaimCheck:
    """Of random federations: none ends far above the base rate's loss, and farther than it began."""
    drawn = [one for one in outcomes if one.cell.dataset == RANDOM.name]
    text = (
        f"random federations: none diverges (loss above {DIVERGED:g} times that of the base rate and that of its start)"
    )
    if not drawn:
        return ClaimCheck(text, None, "not asked for")
    worst = min(drawn, key=lambda one: one.skill)
    far = [one for one in drawn if 1 - one.skill > DIVERGED]
    count = sum(one.skill < start_skill(one.cell) for one in far)
    where = f"number {worst.cell.seed} at epsilon {worst.cell.epsilon:g}, rho {worst.rho:.2g}"
    below = sum(one.skill < -0.02 for one in drawn if one.rho <= 0.5)
    quiet = sum(one.rho <= 0.5 for one in drawn)
    lowest = f"lowest skill {worst.skill:.2f} (loss {1 - worst.skill:.3g} times): {where}"
    detail = (
        f"{count} of {len(drawn)} diverged, {len(far)} end above {DIVERGED:g} times that of the base rate; {lowest}; "
        f"{below} of {quiet} with rho <= 0.5 are below the base rate by 0.02"
    )
    return ClaimCheck(text, not count, detail)
