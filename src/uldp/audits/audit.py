"""An audit: runs with canaries, lower bounds for every adversary of the statement, direct checks, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from uldp.audits import checks as direct
from uldp.audits.bounds import Bound, Claim, Errors, one_run, pure_rates, shift_over_noise, trade_off
from uldp.audits.canaries import canaries_for
from uldp.audits.checks import Check
from uldp.audits.local import fewest_reports, weight_bounds
from uldp.audits.observe import AuditSetup, Charge, Connect, Seen, audit_secrets, in_process, synthetic_people
from uldp.audits.one_run import one_run_curve
from uldp.audits.result import Audit, Found, Size
from uldp.audits.rows import multiplier_of, row_checks
from uldp.audits.views import Scores, Twins, components, measure, scores
from uldp.data.federation import Federation
from uldp.errors import ConfigError, did_you_mean
from uldp.experiment.build import PreparedExperiment
from uldp.limits import check_whole
from uldp.privacy.gaussian import gaussian_epsilon, gaussian_mu, unsampled_mu
from uldp.privacy.ledger import Entry, Ledger
from uldp.privacy.releases import Adversary, ClippedSilo, GaussianSum, LocalPerturbation, NoisedModel, Release, views
from uldp.privacy.statement import Exposure, adversaries_of, exposures_of
from uldp.rng import Secrets
from uldp.sessions.plan import Plan

LEVEL: Final = 0.05
"""An adversary's bound lies above the true epsilon with at most this probability, whatever its number of statistics."""
AUDITS: Final = 100
"""A verdict takes more: a hundred audits of a claim that holds refute it in none, with probability 1 - LEVEL."""
SHARES: Final = {"trade-off": 0.4, "shift": 0.3, "one run": 0.1, "one run, curve": 0.1, "rates": 0.1}
"""How the level of an adversary is divided among its statistics."""
CANARIES: Final = 4000
PER_RUN: Final = 1000
ENCRYPTED: Final = 100
"""Canaries of a run, and of all runs, under an aggregation that multiplies with ciphertexts."""
MAX_CANARIES: Final = 1_000_000
TWIN_ROUNDS: Final = 2
RATES_AT: Final = (0.0, 1.0, -1.0)
_UNSEEN: Final = "under {} a silo's own noise cannot be taken off outside of it; audit 'masked' too"


@dataclass(frozen=True)
class RealRecords:
    """For an audit on real records: whom the ledger is about, and where releases are charged.

    Args:
        people: The records.
        secrets: Of the run.
        ledger: With the budget, and what was spent before.
        charge: Writes an entry down, before the total of its round is used.
    """

    people: Federation
    secrets: Secrets
    ledger: Ledger
    charge: Charge


def size_of(prepared: PreparedExperiment, canaries: int | None, *, real: bool = False) -> Size:
    """How many canaries and runs, and whether they are enough for a verdict.

    Raises:
        ConfigError: There is nothing to audit, or there are too few canaries for any verdict.
    """
    plan = prepared.plan
    _check_claim(prepared)
    encrypted = plan.aggregation.hides_counts
    default = ENCRYPTED if encrypted else PER_RUN if real else CANARIES
    number = check_whole(default if canaries is None else canaries, 1, MAX_CANARIES, "canaries")
    runs = 1 if real else math.ceil(number / (ENCRYPTED if encrypted else PER_RUN))
    epsilon = prepared.planned_statement().epsilon
    needed, expected = _power(plan, epsilon, prepared.experiment.privacy.delta, number)
    if number < (least := min(needed, default)):
        reason = f"{number} are too few for any verdict: below {least:,} their scores refute no epsilon at all"
        raise ConfigError(reason, location="canaries", value=number)
    return Size(math.ceil(number / runs), runs, needed, expected, epsilon)


def _check_claim(prepared: PreparedExperiment) -> None:
    statement, release = prepared.planned_statement(), prepared.plan.release
    if release.privacy_unit is None:
        reason = f"{prepared.experiment.method_name} claims no privacy: there is nothing to refute"
        raise ConfigError(reason, location="method.name")
    if isinstance(release, NoisedModel):
        release.everywhere()  # canaries are put into silos that are alike
    if not statement.holds:
        reason = prepared.no_guarantee or "epsilon is infinite"
        raise ConfigError(f"no guarantee is claimed, so there is nothing to refute: {reason}", location="privacy")
    if not isinstance(release, NoisedModel | LocalPerturbation) and release.noise_variance(release.facts.silos) == 0:
        reason = (
            "its release draws noise inside its rows and does not say how much, so there is nothing to measure it "
            "against; let its noise_variance(silos_heard) return the variance of a total's noise"
        )
        raise ConfigError(reason, location="method.name", value=prepared.experiment.method_name)


