"""What can be learned at this epsilon, before any of it is spent: from public numbers alone.

One number decides, rho = sqrt(d) / (mu n): parameters against people and budget
(:meth:`uldp.privacy.releases.GaussianSum.noise_to_signal`). The bands below were measured (docs/results.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

from uldp.data.builtin import dataset as find_dataset
from uldp.data.federation import Task
from uldp.experiment.config import Experiment
from uldp.privacy.accountants import account
from uldp.privacy.gaussian import gaussian_epsilon, gaussian_mu
from uldp.privacy.releases import GaussianSum, Participation, UserSampling
from uldp.privacy.sentences import show_epsilon
from uldp.sessions.plan import Plan

DOMINATES: Final = 0.5
"""The rho from which on noise is the limit."""
NETWORK: Final = 0.1
"""Up to this rho a convolutional network learns more than a linear model."""
_BANDS: Final = (
    (0.02, "noise is no limit"),
    (0.05, "noise costs little of what could be learned"),
    (0.2, "noise costs some of what could be learned"),
    (DOMINATES, "noise costs much of what could be learned"),
)


@dataclass(frozen=True)
class Outlook:
    """What noise leaves of a run.

    Args:
        rho: The ratio of noise to signal of the whole run.
        people: How many there are, in public.
        parameters: d.
        budget: (mu, delta) of the whole run; None where sampling makes epsilon no function of mu.
        groups: In how many groups people take turns.

    Example:
        >>> print(Outlook(1.0, people=100, parameters=40, budget=None).words())
        rho 1: noise dominates, expect little better than the base rate; with 200 people, or 10 parameters, it would not
    """

    rho: float
    people: int
    parameters: int
    budget: tuple[float, float] | None
    groups: int = 1

    @classmethod
    def of(cls, plan: Plan, delta: float) -> Outlook | None:
        """The outlook of a plan; None where no Gaussian noise is on a sum over users."""
        release = plan.release
        if not isinstance(release, GaussianSum) or not release.noise_multiplier:
            return None
        mu = math.sqrt(release.participation.rounds_of_a_user(plan.rounds)) / release.noise_multiplier
        rho = release.noise_to_signal(plan.rounds)
        known = (mu, delta) if release.user_sampling.everybody else None
        return cls(rho, release.facts.people, release.facts.dimension, known, release.participation.groups)

    @property
    def is_noise_dominated(self) -> bool:
        """Whether noise is the limit."""
        return self.rho > DOMINATES

    def remedies(self, rho: float = DOMINATES) -> dict[str, float]:
        """Single changes with which the ratio would be ``rho``: people, parameters, epsilon."""
        factor = self.rho / rho
        found: dict[str, float] = {"people": math.ceil(self.people * factor)}
        if self.parameters / factor**2 >= 2:
            found["parameters"] = math.floor(self.parameters / factor**2)
        if self.budget is not None:
            mu, delta = self.budget
            found["epsilon"] = gaussian_epsilon(mu * factor, delta)
        return found

    def words(self) -> str:
        """For people, in one line."""
        turns = (
            f"; everybody in every round, at this epsilon, would divide it by {math.sqrt(self.groups):.3g}"
            if self.groups > 1
            else ""
        )
        if not self.is_noise_dominated:
            said = next(text for most, text in _BANDS if self.rho <= most)
            return f"rho {self.rho:.2g}: {said}{turns}"
        changes = self.remedies()
        listed = [f"{changes['people']:,.0f} people"]
        listed += [f"epsilon {show_epsilon(changes['epsilon'])}"] if "epsilon" in changes else []
        listed += [f"{changes['parameters']:,.0f} parameters"] if "parameters" in changes else []
        expected = "noise dominates, expect little better than the base rate"
        return f"rho {self.rho:.2g}: {expected}; with {', or '.join(listed)}, it would not{turns}"

    def to_json(self) -> dict[str, Any]:
        return {"rho": self.rho, "noise_dominates": self.is_noise_dominated, "would_not_with": self.remedies()}


def participation_words(plan: Plan, delta: float) -> str:
    """Everybody, a sample or people in turns: what each costs with this noise and these rounds, and which serves whom.

    Towards a server that draws the sample and sees totals only. Empty where everybody is in every round, or where
    neither the server nor the silos know the sample.
    """
    release = plan.release
    if not isinstance(release, GaussianSum) or not release.noise_multiplier:
        return ""
    share = release.user_sampling.rate / release.participation.groups
    if share == 1 or release.user_sampling.private:
        return ""
    full = replace(release, user_sampling=UserSampling(), participation=Participation())
    sampled = replace(full, user_sampling=UserSampling(share))
    groups, silos = max(2, round(1 / share)), plan.facts.silos
    turns = Participation(groups).rounds_of_a_user(plan.rounds)
    costs = [
        account({one.event(silos): rounds}, delta).value
        for one, rounds in ((full, plan.rounds), (sampled, plan.rounds), (full, turns))
    ]
    everybody, sample, cyclic = map(show_epsilon, costs)
    return (
        "participation, with this noise and these rounds, for anyone and for the server: everybody in every round "
        f"{everybody} and {everybody}; a sample at rate {share:g} {sample} and {everybody}; {groups} groups that take "
        f"turns {cyclic} and {cyclic}. For the released models alone a sample serves best. Against the server "
        f"everybody does, with a rho smaller by {math.sqrt(groups):.3g} than turns at the same epsilon; turns where "
        "that takes too long"
    )


def run_mu(experiment: Experiment) -> float:
    """mu of a whole run that the experiment's privacy allows; infinity where nothing is noised for users."""
    privacy, method = experiment.privacy, experiment.method
    if method.privacy_unit != "user" or method.local:
        return math.inf
    if privacy.epsilon is not None:
        return gaussian_mu(privacy.epsilon, privacy.delta)
    rounds = getattr(method, "rounds", 1) / getattr(method, "participation_groups", 1)
    return math.sqrt(rounds) / privacy.noise_multiplier if privacy.noise_multiplier else math.inf


def automatic_model(experiment: Experiment, shape: tuple[int, ...], task: Task) -> str:
    """The name that ``auto`` stands for: of images a network where people and epsilon allow it, else a linear model.

    From the experiment alone, so that every party and whoever loads the run comes to the same one.
    """
    if task.kind == "survival":
        return "cox"
    linear = "logistic" if task.kind == "classification" else "linear"
    if len(shape) != 3:
        return linear
    data = experiment.data
    people = data.people or data.users or (find_dataset(data.dataset).info.users if data.dataset else 0)
    groups = getattr(experiment.method, "participation_groups", 1)
    reach = run_mu(experiment) * people / math.sqrt(groups)
    return "cnn" if math.sqrt(_cnn_parameters(shape, task)) <= NETWORK * reach else linear


def _cnn_parameters(shape: tuple[int, ...], task: Task) -> int:
    import torch

    from uldp.learners.models import ZOO

    with torch.device("meta"):  # layers without numbers
        return sum(parameter.numel() for parameter in ZOO["cnn"](shape, task).parameters())
