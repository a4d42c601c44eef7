"""Records of one user over silos that sample differently: the worst way to spread them is what counts."""

import math

import pytest

from uldp.errors import ConfigError
from uldp.privacy.accountants import account
from uldp.privacy.events import (
    Gaussian,
    Group,
    NonPrivate,
    PoissonSampled,
    Repeated,
    Spread,
    event_from_json,
    event_to_json,
    flatten,
    ways,
)
from uldp.privacy.ledger import merge_same
from uldp.privacy.pld import quick_epsilon, renyi_bounds, renyi_epsilon

SMALL = (375, PoissonSampled(4 / 30, Gaussian(5.0)))
LARGE = (2150, PoissonSampled(4 / 172, Gaussian(5.0)))
SPREAD = Spread(2, (SMALL, LARGE))


def epsilon(composition):
    return account(composition, 1e-5).value


def test_heart_diseases_small_silo_is_the_worst_place():
    assert epsilon({SPREAD: 50}) == pytest.approx(57.9, abs=0.1)
    assert epsilon({Spread(8, (SMALL, LARGE)): 50}) == pytest.approx(560, abs=1)


def test_every_way_to_spread_the_records_is_covered():
    # noise and rates at which neither silo is far worse than the other: splits come close to the corners
    alike = Spread(3, ((40, PoissonSampled(0.1, Gaussian(2.0))), (85, PoissonSampled(0.07, Gaussian(2.0)))))
    found = [epsilon(way) for way in ways({alike: 4})]
    assert len(found) == 4
    assert epsilon({alike: 4}) == max(found)
    assert max(found) <= epsilon({event: 4 * steps for event, steps in alike.everywhere().items()})


def test_a_composition_keeps_the_records_where_they_are():
    other = {Gaussian(4.0): 3}
    possible = ways({SPREAD: 7, **other})
    assert [way[Gaussian(4.0)] for way in possible] == [3, 3, 3]
    assert possible[0][Group(2, SMALL[1])] == 7 * 375
    # two different ones in one composition: all of a user's records in all silos at once
    both = {SPREAD: 1, Spread(2, (SMALL, (1, LARGE[1]))): 1}
    assert ways(both) == [both]
    assert epsilon(both) >= epsilon({Repeated(750, Group(2, SMALL[1])): 1})


def test_too_many_ways_are_bounded_by_all_at_once():
    silos = tuple((10 + steps, PoissonSampled(0.1, Gaussian(5.0))) for steps in range(40))
    (bound,) = Spread(8, silos).ways()
    assert bound == Spread(8, silos).everywhere()


def test_the_quick_bound_is_never_below():
    assert quick_epsilon({SPREAD: 50}, 1e-5) >= epsilon({SPREAD: 50})


def test_bounds_of_all_ways_at_once_are_those_of_each():
    hopeless = Group(2, PoissonSampled(0.1, Gaussian(1e-4)))  # its divergences take tables that are too large
    possible = [*ways({Spread(8, (SMALL, LARGE)): 50}), {hopeless: 1, SMALL[1]: 1}]
    bounds = renyi_bounds(possible, 1e-5)
    alone = [renyi_epsilon(frozenset(flatten(way).items()), 1e-5) for way in possible]
    assert bounds[:-1] == pytest.approx(alone[:-1], rel=1e-12)
    assert alone[-1] == math.inf and bounds[-1] > 1e290
    assert renyi_bounds([{NonPrivate(): 1}, {SPREAD: 1}], 1e-5) == [math.inf, math.inf]


def test_it_is_written_and_read():
    assert event_from_json(event_to_json(SPREAD)) == SPREAD
    for broken in (
        {"event": "spread", "size": 2, "silos": [{"times": 2}]},
        {"event": "spread", "size": 2, "silos": [3]},
    ):
        with pytest.raises(ConfigError, match="unknown"):
            event_from_json(broken)
    with pytest.raises(ConfigError, match="steps"):
        Spread(2, ((0, Gaussian(1.0)),))


def test_the_same_request_twice_shows_the_samples_under_less_noise():
    (merged,) = merge_same([SPREAD, SPREAD])
    assert merged.silos[0][1].event.noise_multiplier == pytest.approx(5.0 / math.sqrt(2))