def _power(plan: Plan, epsilon: float, delta: float, number: int) -> tuple[int, float]:
    """Below how many canaries their scores refute no epsilon, and what ``number`` of them should; 0 where none is said.

    One canary is all that fits into a silo's clipped vector. What the scores of DP-SGD reach is below the claim.
    """
    release = plan.release
    if isinstance(release, ClippedSilo):
        return 0, 0.0
    if isinstance(release, LocalPerturbation):
        clients = release.silo_sampling.per_round(plan.facts.silos)
        return math.ceil(fewest_reports(release.epsilon, plan.rounds, LEVEL) / clients), 0.0
    mu, level = gaussian_mu(epsilon, delta), LEVEL * SHARES["trade-off"]
    needed = next(n for n in (2**power for power in range(4, 60)) if _expected_mu(mu, n / 2, level) > 0)
    expected = _expected_mu(mu, number / 2, level) if isinstance(release, GaussianSum) else 0.0
    return needed, gaussian_epsilon(expected, delta) if expected else 0.0


def _expected_mu(mu: float, each: float, level: float) -> float:
    """The mu that is refuted if half of ``each`` canaries are in and everything goes as expected."""
    from scipy.stats import norm

    number = max(1, int(each / 2))
    wrong = round(float(norm.sf(mu / 2)) * number)
    rates = Errors(wrong, number, wrong, number).upper_bounds(level)
    return max(0.0, float(norm.isf(rates[0]) - norm.ppf(rates[1])))


def _strict_level(adversaries: int) -> float:
    """Of an adversary's verdict: all adversaries share half of an audit's level, direct checks the other half."""
    return LEVEL / AUDITS / 2 / adversaries


def audit_of(
    prepared: PreparedExperiment,
    size: Size,
    *,
    adversary: str | None = None,
    seed: int = 0,
    real: RealRecords | None = None,
    on_round: Callable[[], None] = lambda: None,
    connect: Connect = in_process,
) -> Audit:
    """Run the audit.

    Args:
        prepared: The experiment; nobody's records are needed.
        size: What :func:`size_of` gave.
        adversary: Audit this one of the statement only; None for all.
        seed: Of coins, synthetic people and the noise of the audit's runs.
        real: Real records, for one run on them.
        on_round: Called after every round of every run.
        connect: How requests come to the silos' sessions: by calls, or over the transport of a federation.

    Raises:
        ConfigError: The adversary is unknown, or sees nothing that could be audited.
    """
    streams = prepared.streams.child("audit", seed)
    people = synthetic_people(prepared.federation, streams) if real is None else real.people
    canaries = canaries_for(prepared.plan.release, size.per_run)
    setup = AuditSetup(prepared, people, canaries, connect)
    plan = setup.plan()
    chosen = _choose_adversaries(plan, prepared.experiment.privacy.delta, adversary)
    runs = []
    for number in range(size.runs):
        included = canaries.coins(streams.child("coins", number))
        fresh = setup.plan()
        secrets = audit_secrets(seed, number) if real is None else real.secrets
        about = {} if real is None else {"ledger": real.ledger, "charge": real.charge}
        runs.append(setup.run(fresh, included, secrets, on_round=on_round, **about))  # type: ignore[arg-type]
        if adversary is not None and components(runs[0], chosen[0][1], plan.release) is None:
            raise ConfigError(_UNSEEN.format(plan.aggregation.name), location="adversary", value=adversary)
    if isinstance(plan.release, LocalPerturbation):
        return _local_audit(prepared, plan, chosen, runs, size)
    twins = _run_twins(replace(setup, people=people if real is None else _without_records(people)), seed)
    found = [_audit_adversary(one, runs, twins, plan, len(chosen), prepared) for one in chosen]
    if adversary is not None and found[0].not_audited:
        raise ConfigError(found[0].not_audited, location="adversary", value=adversary)
    made = _direct(setup, runs, twins, plan, seed)
    made += row_checks(prepared, synthetic_people(prepared.federation, streams), streams)
    return Audit(
        experiment=prepared.experiment.method_name,
        aggregation=plan.aggregation.name,
        rounds=plan.rounds,
        delta=prepared.experiment.privacy.delta,
        size=size,
        found=tuple(found),
        checks=_judge(made),
        notes=_notes(plan.release),
        real=real is not None,
    )


