"""The noise of ``lattice`` as it arrives in the total, and how far one user moves it, against the ledger's event."""

import math

import numpy as np
import pytest
from tests.guarantees.adversary import OwnCoordinates, federation_of
from tests.protocol.test_lattice import inject_noise
from tests.support import build, drive, make_sessions

from uldp.aggregation.lattice_lookup import ERROR_BOUND, Roles, Weighting
from uldp.aggregation.lattice_ring import Scheme, cut
from uldp.aggregation.lattice_rows import row_products
from uldp.crypto import ring
from uldp.crypto.ring import LIMBS, N
from uldp.crypto.ring_samples import operator_norms
from uldp.privacy.events import Gaussian, flatten

COORDINATES = 20_000
PLACES = {
    "one silo": [[24, 2, 0], [0, 0, 2], [0, 1, 1]],
    "two silos": [[12, 2, 0], [12, 0, 2], [0, 1, 1]],
    "all silos, beyond the cap": [[900, 2, 0], [900, 0, 2], [900, 1, 1]],
}


def model_of(counts, dimension=2, **settings):
    """How far one round moves the model, in clips of the total."""
    method = build("uldp-avg-w", **{"rounds": 1, "clip": 0.7, "noise_multiplier": 1.5, **settings})
    federation = federation_of(counts)
    server, silos = make_sessions(method, federation, learner=OwnCoordinates(dimension), aggregation="lattice")
    drive(server, silos)
    return server, server.model * federation.users * len(federation.silos) / 0.7


@pytest.mark.parametrize("tolerance", [0, 1])
def test_the_noise_is_that_of_the_event(tolerance):
    server, moved = model_of(PLACES["one silo"], COORDINATES, dropout_tolerance=tolerance)
    (event,) = flatten(server.ledger.composition())
    assert isinstance(event, Gaussian)
    noise = moved[1:]
    deviation = 1.5 * math.sqrt(3 / (3 - tolerance))
    assert noise.std() == pytest.approx(deviation, rel=5 / math.sqrt(2 * COORDINATES))
    assert abs(noise.mean()) < 5 * deviation / math.sqrt(COORDINATES)
    assert event.noise_multiplier == pytest.approx(deviation, rel=1e-6) and event.noise_multiplier < deviation


@pytest.mark.parametrize("place", PLACES)
def test_one_user_moves_the_total_by_at_most_one_clip(monkeypatch, place):
    counts = np.array(PLACES[place])
    without = counts.copy()
    without[:, 0] = 0
    with monkeypatch.context() as patched:
        inject_noise(patched, scale=0.0)
        here, away = (model_of(each)[1] for each in (counts, without))
    shift = np.linalg.norm(here - away)
    assert 1 - 1e-6 < shift <= 1 + 2.0**-22


def largest_error(kind):
    """Errors at the edge of what is allowed: a constant, which adds to the weight, or all coefficients of one size."""
    if kind == "constant":
        return np.eye(1, N, dtype=np.int64)[0] * ERROR_BOUND
    signs = np.random.default_rng(5).choice([-1, 1], N)
    return signs * int(ERROR_BOUND / operator_norms(signs))


@pytest.mark.parametrize("dimension", [4, 4096, 5000])
@pytest.mark.parametrize("total", [1, 7, 2000])
@pytest.mark.parametrize("kind", ["constant", "random"])
def test_no_error_makes_a_user_weigh_more_than_one(dimension, total, kind):
    """All silos pull one way: what they add up to has at most the norm 2^76, in exact integers.

    The user is the third of those who share a ciphertext, where d leaves room for them.
    """
    error, generator = largest_error(kind), np.random.default_rng(dimension)
    assert 1000 < operator_norms(error) <= ERROR_BOUND * (1 + 2.0**-20)
    scheme = Scheme(Weighting(1000, 2), Roles(3, 2), None, dimension, 1)
    weights = np.array([[0], [0], [scheme.weighting.table()[total]]])
    plain = scheme.joined(ring.from_integers(weights))
    multipliers = ring.add(
        np.broadcast_to(plain, (len(plain), LIMBS, N)), ring.to_evaluations(ring.from_integers(error))
    )
    for row in (np.eye(1, dimension)[0], generator.standard_normal(dimension)):
        units = np.trunc(row / np.linalg.norm(row) * (1 - 1e-9) * 2**24).astype(np.int64)

        def weigh(users, rows, weighed, units=units):
            weighed[:] = total * units
            return 0

        products = row_products(scheme, np.stack([multipliers, multipliers], axis=1), None)
        products.add(np.array([2]), row[None], weigh)
        moved = ring.centred(cut(ring.to_coefficients(products.total()[:, 0]), dimension)).to_integers()
        squared = sum(value * value for value in moved)
        assert (0.999 if kind == "random" else 0.99999) * 2**152 < squared <= 2**152
