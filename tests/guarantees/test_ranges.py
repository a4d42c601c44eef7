"""Ranges of local mechanisms that follow from the model: public, the same for all parties, no cost in epsilon."""

from __future__ import annotations

from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
from tests.core.test_sessions import DIGEST
from tests.support import TinyLearner, build, decode, drive, make_sessions, rows_of, small_federation, step

from uldp import Experiment, prepare
from uldp.errors import ConfigError
from uldp.mechanisms.local_registry import LOCAL_MECHANISMS, local_mechanism
from uldp.mechanisms.ranges import MARGIN, RADIUS_OF_ALIKE, spread, weight_range
from uldp.methods.ldp_fedavg import LdpFedAvg
from uldp.privacy.releases import PublicFacts
from uldp.privacy.releases.local_perturbation import FOLLOWS_UP_TO, Layer, LocalPerturbation
from uldp.protocol.messages import UpdateRequest, unpack_floats
from uldp.rng import Secrets

ALL_AUTO = {"center": "auto", "radius": "auto", "groups": "auto", "delta_sizes": "auto"}
GRIDDED = ("srr", "grr")
WIDENINGS = (1.0, 1.03, 1.37, FOLLOWS_UP_TO)
SIZES = (3, 1)


def automatic(initial, mechanism="srr", **settings):
    """The method of an experiment file with "auto" everywhere, for a model that begins at ``initial``."""
    method = build("ldp-fedavg", mechanism=mechanism, sends="weights", **{**ALL_AUTO, "precision": 3, **settings})
    return method.for_model(SIZES).for_start(lambda: np.asarray(initial))


def exp_above(epsilon: float) -> Fraction:
    return Fraction(Context(prec=60).exp(Decimal(epsilon))) * (1 + Fraction(1, 10**58))


def likelihood_ratio(mechanism) -> Fraction:
    """The largest ratio of an output's probabilities under two weights, from the integer masses."""
    if mechanism.name == "two-point":
        upper = [int(mass) for mass in mechanism.thresholds(np.array([mechanism.low, mechanism.high]))]
        ratios = [Fraction(upper[1], upper[0]), Fraction((1 << 53) - upper[0], (1 << 53) - upper[1])]
        return max(ratios)
    laws = [mechanism.law] if hasattr(mechanism, "law") else []
    assert laws, mechanism.name
    return max(Fraction(max(law.masses), min(law.masses)) for law in laws)


