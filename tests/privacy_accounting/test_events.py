"""Events are plain, checked data; a ledger of them adds up what was released."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uldp.errors import BudgetExhausted, ConfigError, RunError
from uldp.privacy.accountants import account
from uldp.privacy.events import (
    Gaussian,
    Group,
    NonPrivate,
    PoissonSampled,
    Repeated,
    dp_sgd,
    event_from_json,
    event_to_json,
    flatten,
)
from uldp.privacy.ledger import Entry, Ledger

gaussians = st.builds(Gaussian, st.floats(0.01, 1e3))
sampled = st.builds(PoissonSampled, st.floats(1e-6, 1.0), gaussians)
groups = st.builds(Group, st.integers(1, 10**6), gaussians | sampled)
events = st.recursive(
    gaussians | sampled | groups | st.just(NonPrivate()),
    lambda inner: st.builds(Repeated, st.integers(1, 10**6), inner),
)


@given(events)
def test_events_survive_json(event):
    import json

    assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event
    entry = Entry(3, event, "ab")
    assert Entry.from_json(json.loads(json.dumps(entry.to_json()))) == entry


INNER = {"event": "gaussian", "noise_multiplier": 5.0}


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"event": "laplace"},
        {"event": "gaussian"},
        {"event": "gaussian", "noise_multiplier": "5"},
        {**INNER, "sample_rate": 0.1},
        {"event": "non-private", "size": 2},
        {"event": "poisson-sampled", "sample_rate": 0.1, "of": {"event": "non-private"}},
        {"event": "group", "size": 2.0, "of": INNER},
        {"event": "group", "size": True, "of": INNER},
        {"event": "group", "size": 0, "of": INNER},
        {"event": "group", "of": INNER},
        {"event": "group", "size": 2, "of": {"event": "non-private"}},
        {"event": "group", "size": 2, "of": {"event": "group", "size": 2, "of": INNER}},
        {"event": "group", "size": 2, "of": {"event": "repeated", "times": 2, "of": INNER}},
        {"event": "repeated", "times": -1, "of": INNER},
        {"event": "repeated", "times": 2, "of": INNER, "more": 1},
        {"event": "repeated", "times": 2, "of": "gaussian"},
    ],
)
def test_foreign_trees_are_refused(tree):
    with pytest.raises(ConfigError):
        event_from_json(tree)
    with pytest.raises((ConfigError, RunError)):
        Entry.from_json({"round": 1, "content": "aa", **tree})


@pytest.mark.parametrize("number", [0, -3, 2.5, True])
def test_sizes_and_times_are_whole_and_positive(number):
    with pytest.raises(ConfigError, match="whole number"):
        Group(number, Gaussian(1.0))
    with pytest.raises(ConfigError, match="whole number"):
        Repeated(number, Gaussian(1.0))


def test_a_group_is_of_single_releases():
    with pytest.raises(ConfigError, match="single releases"):
        Group(2, Repeated(2, Gaussian(1.0)))


def test_flat_compositions():
    step = Group(4, PoissonSampled(0.1, Gaussian(2.0)))
    flat = flatten({Repeated(5, Repeated(2, step)): 3, step: 1, Group(1, Gaussian(2.0)): 2, Gaussian(2.0): 0})
    assert flat == {step: 31, Gaussian(2.0): 2}
    assert dp_sgd(2.0, 0.1, 7, 4) == Repeated(7, step)
    assert dp_sgd(0.0, 0.1, 7, 4) == NonPrivate()
    with pytest.raises(ConfigError, match="cannot have happened"):
        account({step: -1}, 1e-5)


def test_fresh_batches_of_one_round_add_up():
    step = PoissonSampled(0.05, Gaussian(2.0))
    ledger = Ledger(1e-5)
    for content, event in [("a", Group(4, step)), ("b", Group(4, step)), ("c", Repeated(3, Group(4, step)))]:
        ledger.charge(Entry(1, event, content, f"model {content}"))
    assert flatten(ledger.composition()) == {Group(4, step): 5}
    ledger.charge(Entry(2, Repeated(3, step), "d"))  # says itself that its samples are fresh
    ledger.charge(Entry(2, Repeated(2, step), "e"))
    assert flatten(ledger.composition()) == {Group(4, step): 5, step: 5}


def test_a_round_of_users_and_groups_keeps_both():
    """Releases about users share the round's sample, whatever else the round released."""
    users, records = PoissonSampled(0.1, Gaussian(2.0)), Group(4, PoissonSampled(0.05, Gaussian(2.0)))
    ledger = Ledger(1e-5)
    for content, event in [("a", users), ("b", records), ("c", users)]:
        ledger.charge(Entry(1, event, content))
    assert ledger.composition() == {PoissonSampled(0.1, Gaussian((2 * 2.0**-2) ** -0.5)): 1, records: 1}
    alone = Ledger(1e-5, entries=(Entry(1, users, "a"), Entry(1, users, "c")))
    assert ledger.epsilon().value > alone.epsilon().value > account({users: 2}, 1e-5).value


def test_a_budget_counts_a_second_release_with_the_first_whose_sample_it_shares():
    users = PoissonSampled(0.01, Gaussian(1.0))
    apart = account({users: 2}, 1e-5).value
    ledger = Ledger(1e-5, apart * 1.1)
    assert ledger.charge(Entry(1, users, "a"))
    with pytest.raises(BudgetExhausted, match="not released"):
        ledger.charge(Entry(1, users, "b"))
    assert ledger.charge(Entry(2, users, "b"))
    assert ledger.epsilon().value <= apart * 1.1


def test_a_budget_stops_a_group_run():
    event = dp_sgd(3.0, 0.02, 20, 4)
    budget = account({event: 2}, 1e-5).value
    ledger = Ledger(1e-5, budget)
    assert ledger.charge(Entry(1, event, "1")) and ledger.charge(Entry(2, event, "2"))
    with pytest.raises(BudgetExhausted, match="not released"):
        ledger.charge(Entry(3, event, "3"))
    assert len(ledger.entries) == 2


def test_answers_to_the_same_question_share_their_samples_and_answers_to_another_do_not():
    """A silo that computes a response again and rounds otherwise: the same records sampled, other noise."""
    step = Repeated(100, PoissonSampled(0.01, Gaussian(1.0)))
    same = Ledger(1e-5, None, (Entry(1, step, "a", "model"), Entry(1, step, "b", "model")))
    other = Ledger(1e-5, None, (Entry(1, step, "a", "model"), Entry(1, step, "b", "other model")))
    shared = Repeated(100, PoissonSampled(0.01, Gaussian(1 / math.sqrt(2))))
    assert same.composition() == {shared: 1}
    assert other.composition() == {step: 2}
    assert same.epsilon().value == pytest.approx(2.291, abs=2e-3)
    assert other.epsilon().value == pytest.approx(0.912, abs=2e-3)
    group = Repeated(5, Group(4, PoissonSampled(0.1, Gaussian(4.0)), 3))
    four = Ledger(1e-5, None, tuple(Entry(1, group, content) for content in "abcd"))
    assert four.composition() == {Repeated(5, Group(4, PoissonSampled(0.1, Gaussian(2.0)), 3)): 1}
    assert Entry.from_json(Entry(1, step, "a", "model").to_json()) == Entry(1, step, "a", "model")
