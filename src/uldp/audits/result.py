"""What an audit found: for every adversary the claimed epsilon and the one that was refuted, and direct checks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uldp.audits.bounds import Bound, Claim
from uldp.audits.checks import Check
from uldp.audits.observe import Array
from uldp.privacy.sentences import finite_or_none, show_epsilon
from uldp.privacy.statement import Exposure

REFUTED = "REFUTED"
NOT_REFUTED = "not refuted"
IN_DOUBT = "in doubt: repeat with another seed, or more canaries"
"""Refuted at 95 %, which happens by chance, but not with the confidence of a verdict."""


@dataclass(frozen=True)
class Size:
    """How large an audit is.

    Args:
        per_run: Canaries of a run.
        runs: How many runs.
        needed: With fewer canaries their scores refute no epsilon; 0 where their number does not matter.
        expected: The epsilon that the trade-off bound is expected to reach if the claim is tight; 0 where none is said.
        epsilon: What is claimed, against anyone who sees the released models.
    """

    per_run: int
    runs: int
    needed: int
    expected: float
    epsilon: float

    def __str__(self) -> str:
        text = f"{self.runs} run{'s' * (self.runs > 1)} with {self.per_run:,} canaries each"
        if self.needed:
            text += f"; with fewer than {self.needed:,} the trade-off of the canaries refutes no epsilon"
        if self.expected:
            text += (
                f". If the claimed epsilon {show_epsilon(self.epsilon)} is exact, "
                f"expect to refute about {show_epsilon(self.expected)} by trade-off"
            )
        return text


@dataclass(frozen=True)
class Found:
    """What was found about one adversary.

    Args:
        exposure: The line of the statement.
        bounds: Lower bounds on epsilon that hold together with 95 % confidence.
        strict: The same with the confidence that a verdict takes.
        not_audited: Why there are none.
        claim: The events behind the claimed epsilon.
        curve: The measured trade-off curve: rates of false "in" and of false "out".
        canaries: How many canaries it is about.
    """

    exposure: Exposure
    bounds: tuple[Bound, ...] = ()
    strict: tuple[Bound, ...] = ()
    not_audited: str = ""
    claim: Claim | None = None
    curve: tuple[Array, Array] | None = None
    canaries: int = 0

    @property
    def epsilon(self) -> float:
        """The largest epsilon that was refuted at 95 %; 0 for none."""
        return max((bound.epsilon for bound in self.bounds), default=0.0)

    @property
    def refuted(self) -> bool:
        """Whether the claimed epsilon is too small, with the confidence of a verdict."""
        return any(self._exceeds_claim(bound.epsilon) for bound in self.strict)

    def _exceeds_claim(self, epsilon: float) -> bool:
        """Bounds are epsilons of one accountant; the claim may be the slightly smaller one of another."""
        claimed = max(self.exposure.epsilon, 0.0 if self.claim is None else self.claim.epsilon())
        return epsilon > claimed * (1 + 1e-9)

    @property
    def verdict(self) -> str:
        if self.not_audited:
            return "not audited"
        if self.refuted:
            return REFUTED
        return IN_DOUBT if self._exceeds_claim(self.epsilon) else NOT_REFUTED

    def to_json(self) -> dict[str, Any]:
        return {
            "who": self.exposure.who,
            "sees": self.exposure.sees,
            "claimed_epsilon": finite_or_none(self.exposure.epsilon),
            "refuted_epsilon": finite_or_none(self.epsilon),
            "verdict": self.verdict,
            "not_audited": self.not_audited,
            "canaries": self.canaries,
            "bounds": [
                {"statistic": bound.name, "epsilon": finite_or_none(bound.epsilon), "assumes": bound.assumes}
                for bound in self.bounds
            ],
        }


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The result of an audit. Made by :func:`uldp.audit`; printed, drawn, or read as JSON.

    Args:
        experiment: The method that was audited.
        aggregation: The aggregation.
        rounds: Rounds of every run.
        delta: Of the statement.
        size: How many canaries and runs.
        found: For every adversary of the statement.
        checks: Direct checks.
        notes: What the canaries disturb.
        real: Whether real records took part.

    Example:
        >>> import uldp
        >>> made = uldp.audit("synthetic", epsilon=4.0, rounds=2, canaries=2000)
        >>> made.refuted, made.found[0].exposure.who, made.found[0].epsilon < 4
        (False, 'anyone who sees the released models', True)
    """

    experiment: str
    aggregation: str
    rounds: int
    delta: float
    size: Size
    found: tuple[Found, ...]
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    real: bool = False

    @property
    def refuted(self) -> bool:
        """Whether a bound or a direct check speaks against the claim."""
        return any(found.refuted for found in self.found) or any(check.failed for check in self.checks)

    @property
    def verdict(self) -> str:
        return REFUTED if self.refuted else NOT_REFUTED

    def headline(self) -> str:
        """The verdict in one sentence."""
        whom = f"{self.experiment} under {self.aggregation}, {self.rounds} rounds, delta {self.delta:g}"
        wrong = [found.exposure.who for found in self.found if found.refuted]
        wrong += [check.name for check in self.checks if check.failed]
        if wrong:
            return f"{REFUTED}: {whom}. What speaks against it: {'; '.join(wrong)}."
        people = "real records" if self.real else "synthetic people"
        return (
            f"Not refuted: {whom}, audited on {people} ({self.size.runs} x {self.size.per_run:,} canaries). "
            "An audit can refute a claim, it cannot prove one."
        )

    def rows(self) -> list[tuple[str, str, str, str]]:
        """(adversary, claimed epsilon, refuted epsilon, verdict), for people."""
        return [
            (
                found.exposure.who,
                show_epsilon(found.exposure.epsilon),
                "" if found.not_audited else show_epsilon(found.epsilon),
                f"not audited: {found.not_audited}" if found.not_audited else found.verdict,
            )
            for found in self.found
        ]

    def check_rows(self) -> list[tuple[str, str, str]]:
        """(direct check, what was found, verdict), for people."""
        return [(check.name, check.found, "FAILED" if check.failed else "passed") for check in self.checks]

    def bound_rows(self) -> list[tuple[str, str, str]]:
        """(statistic, epsilon refuted by it, what it assumes) of the first adversary that has bounds."""
        first = next((found for found in self.found if found.bounds), None)
        return [(bound.name, show_epsilon(bound.epsilon), bound.assumes) for bound in (first.bounds if first else ())]

    def figure(self, path: Path | str) -> Path:
        """Draw claimed and measured trade-off curves to a file.

        Args:
            path: The file, whose ending (png, pdf, svg) decides on the format.

        Raises:
            ConfigError: The file cannot be written, or there is no curve to draw.
        """
        from uldp.audits.figure import trade_off_figure

        return trade_off_figure(self, Path(path))

    def to_json(self) -> dict[str, Any]:
        """The document of ``uldp audit --json``."""
        return {
            "verdict": self.verdict,
            "headline": self.headline(),
            "method": self.experiment,
            "aggregation": self.aggregation,
            "rounds": self.rounds,
            "delta": self.delta,
            "records": "real" if self.real else "synthetic",
            "canaries_per_run": self.size.per_run,
            "runs": self.size.runs,
            "adversaries": [found.to_json() for found in self.found],
            "checks": [
                {
                    "check": check.name,
                    "p_value": check.p_value,
                    "level": check.level,
                    "failed": check.failed,
                    "found": check.found,
                }
                for check in self.checks
            ],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [self.headline(), ""]
        lines += [
            f"{who}: claimed {claimed}, refuted up to {refuted or '-'}; {verdict}"
            for who, claimed, refuted, verdict in self.rows()
        ]
        lines += ["", *(f"{name}: {found}; {verdict}" for name, found, verdict in self.check_rows()), *self.notes]
        return "\n".join(lines)