@pytest.mark.parametrize("name", [name for name in LOCAL_MECHANISMS if name != "hybrid"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_the_epsilon_of_a_weight_is_what_is_claimed_over_any_range(name, epsilon):
    for radius in (0.003, 0.0751, 1.3):
        grid = {"precision": 3} if name in GRIDDED else {}
        shape = {"groups": 2, "delta": 0.7 * 2000 * radius} if name == "srr" else {}
        narrow = local_mechanism(name, epsilon=epsilon, radius=radius, **grid, **shape)
        for factor in WIDENINGS:
            wide = narrow.widened(factor * radius)
            assert wide.epsilon == epsilon and wide.radius == factor * radius
            assert likelihood_ratio(wide) <= exp_above(epsilon)


def test_a_hybrid_over_a_wider_range_is_the_hybrid_that_is_made_over_it():
    wide = local_mechanism("hybrid", epsilon=2.0, radius=0.1).widened(0.17)
    assert wide == local_mechanism("hybrid", epsilon=2.0, radius=0.17)


@pytest.mark.parametrize("groups", [1, 2, 3, 10])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_groups_of_a_wider_staircase_are_the_same_parts_of_its_range(groups, share):
    size = 151
    largest = 2 * (size - groups) / (groups * (groups - 1)) if groups > 1 else 0.0
    narrow = local_mechanism("srr", epsilon=1.0, groups=groups, delta=share * largest * (1 - 1e-12), precision=3)
    for factor in np.linspace(1, FOLLOWS_UP_TO, 40):
        wide = narrow.widened(factor * 0.075)
        parts, before = (np.array(one.group_sizes()) / one.grid.size for one in (wide, narrow))
        assert np.abs(parts - before).max() <= 1 / size + 1 / wide.grid.size


def sent(method, x, learner, silo=0, key=b"k"):
    facts = PublicFacts(users=6, silos=3, dimension=4)
    data = small_federation().silos[silo]
    ((_, row),) = rows_of(method, x, data, learner, secrets=Secrets.from_key(key * 32), facts=facts)
    return row[0], method.release(facts)


class Far(TinyLearner):
    """Training ends far from where it began."""

    def __init__(self, distance):
        super().__init__(4)
        self.distance = distance

    def silo_delta(self, x, data, local, streams):
        return np.array([1.0, -1.0, 0.5, 0.7]) * self.distance


@pytest.mark.parametrize("mechanism", GRIDDED)
@pytest.mark.parametrize("ranges", ["fixed", "model"])
def test_a_range_is_that_of_the_public_model_whatever_a_client_s_weights_are(mechanism, ranges):
    """What a client sends lies on the grid that the server knows, and reaches no further."""
    method = automatic([0.04, -0.05, 0.06, 1.0], mechanism, ranges=ranges)
    x = np.array([0.09, -0.1, 0.11, 1.02])
    for distance in (0.0, 1e-3, 0.3, 50.0, 1e9):
        for key in (b"a", b"b", b"c"):
            row, release = sent(method, x, Far(distance), key=key)
            for part, known in release.parts(x):
                outputs = known.center + known.largest_output * row[part]
                assert known.grid.find(outputs)[1].all()
                assert (np.abs(outputs - known.center) <= known.radius + 1e-3).all()


def test_ranges_depend_on_no_records():
    plans = []
    for seed in (0, 1):
        tree = {
            "data": {"dataset": "synthetic", "users": 20, "silos": 6, "options": {"records": 200 + 50 * seed}},
            "method": {"name": "srr-fl", **ALL_AUTO},
            "aggregation": {"name": "plain"},
        }
        plans.append(prepare(Experiment.from_tree(tree)).plan)
    assert plans[0].release == plans[1].release
    radii = {layer.mechanism.radius for layer in plans[0].release.layers}
    assert 0.075 not in radii and plans[0].method.radius != "auto"


def test_parties_agree_on_ranges_by_the_digest_of_the_plan():
    tree = {
        "data": {"dataset": "synthetic", "users": 20, "silos": 6, "options": {"records": 200}},
        "method": {"name": "srr-fl", **ALL_AUTO},
        "aggregation": {"name": "plain"},
    }
    digests, releases = set(), set()
    for seed in (0, 1):
        plan = prepare(Experiment.from_tree({**tree, "run": {"seed": seed}})).plan
        digests.add(plan.digest)
        releases.add(repr(plan.release))
    assert len(digests) == len(releases) == 2


@pytest.mark.parametrize("mechanism", LOCAL_MECHANISMS)
def test_server_and_clients_have_the_same_ranges_in_every_round(mechanism):
    """A client computes its ranges from the model in its message, the server from the model that it keeps."""
    settings = {"rounds": 6, "ranges": "model", "epsilon_weight": 1.0}
    method = automatic([0.04, -0.05, 0.06, 1.0], mechanism, **settings)
    server, silos = make_sessions(method, small_federation(scale=3.0))
    release, seen = server.plan.release, []

    def watch(requests):
        for name, request in requests.items():
            body = decode(request, experiment=DIGEST, silo=name, limit=10**6)
            if isinstance(body, UpdateRequest):
                x = unpack_floats(body.model, 4, name)
                theirs = [one for _, one in release.parts(x)]
                assert theirs == [one for _, one in release.parts(server.model)]
                seen.append(tuple(one.radius for one in theirs))

    while requests := server.requests():
        watch(requests)
        step(server, silos)
    assert len(seen) == 6 * 3
    assert set(seen) != {tuple(layer.mechanism.radius for layer in release.layers)}  # they did move


def test_a_wide_model_does_not_widen_a_range_beyond_its_bound():
    method = automatic([0.04, -0.05, 0.06, 1.0], "srr", ranges="model")
    release = method.release(PublicFacts(users=6, silos=3, dimension=4))
    for x in (np.zeros(4), np.full(4, 1e6), np.full(4, -1e300), np.array([5e-324, 0, 0, 0])):
        for (_, now), layer in zip(release.parts(x), release.layers, strict=True):
            assert layer.mechanism.radius <= now.radius <= FOLLOWS_UP_TO * layer.mechanism.radius
            assert now.center == layer.mechanism.center and now.epsilon == layer.mechanism.epsilon


def test_a_range_that_could_not_widen_is_refused_before_the_first_round():
    mechanism = local_mechanism("grr", epsilon=1.0, radius=0.7, precision=7)  # 14 million values, twice: too many
    with pytest.raises(ConfigError, match="values of the range"):
        LocalPerturbation(facts=PublicFacts(6, 3, 4), layers=(Layer(4, mechanism),), follow_model=True)


def test_ranges_of_weights_are_as_documented():
    uniform = np.linspace(-0.04, 0.04, 2001)
    found = weight_range(uniform)
    assert (found.center, found.radius) == (0.0, pytest.approx(MARGIN * 0.04, rel=0.05))
    scales, shifts = weight_range(np.ones(32)), weight_range(np.zeros(32))
    assert (scales.center, scales.radius) == (1.0, RADIUS_OF_ALIKE)
    assert (shifts.center, shifts.radius) == (0.0, RADIUS_OF_ALIKE)
    assert weight_range(np.array([0.0, 0.0, 0.0, 0.2])).radius == RADIUS_OF_ALIKE  # no spread, not alike
    noisy = np.concatenate([uniform, np.full(100, 1e9)])
    assert spread(noisy, 0.0) < 0.045


def test_a_range_does_not_depend_on_the_last_bits_of_the_initial_weights():
    x = np.linspace(-0.04, 0.04, 2001)
    assert weight_range(x) == weight_range(np.nextafter(x, 1.0))


def test_every_tensor_gets_a_range_and_groups_of_its_own():
    method = automatic([0.1, -0.1, 0.1, 1.0], "srr", precision=4)
    assert method.center == (0.0, 1.0)
    assert method.radius == (pytest.approx(0.4), RADIUS_OF_ALIKE)
    first, second = (layer.mechanism for layer in method.release(PublicFacts(6, 3, 4)).layers)
    assert first.groups == second.groups == 2 and first.delta > 2 * second.delta > 0


def test_given_numbers_stay_as_they_are():
    method = automatic([0.1, -0.1, 0.1, 1.0], "srr", center=(0.0, 0.5), groups=4)
    assert method.center == (0.0, 0.5) and method.radius[0] == pytest.approx(0.4)
    first, _ = (layer.mechanism for layer in method.release(PublicFacts(6, 3, 4)).layers)
    assert first.groups == 4


def test_a_model_that_trains_with_automatic_ranges_ends_nearer():
    federation = small_federation(silos=30, records=20, seed=3)
    method = automatic(np.full(4, 0.6), "srr", epsilon_weight=8.0, rounds=8, debias=True, ranges="model")
    server, silos = make_sessions(method, federation)
    begin = np.linalg.norm(server.model - 1)
    drive(server, silos)
    assert np.linalg.norm(server.model - 1) < begin


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"radius": "wide", "sends": "weights"}, "method.radius: numbers, or 'auto', not 'wide'"),
        ({"radius": "auto"}, "method.radius"),
        ({"center": "auto"}, "method.center"),
        ({"groups": "auto"}, "method.delta_sizes: 'auto' too"),
        ({"ranges": "model"}, "method.ranges"),
    ],
)
def test_automatic_settings_that_mean_nothing_are_refused(fields, says):
    with pytest.raises(ConfigError) as refused:
        LdpFedAvg(**fields)
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_no_release_is_made_of_placeholders():
    method = build("ldp-fedavg", mechanism="srr", sends="weights", **ALL_AUTO)
    with pytest.raises(ConfigError, match="needs the initial model"):
        method.release(PublicFacts(users=6, silos=3, dimension=4))
