"""The absolute noise of every private method in the registry, against the event that the accountant reads.

A real round runs, with a learner that makes one user (or record, or client) move the release as far as the method
allows. Measured are the shift, without noise, and the deviation of the noise, in coordinates that nobody moves. Their
ratio must be what the event in the ledger says. Nothing is taken from the code that makes the noise.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from tests.guarantees.adversary import FAR, GAUSSIAN, LOCAL, OwnCoordinates, federation_of, release, with_settings
from tests.support import make_plan

from uldp.errors import ConfigError
from uldp.mechanisms.local_registry import LOCAL_MECHANISMS
from uldp.privacy.accountants import account
from uldp.privacy.events import Gaussian, LocalReports, flatten, parameters
from uldp.privacy.sentences import PUBLIC
from uldp.privacy.statement import Background, compose

SILOS = 3
LAST = f"silo-{SILOS - 1}"
COORDINATES = 20_000
ERROR = 5 / math.sqrt(2 * COORDINATES)
"""Five standard errors of a deviation, 2.5 %: a false alarm has probability 6e-7 per case, and seeds are fixed. Half
the noise doubles the ratio, 200 standard errors away."""

# Settings that some methods have. A variant is tried on every method, and left out where the method refuses it.
VARIANTS = {
    "as it is": {},
    "users sampled": {"sample_rate": 0.6},
    "records sampled": {"record_rate": 0.95},
    "shares for two silos": {"dropout_tolerance": 1},
    "some silos picked": {"fraction": 0.67},
    "two silos per user": {"max_silos": 2},
    "no weights": {"weighting": "none"},
    "weights by records": {"weighting": "records"},
    "uniform weights": {"weighting": "uniform"},
    "items sampled": {"sampling": "items", "max_items": 5, "record_rate": 0.95},
    "few items count": {"sampling": "items", "max_items": 5, "largest_group": 2, "record_rate": 0.95},
}
SAMPLES = {"sample_rate", "record_rate", "fraction"}
CASES = [
    (name, variant)
    for name in GAUSSIAN
    for variant, wanted in VARIANTS.items()
    if with_settings(name, wanted, noise_multiplier=1.0) is not None
]


def settings_of(name, variant, **further):
    defaults = {"rounds": 2, "local_steps": 2, "record_rate": 1.0, "clip": 0.7}
    wanted = VARIANTS[variant]
    return with_settings(name, wanted, **{k: v for k, v in {**defaults, **further}.items() if k not in wanted})


def loss(composition) -> float:
    """mu of all that was released, for somebody who was in every sample: Gaussians of shift k / sigma compose so."""
    total = 0.0
    for event, count in flatten(composition).items():
        of = parameters(event)
        total += count * (of.max_clips / of.noise_multiplier) ** 2
    return math.sqrt(total)


def crowd(*user_0):
    """A federation in which user 0 has so many records in each silo, and everybody else has two in one silo."""
    return federation_of(np.column_stack([user_0, 2 * np.eye(SILOS, dtype=int)]))


def worst_places(method):
    """Federations with user 0 in one silo, in two, in all; with one record only if it is records that are protected."""
    if method.privacy_unit == "record":
        return [crowd(1, 0, 0)]
    found = []
    for federation in (crowd(24, 0, 0), crowd(12, 12, 0), crowd(8, 8, 8)):
        made = make_plan(method, federation, 2).release
        with suppress(ConfigError):  # no promise is made about data that are refused
            made.check()
            made.check_counts(federation.counts())
            found.append(federation)
    return found


def shifts(method, federation, seed, **options):
    """How far user 0 moves each silo's vector in the first round."""
    with_0, without = (
        release(method, data, OwnCoordinates(2), seed=seed, **options)[1][0]
        for data in (federation, federation.without(0))
    )
    return {silo: with_0[silo][0] - without[silo][0] for silo in with_0}


def ratios(noise, shift):
    """Shift over noise: in the total, in all silos' vectors together, and in sums without the vectors of some silos."""
    deviations = {silo: vector.std() for silo, vector in noise.items() if vector.any()}

    def in_sum(silos):
        total = sum(noise[silo] for silo in silos)
        return abs(sum(shift[silo] for silo in silos)) / total.std() if np.any(total) else 0.0

    return {
        "total": in_sum(noise),
        "vectors": math.hypot(*(shift[silo] / deviation for silo, deviation in deviations.items())),
        **{f"without {left} silos": in_sum(list(noise)[: SILOS - left]) for left in (1, 2)},
    }


def seen(shared_noise, aggregation, missing):
    """What each adversary of the statement sees, by the names of :func:`ratios`."""
    yield PUBLIC, "total" if shared_noise else "vectors"
    yield "the server", "vectors" if missing or aggregation == "plain" or not shared_noise else "total"
    others = f"without {1 + len(missing)} silos"
    yield "one silo", others
    if shared_noise:
        yield f"{PUBLIC}, one silo dropped out", others
    if shared_noise and not missing:
        yield "two colluding silos", "without 2 silos"


