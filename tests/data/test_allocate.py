"""Every record is dealt out once, by the announced distribution, and again the same from the same seed."""

import numpy as np
import pytest

from uldp.data.allocate import ALLOCATIONS, allocate, bounded_zipf
from uldp.errors import ConfigError
from uldp.rng import Streams

STREAMS = Streams.from_seed(1)
KINDS = [kind for kind in ALLOCATIONS if kind != "as-is"]


def labels(records, classes, seed=0):
    return np.random.default_rng(seed).integers(classes, size=records)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", [2, 10])
def test_all_records_are_allocated(kind, classes):
    user, silo = allocate(labels(3000, classes), 40, 5, kind, STREAMS)
    assert user.shape == silo.shape == (3000,)
    assert set(user) <= set(range(40))
    assert set(silo) == set(range(5))


@pytest.mark.parametrize("kind", KINDS)
def test_one_seed_gives_one_allocation_and_another_seed_another(kind):
    def drawn(seed):
        return np.stack(allocate(labels(500, 4), 20, 3, kind, Streams.from_seed(seed)))

    assert np.array_equal(drawn(1), drawn(1))
    assert not np.array_equal(drawn(1), drawn(2))


def test_uniform_shares():
    user, silo = allocate(labels(60_000, 2), 20, 4, "uniform", STREAMS)
    assert np.bincount(user) / 60_000 == pytest.approx(np.full(20, 1 / 20), rel=0.1)
    assert np.bincount(silo) / 60_000 == pytest.approx(np.full(4, 1 / 4), rel=0.05)


def test_zipf_shares_of_users():
    user, _ = allocate(labels(200_000, 2), 50, 5, "zipf", STREAMS)
    shares = np.sort(np.bincount(user, minlength=50) / 200_000)[::-1]
    assert shares == pytest.approx(bounded_zipf(50, 0.5), rel=0.1)
    assert bounded_zipf(50, 0.5)[0] / bounded_zipf(50, 0.5)[3] == pytest.approx(2)


def test_zipf_shares_of_silos_in_each_users_own_order():
    user, silo = allocate(labels(200_000, 2), 10, 5, "zipf", STREAMS)
    counts = np.zeros((10, 5))
    np.add.at(counts, (user, silo), 1)
    shares = np.sort(counts / counts.sum(1, keepdims=True))[:, ::-1]
    for own in shares:
        assert own == pytest.approx([0.683, 0.171, 0.076, 0.043, 0.027], abs=0.015)
    assert len({tuple(np.argsort(-row)) for row in counts}) > 5


@pytest.mark.parametrize("classes", [2, 3, 10, 40])
def test_non_iid_users_hold_at_most_two_labels(classes):
    found = labels(5000, classes)
    user, _ = allocate(found, 30, 5, "non-iid", STREAMS)
    held = [len(set(found[user == u])) for u in range(30)]
    assert max(held) <= 2


def test_non_iid_is_no_empty_promise_for_two_classes():
    found = labels(5000, 2)
    user, _ = allocate(found, 40, 5, "non-iid", STREAMS)
    assert sum(len(set(found[user == u])) == 1 for u in range(40)) > 5


def test_non_iid_with_a_rare_label_and_just_enough_users():
    found = np.array([0] * 997 + [1, 2, 3])
    user, _ = allocate(found, 2, 3, "non-iid", STREAMS)
    assert all(len(set(found[user == u])) <= 2 for u in (0, 1))
    assert set(user) == {0, 1}


@pytest.mark.parametrize(("users", "silos"), [(7, 7), (20, 6)])
def test_stratified_clients_have_equal_shares_of_every_class(users, silos):
    found = labels(5003, 10)
    user, silo = allocate(found, users, silos, "stratified", STREAMS)
    for label in range(10):
        counts = np.bincount(user[found == label], minlength=users)
        assert counts.max() - counts.min() <= 1
    totals = np.bincount(user, minlength=users)
    assert totals.max() - totals.min() <= 1
    assert all(len(set(silo[user == u])) == 1 for u in range(users))
    assert sorted(set(silo.tolist())) == list(range(silos))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kind": "ziph"}, "unknown allocation 'ziph'. Known: uniform, zipf, non-iid, stratified, as-is"),
        ({"kind": "as-is"}, "'as-is' needs data that says"),
        ({"users": 0}, "data.users: at least 1 user, not 0"),
        ({"silos": 0}, "data.silos: at least 1 silo, not 0"),
        ({"user_exponent": float("nan")}, "data.options.user_exponent: zero or a positive number, not nan"),
        ({"silo_exponent": -1.0}, "data.options.silo_exponent"),
        (
            {"kind": "non-iid", "users": 4},
            "4 users with at most 2 labels each cannot hold 10 labels; at least 5",
        ),
        ({"kind": "non-iid", "labels": np.zeros(9, np.float32)}, "about the classes"),
        ({"kind": "stratified", "labels": np.zeros(9, np.float32)}, "about the classes"),
        ({"kind": "stratified", "users": 2}, "data.users: at least 3, so that each silo has a user, not 2"),
    ],
)
def test_impossible_allocations_are_refused(changes, text):
    given = {"labels": np.arange(1000) % 10, "users": 10, "silos": 3, "kind": "zipf", "streams": STREAMS}
    with pytest.raises(ConfigError) as error:
        allocate(**given | changes)
    assert text in str(error.value)
