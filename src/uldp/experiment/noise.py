"""The noise of an experiment: as given, or calibrated to its target epsilon."""

from __future__ import annotations

from uldp.data.federation import IntArray
from uldp.errors import ConfigError
from uldp.experiment.config import Experiment
from uldp.methods.base import Method
from uldp.privacy.accountants import account
from uldp.privacy.calibrate import calibrate
from uldp.privacy.events import Composition
from uldp.privacy.releases import PublicFacts


def planned_events(method: Method, facts: PublicFacts) -> Composition:
    """The composition of a whole run in which every silo takes part in every round, but those that may be missing."""
    release = method.release(facts)
    rounds = release.participation.rounds_of_a_user(method.rounds)
    return {release.event(facts.silos - method.dropout_tolerance): rounds}


def method_with_noise(experiment: Experiment, totals: IntArray, facts: PublicFacts) -> Method:
    """The method with its noise: as given, or calibrated to the target epsilon."""
    privacy, method = experiment.privacy, experiment.method
    if method.local and privacy.epsilon is not None:
        one_round = account({method.release(facts).event(facts.silos): 1}, privacy.delta).value
        if one_round > privacy.epsilon:
            reason = (
                f"one round costs epsilon {one_round:.4g} locally, the budget is {privacy.epsilon:g}; leave it out "
                "(--set privacy.epsilon=none), or lower method.epsilon_weight"
            )
            raise ConfigError(reason, location="privacy.epsilon", value=privacy.epsilon)
    if method.privacy_unit is None or method.local:
        return method
    if experiment.run.secrets == "os" and method.for_data(totals) != method:
        reason = (
            f"{getattr(method, method.reads_data)!r} reads the data, which nothing hides, and run.secrets = 'os' is "
            "for models that are released; take another value"
        )
        raise ConfigError(reason, location=f"method.{method.reads_data}", value=getattr(method, method.reads_data))

    def with_noise(noise_multiplier: float) -> Method:
        return experiment.with_noise(noise_multiplier).for_data(totals)

    if privacy.noise_multiplier is not None:
        return with_noise(privacy.noise_multiplier)
    assert privacy.epsilon is not None
    try:
        sigma = calibrate(lambda noise: planned_events(with_noise(noise), facts), privacy.epsilon, privacy.delta)
    except ConfigError:
        fixed = planned_events(with_noise(1.0), facts)
        if fixed != planned_events(with_noise(2.0), facts):
            raise
        cost = account(fixed, privacy.delta).value
        reason = (
            f"{method.rounds} rounds cost epsilon {cost:.4g} whatever the noise multiplier: {experiment.method_name} "
            "brings noise of its own; change its settings, take fewer rounds, or set privacy.noise_multiplier instead"
        )
        raise ConfigError(reason, location="privacy.epsilon", value=privacy.epsilon) from None
    try:
        with_noise(sigma).release(facts).check()
    except ConfigError as error:
        if error.location != "privacy.noise_multiplier":
            raise
        reason = (
            f"epsilon {privacy.epsilon:g} needs noise multiplier {sigma:g}, which cannot be drawn; take a "
            f"{'larger' if sigma > 1 else 'smaller'} epsilon or {'fewer' if sigma > 1 else 'more'} rounds"
        )
        raise ConfigError(reason, location="privacy.epsilon", value=privacy.epsilon) from error
    return with_noise(sigma)
