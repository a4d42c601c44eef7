"""Users for data whose silos are given: sizes stay, everybody has a record, most of a user's lie in one silo."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uldp.data.allocate import allocate_given, bounded_zipf
from uldp.errors import ConfigError
from uldp.rng import Streams

HEART = (199, 172, 30, 85)
TCGA = (248, 156, 164, 129, 129, 40)


def counts(sizes, users, kind, seed=0, **settings):
    """n_su as a (silos, users) matrix."""
    owners = allocate_given(sizes, users, kind, Streams.from_seed(seed), **settings)
    assert tuple(map(len, owners)) == tuple(sizes)
    assert all(owner.dtype == np.int64 for owner in owners)
    return np.stack([np.bincount(owner, minlength=users) for owner in owners])


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    users=st.integers(1, 40),
    kind=st.sampled_from(["uniform", "zipf"]),
    least=st.integers(1, 3),
    share=st.floats(0, 1),
    exponent=st.floats(0, 3),
    seed=st.integers(0, 3),
)
def test_sizes_stay_and_nobody_has_too_few(sizes, users, kind, least, share, exponent, seed):
    sizes = [size if size >= least else 0 for size in sizes]
    settings = {"least": least, "preferred_share": share, "user_exponent": exponent}
    if kind == "zipf" and users > sum(size // least for size in sizes):
        with pytest.raises(ConfigError, match=r"data\.users: at most"):
            counts(sizes, users, kind, seed, **settings)
        return
    held = counts(sizes, users, kind, seed, **settings)
    assert held.shape == (len(sizes), users)
    assert (held[held > 0] >= least).all()
    if kind == "zipf":
        assert (held.sum(axis=0) >= least).all()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("sizes", "least"), [(HEART, 1), (TCGA, 2)])
def test_four_fifths_lie_in_one_silo(sizes, least, seed):
    held = counts(sizes, 200, "zipf", seed, least=least)
    total, most = held.sum(axis=0), held.max(axis=0)
    # In lots of ``least``, each user is rounded up or down, and a silo's odd record joins one of the lots.
    assert (most >= np.floor(0.8 * (total // least)) * least).all()
    assert most.sum() >= 0.8 * total.sum() - 2 * least
    many = total >= 10 * least
    assert 0.75 < most[many].sum() / total[many].sum() < 0.88
    assert (held[:, many] > 0).sum(axis=0).min() > 1


def test_every_silo_is_preferred_by_some():
    held = counts(HEART, 200, "zipf")
    preferred = np.bincount(held.argmax(axis=0), minlength=4)
    assert preferred[2] >= 3
    assert preferred / 200 == pytest.approx(np.array(HEART) / 486, abs=0.12)


def test_sizes_of_users_follow_the_zipf_law():
    total = np.sort(counts((12_000, 18_000, 10_000), 20, "zipf").sum(axis=0))[::-1]
    assert total / 40_000 == pytest.approx(bounded_zipf(20, 0.5), rel=0.1)


def test_uniform_users():
    held = counts((30_000, 10_000), 20, "uniform")
    assert held / held.sum(axis=1, keepdims=True) == pytest.approx(np.full((2, 20), 1 / 20), rel=0.15)


def test_one_large_silo_keeps_its_size():
    held = counts((900, 100), 50, "zipf")
    assert held.sum(axis=1).tolist() == [900, 100]


@pytest.mark.parametrize("kind", ["uniform", "zipf"])
def test_one_seed_gives_one_allocation_and_another_seed_another(kind):
    assert np.array_equal(counts(TCGA, 200, kind, 1, least=2), counts(TCGA, 200, kind, 1, least=2))
    assert not np.array_equal(counts(TCGA, 200, kind, 1, least=2), counts(TCGA, 200, kind, 2, least=2))


def test_records_of_a_user_are_not_neighbours_in_the_file():
    owner = allocate_given((1000,), 10, "zipf", Streams.from_seed(0))[0]
    assert (owner[1:] == owner[:-1]).mean() < 0.3


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kind": "ziph"}, "data.allocation: unknown allocation 'ziph'. Known here: uniform, zipf"),
        ({"kind": "non-iid"}, "data.allocation: 'non-iid' is not for data whose silos are given"),
        ({"kind": "as-is"}, "data.allocation: 'as-is' is not for data whose silos are given"),
        ({"users": 0}, "data.users: at least 1 user, not 0"),
        ({"users": 51}, "data.users: at most 50 users, so that each has a record, not 51"),
        ({"users": 30, "least": 2}, "data.users: at most 25 users, so that each has a lot of 2 records, not 30"),
        ({"sizes": (49, 1), "least": 2}, "a silo has 1 record(s), but each user in a silo needs 2"),
        ({"user_exponent": float("nan")}, "data.options.user_exponent: zero or a positive number, not nan"),
        ({"preferred_share": 1.5}, "data.options.preferred_share: a share from 0 to 1, not 1.5"),
    ],
)
def test_impossible_allocations_are_refused(changes, text):
    asked = {"sizes": (30, 20), "users": 10, "kind": "zipf", "streams": Streams.from_seed(0)} | changes
    with pytest.raises(ConfigError) as error:
        allocate_given(**asked)
    assert text in str(error.value)
