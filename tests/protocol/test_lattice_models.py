"""What a sequence of released totals tells those who know all rows: about the ciphertexts' errors and about weights.

Test 7 of the list in ``docs/decisions/0019``: an attack wins where there is next to no noise, and fails under ours.
"""

import math

import numpy as np
import pytest
from scipy import stats
from tests.protocol.lattice_knowledge import ServerKnowledge, SiloKnowledge

from uldp.aggregation.lattice import LatticeWeighting
from uldp.aggregation.lattice_ring import DITHER_BITS, Body, cut, decoded
from uldp.bench.parties import Parties, plan_of
from uldp.crypto import ring
from uldp.crypto.ring import N
from uldp.privacy.gaussian import gaussian_delta
from uldp.rng import Secrets

WEIGHT_BITS, UNITS = 52, 2**24


class Federation:
    """Two silos after their setup, and the server that opens their totals."""

    def __init__(self, counts, dimension, noise_multiplier, seed=1):
        secrets = Secrets.simulated_from_seed(seed)
        settings = {"weighting": "records", "clip": 1.0, "rounds": 50, "noise_multiplier": noise_multiplier}
        plan = plan_of(LatticeWeighting(), counts.shape[1], 2, dimension, secrets, **settings)
        self.parties = Parties(plan, counts, secrets)
        for kind in plan.setup:
            self.parties.exchange(kind)
        self.dimension = dimension
        self.server, self.silo = ServerKnowledge(self.parties.server), SiloKnowledge(self.parties.silos["silo-0"])

    def total(self, round_, rows, *, exact=False):
        """The total of a round as integers of 2^-24 clips; ``exact``: the whole phase in units of 2^-76 clips."""
        request, body = self.parties.update_request(round_), Body.zero(self.silo.side.scheme)
        for index, of_silo in enumerate(rows):
            users = np.flatnonzero(self.parties.counts[index])
            update = self.parties.release(index, request, [(users, of_silo[users])])
            body.add(Body.unpack(update.vector, self.silo.side.scheme, "here"))
        opened = ring.to_coefficients(ring.multiply(body.c1, self.server.secret))
        phase = ring.add(body.c0, cut(opened, self.dimension))
        return np.array(ring.centred(phase).to_integers(), dtype=object) if exact else decoded(phase, 2)

    def errors(self):
        """e_u (users, N)."""
        c0, c1 = np.moveaxis(self.silo.ciphertexts, 1, 0)
        phases = ring.to_coefficients(ring.add(c0, ring.multiply(c1, self.server.secret)))
        phases[:, :, :1] = ring.subtract(phases[:, :, :1], ring.add(self.server.blinded, self.silo.blinds))
        return np.array(ring.centred(phases).to_integers()).reshape(len(phases), -1).astype(int)


def right_signs(estimates, errors):
    known = errors != 0
    return int((np.sign(estimates[known].astype(float)) == np.sign(errors[known])).sum()), int(known.sum())


def test_errors_cannot_be_regressed_on_the_models(monkeypatch):
    """A user pulls coordinate 0 by a clip in every round: coefficient j of the total is n e_j X_0 and noise.

    Without noise, and before it is rounded, the total gives every e_j; they would show W_u and so N_u.
    """
    counts = np.array([[700], [800]])
    rows = np.zeros((2, 1, N))
    rows[:, 0, 0] = 1 - 1e-9
    found = Federation(counts, N, 0.0142)  # the least that is allowed
    errors = found.errors()[0]
    mean = np.mean([found.total(round_, rows)[1:] for round_ in range(1, 9)], axis=0)
    right, of = right_signs(mean, errors[1:])
    fewest, most = stats.binom.interval(0.95, of, 0.5)
    assert fewest <= right <= most
    no_noise = np.zeros((2, N), dtype=np.uint64)
    monkeypatch.setattr("uldp.aggregation.lattice_silo.noise", lambda *about: no_noise)
    phase = found.total(9, rows, exact=True)[1:]
    right, of = right_signs(phase, errors[1:])
    assert right > 0.99 * of  # but for the encryptions of zero, which are smaller than 1500 X_0


@pytest.mark.parametrize("rounds", [1, 4])
def test_weights_are_told_by_the_models_no_better_than_users_are(rounds):
    """Each of 400 users has a record in silo 0, which pulls a coordinate of their own, and half of them one in silo 1.

    Who knows all rows tells a weight of 1 from one of 1/2 by the total; the second record is one that a user may add.
    """
    sigma, users = 2.0, 400
    both = np.random.default_rng(0).random(users) < 0.5
    counts = np.array([np.ones(users, dtype=int), both.astype(int)])
    rows = np.stack([np.eye(users) * (1 - 1e-9), np.zeros((users, users))])

    def guessed(noise):
        found = Federation(counts, users, noise)
        mean = np.mean([found.total(round_, rows) for round_ in range(1, rounds + 1)], axis=0) / UNITS
        return mean < 0.75

    guess = guessed(sigma)
    advantage = guess[both].mean() - guess[~both].mean()
    assert advantage <= gaussian_delta(0.0, math.sqrt(rounds) / sigma) + 4 / math.sqrt(users)
    assert (guessed(0.02) == both).all()


def test_the_last_digits_of_a_total_are_not_released():
    """Models carry the total in whole units of 2^-24 clips: what is below, with errors in it, the server rounds off."""
    counts = np.array([[3], [4]])
    found = Federation(counts, 8, 1.0)
    rows = np.full((2, 1, 8), 0.3)
    exact, released = found.total(1, rows, exact=True), found.total(1, rows)
    off = np.array([int(a) - (int(b) << WEIGHT_BITS) for a, b in zip(exact, released, strict=True)], dtype=float)
    assert np.abs(off - 2 * 2.0 ** (DITHER_BITS - 1)).max() <= 2.0 ** (WEIGHT_BITS - 1) + 1