@pytest.mark.parametrize(("name", "variant"), CASES)
@pytest.mark.parametrize("absent", [(), (LAST,)], ids=["all response", "one is silent"])
def test_shift_over_noise_is_what_the_accountant_reads(name, variant, absent):
    options = {"absent": absent, "min_silos": SILOS - 1 if absent else 0}
    method, silent = (settings_of(name, variant, noise_multiplier=sigma) for sigma in (3.0, 0.0))
    everybody, found = worst_places(method)[0], []
    # User 0 should be in every sample. With two steps in each of three silos that has probability 0.95^6 = 0.74, and
    # not one of five seeds has it with probability 0.001 (or picks its silos: 0.004). Seeds are fixed.
    for seed in range(5) if SAMPLES & set(VARIANTS[variant]) else range(1):
        server, sent, _ = release(method, everybody, OwnCoordinates(COORDINATES), seed=seed, **options)
        noise = {silo: vector[1:] for silo, vector in sent[0].items()}
        found += [ratios(noise, shifts(silent, data, seed, **options)) for data in worst_places(method)]
    measured = {key: max(each[key] for each in found) for key in found[0]}

    # The ledger is about the total where silos share its noise. Where each adds its own, it covers all vectors.
    released = measured["total" if shares_noise(method) else "vectors"]
    tight = 0.6 if absent else 0.95  # a silent silo keeps its part of a user's weight to itself, beside its noise
    assert tight < released / loss({server.ledger.entries[0].event: 1}) < 1 + ERROR
    check_gaussian_and_fresh([sum(vectors.values())[1:] for vectors in sent])
    if "record_rate" not in VARIANTS[variant]:  # batches are secret towards everybody
        check_statement(method, everybody, server, measured, absent)


def shares_noise(method) -> bool:
    return make_plan(method, worst_places(method)[0], 2).release.shared_noise


def check_statement(method, federation, server, measured, absent):
    """Every adversary's epsilon covers what was measured, with the sample known to server and silos."""
    for aggregation in ("plain", "masked"):
        plan = replace(make_plan(method, federation, COORDINATES, aggregation), min_silos=SILOS - len(absent))
        made, shown = plan.release, plan.disclosure
        told = compose(made, shown, server.ledger, Background(), simulated=True, silos_heard=server.silos_heard)
        stated = {row.who: row.epsilon for row in told.exposures}
        for who, what in seen(made.shared_noise, aggregation, absent):
            if who.startswith(PUBLIC) and not made.user_sampling.everybody:
                continue  # amplified: test_poisson_samples
            lower, upper = (epsilon_of(measured[what] * factor) for factor in (1 - ERROR, 1 / 0.3))
            assert lower <= stated[who] < upper, (aggregation, who)


def epsilon_of(shift_over_noise, rounds=2, delta=1e-5):
    return account({Gaussian(1 / shift_over_noise): rounds}, delta).value


def check_gaussian_and_fresh(noise):
    """Normal, around zero, and independent from round to round and from coordinate to coordinate."""
    first, second = (vector / vector.std() for vector in noise)
    assert stats.kstest(first, "norm").pvalue > 1e-6
    assert abs(stats.kurtosis(first)) < 5 * math.sqrt(24 / len(first))  # tails: 5 standard errors
    for correlation in (first, first * second, first[1:] * first[:-1]):
        assert abs(correlation.mean()) < 5 / math.sqrt(len(correlation))


def test_every_method_with_gaussian_noise_is_measured_and_most_variants_apply_to_some():
    assert {name for name, _ in CASES} == set(GAUSSIAN)
    assert {variant for _, variant in CASES} == set(VARIANTS)


# --- clients that perturb by themselves ---------------------------------------------------------------------------

EPSILON = 1.0
WEIGHTS = 100_000
LOCAL_CASES = [
    (name, wanted)
    for name in LOCAL
    for wanted in ({}, *({"mechanism": mechanism} for mechanism in LOCAL_MECHANISMS), {"sends": "weights"})
    if with_settings(name, wanted) is not None
]


class SameWeights(OwnCoordinates):
    """Every weight of every client moves by ``target``, and from there into the range that the mechanism clips to."""

    def __init__(self, dimension, target):
        super().__init__(dimension)
        self.target = target

    def silo_delta(self, x, data, local, streams):
        return np.full(len(x), self.target)


def reports(name, wanted, target):
    """The first round's perturbed weights of one client, the second's, and the event."""
    # Few outputs, so that each comes out often.
    method = with_settings(name, wanted, rounds=2, epsilon_weight=EPSILON, precision=3, groups=4, delta_sizes=3.0)
    lonely = federation_of([[2, 2]])
    server, sent, _ = release(method, lonely, SameWeights(WEIGHTS, target))
    return *(vectors["silo-0"] for vectors in sent), server.ledger.entries[0].event


@pytest.mark.parametrize(("name", "wanted"), LOCAL_CASES)
def test_any_two_inputs_of_a_client_give_every_output_with_probabilities_within_e_to_the_epsilon(name, wanted):
    """Bin by bin, c <= e^epsilon c' up to five deviations. Some bin attains it, so twice the epsilon would show."""
    outputs = {}
    for target in (-FAR, 0.0, FAR):
        first, second, event = reports(name, wanted, target)
        assert event == LocalReports(EPSILON, WEIGHTS)
        outputs[target] = first
        # Fresh for every weight, and in every round where both rounds have the same input: an end of the range.
        for one, other in ((first[1:], first[:-1]), *([(first, second)] if target else [])):
            assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(WEIGHTS)
    edges = np.linspace(*np.quantile(np.concatenate(list(outputs.values())), [0, 1]), 150)
    edges[-1] += 1
    counts = [np.histogram(found, edges)[0] for found in outputs.values()]
    attained = 0.0
    for likely in counts:
        for unlikely in counts:
            bound = math.exp(event.epsilon) * unlikely
            assert (likely - bound <= 5 * np.sqrt(likely + math.exp(event.epsilon) * bound)).all()
            often = unlikely >= 100
            attained = max(attained, float(np.log(likely[often] / unlikely[often]).max(initial=0.0)))
    assert attained > 0.8 * event.epsilon
