"""What training would do and cost, before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from uldp.errors import ConfigError
from uldp.experiment.budget import fitting_changes
from uldp.experiment.build import PreparedExperiment
from uldp.experiment.outlook import Outlook, participation_words
from uldp.library.arguments import CallArguments, Settings
from uldp.library.training import Callback, checked_callbacks, run_training, warnings_before
from uldp.privacy.accountants import account
from uldp.privacy.sentences import finite_or_none, show_epsilon
from uldp.privacy.statement import Statement
from uldp.reports.statement import text as statement_text
from uldp.runtimes.result import Result
from uldp.sessions.plan import Plan

if TYPE_CHECKING:
    from uldp.library.arguments import Silos


def plan(silos: Silos, **what: Unpack[Settings]) -> TrainingPlan:
    """Check everything and calibrate the noise, without training: what :func:`train` would do.

    Args:
        silos: As for :func:`train`.
        what: As for :func:`train`.

    Returns:
        What would be released, and the privacy statement that training would end with.

    Raises:
        InputError: Arguments, data or model are wrong.

    Example:
        >>> planned = plan("synthetic", epsilon=5.0, rounds=2)
        >>> round(planned.epsilon, 2), planned.statement.privacy_unit
        (5.0, 'user')
    """
    return TrainingPlan(CallArguments.of(silos, what, "plan").prepare())


@dataclass(frozen=True, repr=False)
class TrainingPlan:
    """What training would do, and what it would cost. Made by :func:`plan`; printed, or shown in a notebook.

    Args:
        prepared: The experiment, ready to run.

    Example:
        >>> planned = plan("synthetic", noise_multiplier=5.0, rounds=20)
        >>> {rounds: round(epsilon, 2) for rounds, epsilon in planned.epsilon_after.items()}
        {1: 0.73, 2: 1.06, 5: 1.76, 10: 2.59, 20: 3.85}
    """

    prepared: PreparedExperiment

    @cached_property
    def statement(self) -> Statement:
        """The privacy statement that training would end with."""
        return self.prepared.planned_statement()

    @property
    def epsilon(self) -> float:
        """After the last round, against anyone who sees the released models."""
        return self.statement.epsilon

    @property
    def noise_multiplier(self) -> float:
        """The standard deviation of the noise, in clips."""
        return self.prepared.plan.method.noise_multiplier

    @cached_property
    def epsilon_after(self) -> dict[int, float]:
        """Epsilon after 1, 2, 5, 10, ... rounds, and after the last one."""
        plan, delta = self.prepared.plan, self.statement.delta
        steps = [factor * 10**power for power in range(7) for factor in (1, 2, 5)]
        event, void = plan.release.event(plan.facts.silos), self.prepared.no_guarantee
        rounds = [*(step for step in steps if step < plan.rounds), plan.rounds]
        of_a_user = plan.release.participation.rounds_of_a_user
        return {t: math.inf if void else account({event: of_a_user(t)}, delta).value for t in rounds}

    @cached_property
    def outlook(self) -> Outlook | None:
        """How much of what could be learned the noise leaves; None for a method without noise on a sum over users."""
        return Outlook.of(self.prepared.plan, self.statement.delta)

    @property
    def warnings(self) -> list[str]:
        """What should be known before this is run."""
        return warnings_before(self.prepared)

    def within(self, budget: float) -> dict[str, Any]:
        """In which round ``budget`` is used up, and the single changes with which all rounds would fit.

        Raises:
            ConfigError: It is no positive number, or there is no guarantee that could have a budget.
        """
        wanted = ""
        if not self.prepared.plan.release.privacy_unit:
            wanted = f"{self.prepared.experiment.method_name} spends without a bound"
        elif not isinstance(budget, int | float) or not 0 < budget < math.inf:
            wanted = f"a positive number, not {budget:g}"
        elif self.prepared.no_guarantee:
            wanted = "there is no guarantee, so no budget either"
        if wanted:
            raise ConfigError(wanted, location="budget", value=budget)
        return fitting_changes(self.prepared, budget)

    def train(
        self,
        *,
        directory: Path | str | None = None,
        callbacks: Callback | Iterable[Callback] = (),
        progress: bool | None = None,
    ) -> Result:
        """Train as planned.

        Args:
            directory: Where a run directory is written, as for :func:`train`.
            callbacks: Called with a report after every round, as for :func:`train`.
            progress: Whether a bar is shown, as for :func:`train`.

        Returns:
            The model, its metrics, and the statement.

        Raises:
            InputError: The directory or a callback cannot be used.
        """
        return run_training(self.prepared, directory, checked_callbacks(callbacks), progress)

    def headline(self) -> list[str]:
        """What is trained on what, and what a silo sends in a round."""
        plan, facts, name = self.prepared.plan, self.prepared.plan.facts, self.prepared.federation.name
        about = f"|U| = {facts.users} users, |S| = {facts.silos} silos, {facts.dimension} parameters"
        noise = "" if plan.release.local else f", noise multiplier {self.noise_multiplier:g}"
        costs = round_costs(plan)
        packed = f", {costs['slots']} parameters to a ciphertext" if costs.get("slots", 1) > 1 else ""
        once = f", and once {costs['setup_bytes']:,} bytes of setup" if "setup_bytes" in costs else ""
        sends, gets = costs["update_bytes"], costs["request_bytes"]
        traffic = f"a silo gets {gets:,} bytes a round and sends {sends:,} ({plan.aggregation.name}{packed}){once}"
        if plan.aggregation_reason:
            traffic += f"; auto: {plan.aggregation_reason}"
        advice = plan.aggregation.advice(plan.release, plan.rounds)
        outlook = "" if self.outlook is None or self.outlook.is_noise_dominated else self.outlook.words()
        participation = participation_words(plan, self.statement.delta)
        first = f"{self.prepared.experiment.method_name} on {name}: {about}{noise}"
        return [line for line in (first, traffic, advice, outlook, participation) if line]

    def to_json(self) -> dict[str, Any]:
        """The document of ``uldp plan --json``."""
        prepared, plan, facts = self.prepared, self.prepared.plan, self.prepared.plan.facts
        costs = round_costs(plan)
        reason = {"reason": plan.aggregation_reason} if plan.aggregation_reason else {}
        return {
            "dataset": prepared.federation.name,
            "method": prepared.experiment.method_name,
            "noise_multiplier": self.noise_multiplier,
            "rounds": plan.rounds,
            "epsilon": finite_or_none(self.epsilon),
            "delta": self.statement.delta,
            "epsilon_after_round": {str(t): finite_or_none(e) for t, e in self.epsilon_after.items()},
            "users": facts.users,
            "silos": facts.silos,
            "parameters": facts.dimension,
            "aggregation": {"name": plan.aggregation.name, **reason, **costs},
            "outlook": None if self.outlook is None else self.outlook.to_json(),
            "statement": self.statement.to_json(),
        }

    def __str__(self) -> str:
        spent = ", ".join(f"{t}: {show_epsilon(epsilon)}" for t, epsilon in self.epsilon_after.items())
        after = ["Privacy after the last round", *statement_text(self.statement)]
        return "\n".join([*self.headline(), f"epsilon after round {spent}", "", *after])

    def __repr__(self) -> str:
        return f"<TrainingPlan: {self.headline()[0]}; {self.statement.headline()}>"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{t}</td><td>{show_epsilon(e)}</td></tr>" for t, e in self.epsilon_after.items())
        table = f"<table><tr><th>after round</th><th>epsilon</th></tr>{rows}</table>"
        first, *more = self.headline()
        lines = [*more, *self.warnings, *statement_text(self.statement)]
        return f"<b>{escape(first)}</b>{table}<pre>{escape(chr(10).join(lines))}</pre>"


def budget_sentence(found: dict[str, Any], rounds: int) -> str:
    """What :meth:`TrainingPlan.within` found, in words."""
    budget, last = show_epsilon(found["budget"]), found["rounds_within_budget"]
    counted = " (it counts the local number, not the server's behind the shuffler)" if "budget_counts" in found else ""
    if last >= rounds:
        return f"A budget of epsilon {budget}{counted} lasts for all {rounds} rounds."
    until = f"ends after round {last} of {rounds}" if last else "is less than one round costs"
    ends = f"A budget of epsilon {budget}{counted} {until}."
    changes = found["changes"]
    if not changes:
        return f"{ends} No single change fits it; take a larger one, or fewer rounds and more noise."
    listed = ", or ".join(f"{key} = {value:g}" for key, value in changes.items())
    sampled = " (sampling helps towards those who do not know the sample)" if "method.sample_rate" in changes else ""
    return f"{ends} One change would fit: {listed}{sampled}."


def round_costs(plan: Plan) -> dict[str, int]:
    """The costs of a round: those of the aggregation, with what the method sends beside the model."""
    costs = plan.aggregation.costs(plan.release, plan.rounds)
    beside = 8 * (plan.broadcast_size - plan.facts.dimension)
    return {**costs, "request_bytes": costs["request_bytes"] + beside}
