"""What membership attacks found: for every method and kind of people how well each attack did, and its ceiling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from uldp.attacks.ceilings import Ceiling
from uldp.attacks.rates import FALSE_IN, Estimate, Rates
from uldp.attacks.targets import Kind
from uldp.privacy.sentences import finite_or_none, show_epsilon

INFORMED: Final = "iterates, knows all others"
ONE_RECORD: Final = "LiRA, one record"
COLUMNS: Final = (
    "method", "people with", "loss", "LiRA", "LiRA, one record", "iterates", "knows all others", "ceiling",
    "best at 1 %", "ceiling at 1 %",
)  # fmt: skip


@dataclass(frozen=True)
class KindAttack:
    """How well people of a kind were recognised.

    Args:
        kind: How many records they have, and where.
        people: How many there were.
        ceiling: What the guarantee allows against them.
        rates: By attack.
    """

    kind: Kind
    people: int
    ceiling: Ceiling
    rates: Mapping[str, Rates]

    @property
    def best(self) -> tuple[str, Rates]:
        """The attack with the largest rate of true "in" at 1 % of false "in"; of equal ones, with the largest AUC."""
        name = max(self.rates, key=lambda one: (self.rates[one].true_in.value, self.rates[one].auc.value))
        return name, self.rates[name]

    def above_ceiling(self) -> list[str]:
        """Attacks whose whole interval lies above what the guarantee allows: something is wrong, or chance."""
        return [
            name
            for name, rates in self.rates.items()
            if rates.auc.low > self.ceiling.auc or rates.true_in.low > self.ceiling.true_in
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "records": self.kind.records,
            "spread": self.kind.spread,
            "people": self.people,
            "ceiling": self.ceiling.to_json(),
            "above_ceiling": self.above_ceiling(),
            "attacks": [
                {"attack": name, "auc": rates.auc.to_json(), "true_in": rates.true_in.to_json()}
                for name, rates in self.rates.items()
            ],
        }


@dataclass(frozen=True)
class MethodAttack:
    """How well a method's people were recognised.

    Args:
        method: Its name.
        unit: Whom its epsilon protects: ``user``, ``record``, or None.
        epsilon: What it claims against anyone who sees the released models.
        metrics: Mean test metrics of models with everybody in them.
        kinds: By kind of people.
    """

    method: str
    unit: str | None
    epsilon: float
    metrics: Mapping[str, float]
    kinds: tuple[KindAttack, ...]

    @property
    def claim(self) -> str:
        """For people: epsilon and whose."""
        return "no guarantee" if self.unit is None else f"epsilon {show_epsilon(self.epsilon)} for a {self.unit}"

    @property
    def shown_metric(self) -> str:
        return "".join(f"{name} {value:.3f}" for name, value in list(self.metrics.items())[:1])

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "unit": self.unit,
            "epsilon": finite_or_none(self.epsilon),
            "metrics": dict(self.metrics),
            "people": [kind.to_json() for kind in self.kinds],
        }


@dataclass(frozen=True, kw_only=True)
class Attack:
    """The result of membership attacks. Made by :func:`uldp.attack`; printed, drawn, or read as JSON.

    Args:
        dataset: Whose shape the people have.
        people: Who was attacked, in words.
        delta: Of all claims.
        models: Shadow models of each method.
        methods: What was found, by method.

    Example:
        >>> import uldp
        >>> made = uldp.attack("synthetic", ["fedavg"], models=16, records=(1, 8), rounds=2)
        >>> made.methods[0].method, [str(found.kind) for found in made.methods[0].kinds]
        ('fedavg', ['1 record', '8 records, spread', '8 records, one silo'])
    """

    dataset: str
    people: str
    delta: float
    models: int
    methods: tuple[MethodAttack, ...]

    @property
    def above_ceiling(self) -> bool:
        """Whether an attack did better than a guarantee allows, beyond its interval."""
        return any(kind.above_ceiling() for method in self.methods for kind in method.kinds)

    def headline(self) -> str:
        """Who was attacked, in one sentence."""
        return f"Membership of {self.people}; {self.models} shadow models of each method, delta {self.delta:g}."

    def rows(self) -> list[tuple[str, ...]]:
        """AUC of each attack, with ceilings, for people; under the heads of ``COLUMNS``."""
        rows = []
        for method in self.methods:
            for found in method.kinds:
                rates, (_, best) = found.rates, found.best
                auc = [
                    _better(rates, "loss"), _better(rates, "LiRA"), rates[ONE_RECORD].auc.value,
                    rates["iterates"].auc.value, rates[INFORMED].auc.value,
                ]  # fmt: skip
                shown = [f"{value:.2f}" for value in auc]
                limits = (_shown_ceiling(found.ceiling.auc), _shown_ceiling(found.ceiling.true_in))
                rows.append((method.method, str(found.kind), *shown, limits[0], _percent(best.true_in), limits[1]))
        return rows

    def method_rows(self) -> list[tuple[str, str, str]]:
        """(method, its claim, its test metric), for people."""
        return [(method.method, method.claim, method.shown_metric) for method in self.methods]

    def notes(self) -> list[str]:
        """How to read the table."""
        made = [
            f'AUC of each attack; "at 1 %" is the rate of recognised members at a false alarm rate of {FALSE_IN:.0%}, '
            "of the best attack, with its 95 % interval. loss and LiRA: the better one of the final model and of all "
            "rounds' models.",
            "A ceiling is what the guarantee allows any attack on a user with so many records; attacks show what these "
            "ones reach, and prove nothing about better ones.",
        ]
        for method in self.methods:
            made += [
                f"Above its ceiling: {method.method}, {found.kind}: {', '.join(names)}. `uldp audit` tests the claim."
                for found in method.kinds
                if (names := found.above_ceiling())
            ]
        return made

    def figure(self, path: Path | str) -> Path:
        """Draw AUC and ceilings to a file (png, pdf, svg).

        Args:
            path: The file.

        Returns:
            The same path.

        Raises:
            ConfigError: The file cannot be written.
        """
        from uldp.reports.figures import membership_figure

        return membership_figure(self, Path(path))

    def to_json(self) -> dict[str, Any]:
        """The document of ``uldp attack membership --json``."""
        return {
            "headline": self.headline(),
            "dataset": self.dataset,
            "models": self.models,
            "delta": self.delta,
            "false_in": FALSE_IN,
            "above_ceiling": self.above_ceiling,
            "methods": [method.to_json() for method in self.methods],
        }

    def __str__(self) -> str:
        lines = [self.headline(), "", *(": ".join(row[:2]) + f"; {row[2]}" for row in self.method_rows()), ""]
        lines += [", ".join(f"{head} {cell}" for head, cell in zip(COLUMNS, row, strict=True)) for row in self.rows()]
        return "\n".join([*lines, "", *self.notes()])


def _better(rates: Mapping[str, Rates], name: str) -> float:
    return max(rates[name].auc.value, rates[f"{name}, all rounds"].auc.value)


def _shown_ceiling(value: float) -> str:
    return "none" if math.isclose(value, 1.0, abs_tol=5e-4) else f"{value:.2f}"


def _percent(estimate: Estimate) -> str:
    return f"{estimate.value:.1%} ({estimate.low:.1%} to {estimate.high:.1%})".replace("%", " %")