def _without_records(people: Federation) -> Federation:
    return replace(people, silos=tuple(silo.take(np.zeros(0, dtype=np.int64)) for silo in people.silos))


def _judge(made: Sequence[Check]) -> tuple[Check, ...]:
    level = LEVEL / AUDITS / 2 / max(1, len(made))
    return tuple(replace(check, level=level) for check in made)


def _choose_adversaries(plan: Plan, delta: float, name: str | None) -> list[tuple[Exposure, Adversary]]:
    """The adversaries of the statement, each with its claim."""
    event = plan.release.event(plan.facts.silos)
    entries = tuple(Entry(round_, event, "audit") for round_ in range(1, plan.rounds + 1))
    ledger, disclosure = Ledger(delta, None, entries), plan.disclosure
    exposures = exposures_of(plan.release, disclosure, ledger, [1] * plan.rounds)
    if plan.release.local:
        rows = [(exposure, Adversary()) for exposure in exposures]
    else:
        seen = {who: adversary for who, _, adversary in adversaries_of(plan.release, disclosure)}
        rows = [(exposure, seen[exposure.who]) for exposure in exposures]
    if name is None:
        return rows
    known = [exposure.who for exposure, _ in rows]
    if name not in known:
        listed = "; ".join(known)
        hint = did_you_mean(name, known)
        raise ConfigError(
            f"the statement has no such adversary. It has: {listed}{hint}", location="adversary", value=name
        )
    (found,) = [row for row in rows if row[0].who == name]
    if math.isinf(found[0].epsilon):
        raise ConfigError(
            "no epsilon is claimed towards them: there is nothing to refute", location="adversary", value=name
        )
    return [found]


def _run_twins(setup: AuditSetup, seed: int) -> Twins:
    """Noiseless runs with everyone and with nobody. DP-SGD takes every record: then the shift is the largest."""
    prepared = setup.prepared
    if isinstance(prepared.plan.release, NoisedModel):
        method = replace(prepared.plan.method, record_rate=1.0)  # type: ignore[call-arg]
        setup = replace(setup, prepared=replace(prepared, plan=replace(prepared.plan, method=method)))
    release = prepared.plan.release
    few = min(max(TWIN_ROUNDS, release.participation.groups), prepared.plan.rounds)
    rounds = few if release.user_sampling.everybody else None
    noise, plans = setup.quiet_plans(rounds)
    secrets, shape = audit_secrets(seed, "twin"), setup.canaries.counts.shape
    everyone, nobody = (
        setup.run(plan, np.full(shape, here, dtype=np.bool_), secrets) for plan, here in zip(plans, (1, 0), strict=True)
    )
    return Twins(everyone, nobody, noise)


def _audit_adversary(
    row: tuple[Exposure, Adversary],
    runs: Sequence[Seen],
    twins: Twins,
    plan: Plan,
    adversaries: int,
    prepared: PreparedExperiment,
) -> Found:
    """All bounds for one adversary."""
    exposure, adversary = row
    if math.isinf(exposure.epsilon):
        return Found(exposure, not_audited="no epsilon is claimed")
    release, delta = plan.release, prepared.experiment.privacy.delta
    claim = Claim.of(views(release, adversary, [1] * plan.rounds), delta)
    scored, seen = scores(runs, twins, adversary, release), measure(runs, twins, adversary, release)
    if scored is None or seen is None:
        return Found(exposure, not_audited=_UNSEEN.format(plan.aggregation.name))
    if seen.mu == 0:
        return Found(exposure, not_audited="no canary moves what they see")
    best = None if isinstance(release, ClippedSilo) else scored.strongest()
    claimed_mu = unsampled_mu({release.view(adversary): 1})

    def bounds(level: float) -> tuple[Bound, ...]:
        shift = shift_over_noise(claim, seen, claimed_mu, level * SHARES["shift"])
        return (shift,) if best is None else (*score_bounds(claim, best, level), shift)

    curve, number = (None, 1) if best is None else (best.curve(), len(best.values))
    shown = bounds(LEVEL)
    # A bound of more confidence is no larger: where 95 % say nothing against the claim, neither does a verdict.
    doubtful = any(bound.epsilon > exposure.epsilon for bound in shown)
    strict = bounds(_strict_level(adversaries)) if doubtful else ()
    return Found(exposure, shown, strict, claim=claim, curve=curve, canaries=number)


def score_bounds(claim: Claim, best: Scores, level: float) -> tuple[Bound, ...]:
    """What scores of canaries refute, by all statistics together at ``level``."""
    values, included = best.values, best.included
    return (
        trade_off(claim, Errors.of(values, included), level * SHARES["trade-off"]),
        pure_rates(values, included, claim.delta, level * SHARES["rates"], RATES_AT),
        one_run(values, included, claim.delta, level * SHARES["one run"]),
        one_run_curve(claim, values, included, level * SHARES["one run, curve"]),
    )


def _direct(setup: AuditSetup, runs: Sequence[Seen], twins: Twins, plan: Plan, seed: int) -> list[Check]:
    release, sampling = plan.release, plan.release.user_sampling
    made = direct.noise_checks(runs, twins, release)
    made += direct.shift_checks(twins, release, multiplier_of(release), by_user=release.user_weighting is not None)
    if not sampling.everybody:
        made += direct.sample_checks(
            twins.participants(setup.canaries.shapes), sampling.rate, sampling.max_participations
        )
        if not sampling.max_participations:  # a limit takes users out of later samples
            # Both twins have the same sample.
            made += direct.size_checks([*runs, twins.everyone], plan.facts.users, sampling.rate)
    if isinstance(release, NoisedModel) and release.everywhere()[1] < 1:
        made += _batches(setup, release, seed)
    if not plan.aggregation.server_sees_each_silo and len(plan.silos) > 1:
        made += direct.mask_checks(runs)
    return made


def _batches(setup: AuditSetup, release: NoisedModel, seed: int) -> list[Check]:
    """How often DP-SGD takes a canary's records, from a noiseless run at its own rate."""
    plan = setup.plan(noise_multiplier=0.0)
    everyone = np.ones(setup.canaries.counts.shape, dtype=np.bool_)
    seen = setup.run(plan, everyone, audit_secrets(seed, "batches"))
    unit = release.lr / release.batch_size * release.clip
    taken = np.rint(seen.totals[:, : setup.canaries.number] / unit).astype(np.int64)
    if release.sampling != "records" or release.group_size is not None:
        return []  # limits of a user's records make the counts dependent
    steps, rate = release.everywhere()
    return direct.batch_checks(taken, steps * setup.canaries.counts.sum(axis=0), rate)


def _local_audit(
    prepared: PreparedExperiment,
    plan: Plan,
    chosen: Sequence[tuple[Exposure, Adversary]],
    runs: Sequence[Seen],
    size: Size,
) -> Audit:
    """Clients perturb every weight: what is audited is the epsilon of one weight, on which all else rests."""
    release = plan.release
    assert isinstance(release, LocalPerturbation)
    weight = Exposure(
        "anybody, one weight in one round", "a client's perturbed weight", release.epsilon, release.epsilon
    )
    why = "its epsilon is composed from that of one weight, which is audited"
    shown, strict = (tuple(weight_bounds(runs, level)) for level in (LEVEL, _strict_level(1)))
    found = [Found(weight, shown, strict), *(Found(exposure, not_audited=why) for exposure, _ in chosen)]
    return Audit(
        experiment=prepared.experiment.method_name,
        aggregation=plan.aggregation.name,
        rounds=plan.rounds,
        delta=prepared.experiment.privacy.delta,
        size=size,
        found=tuple(found),
        notes=_notes(release),
    )


def _notes(release: Release) -> tuple[str, ...]:
    """What canaries disturb."""
    if isinstance(release, ClippedSilo):
        return (
            "A silo sends one clipped vector: the canary takes the whole clip, and the model stands still. One canary "
            "is all that fits into a vector, so shift over noise is the one bound.",
        )
    if isinstance(release, LocalPerturbation):
        return ("Every client's weights behind the model are canaries; its training is not disturbed by them.",)
    if isinstance(release, NoisedModel):
        return (
            "Single records are clipped by the learner: the model's by the real one, a canary's by the audit. What the "
            "learner makes of a record is not audited by canaries.",
        )
    return ()
