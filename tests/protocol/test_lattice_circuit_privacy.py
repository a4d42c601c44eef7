"""What the server could make of a silo's sum under its own key: attacks that win on weakened silos, and fail on ours.

The server holds the secret s and the errors e_u, and here it even sees a silo's sum without the masks of pairs. It
knows everything but one bit: which of two rows user 0 has. An attack *wins* if it is right in every trial, and *fails*
if the number of right guesses among ``TRIALS`` is within the 99.99 % interval of coin flips. Keys and rows are fixed:
the tests are deterministic.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from scipy import stats
from tests.protocol.lattice_knowledge import ServerKnowledge, SiloKnowledge

from uldp.aggregation import lattice_silo
from uldp.aggregation.base import RoundRequest
from uldp.aggregation.lattice import LatticeWeighting
from uldp.aggregation.lattice_ring import DITHER_BITS, Body, cut, noise, public_components, public_element
from uldp.bench.parties import Parties, plan_of
from uldp.crypto import ring
from uldp.crypto.ring import LIMBS, PRIMES, N
from uldp.crypto.ring_products import ProductSum
from uldp.rng import Secrets

TRIALS = 100
#: Attacks that win are always right; guesses that know nothing lie outside of this in one of ten thousand tests.
FEWEST, MOST = stats.binom.interval(0.9999, TRIALS, 0.5)
#: A right sampler fails a chi-square test with this probability, for a random key.
LEVEL = 1e-6


class Attacked:
    """A server that wants more, and the silo it attacks: the first of two."""

    def __init__(self, dimension, users=3):
        secrets = Secrets.simulated_from_seed(dimension)
        generator = np.random.default_rng(dimension)
        aggregation = LatticeWeighting()
        plan = plan_of(
            aggregation, users, 2, dimension, secrets, weighting="records", clip=1.0, rounds=5, noise_multiplier=5.0
        )
        self.counts = generator.integers(1, 11, (2, users))
        parties = Parties(plan, self.counts, secrets)
        for kind in plan.setup:
            parties.exchange(kind)
        self.silo, self.secrets, self.users, self.dimension = parties.silos["silo-0"], secrets, users, dimension
        self.scheme, self.units = self.silo.scheme, plan.release.encoding.integer_limit
        # What the server knows.
        server = ServerKnowledge(parties.server)
        self.s, self.a = server.secret, public_element(server.setup)
        self.c1 = public_components(server.setup, 0, server.weights[:32], range(self.scheme.ciphertexts))
        self.known = self.rows(generator)
        self.other = self.known.copy()
        self.other[0] = self.rows(generator)[0]
        self._parts = {}

    def rows(self, generator):
        """Rows at the clip."""
        rows = generator.standard_normal((self.users, self.dimension))
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def integers(self, rows):
        """X_su = n_su x_su."""
        encoded = np.empty(rows.shape, dtype=np.int64)
        assert self.silo.weigh(np.arange(self.users), rows * (1 - 1e-9), encoded) == 0
        return encoded

    def body(self, rows, number, bound=None):
        """The silo's sum of a round: noise and encryptions of zero in it, no masks."""

        def bound_secrets(purpose, further):
            return self.secrets.child("trial", number, purpose, *further)

        request = RoundRequest(1, hashlib.sha256(b"request").hexdigest(), b"")
        accumulator = self.silo.accumulator(None, request)
        accumulator.add(np.arange(self.users), rows * (1 - 1e-9))
        update = accumulator.release(bound or bound_secrets)
        return Body.unpack(update.noised_sum, self.scheme, "here")

    def polynomials(self, rows):
        """X_su of each ciphertext: rows of users who share one stand behind one another."""
        together = self.scheme.together
        found = np.zeros((self.scheme.ciphertexts * together, self.dimension), dtype=np.int64)
        found[: self.users] = self.integers(rows)
        return found.reshape(self.scheme.ciphertexts, together * self.dimension)

    def data_part(self, rows):
        """sum_u c1_u X_su, which the server can compute for rows that it guesses: (blocks, 2, N), evaluations."""
        if id(rows) not in self._parts:
            self._parts[id(rows)] = rows, self.products(rows, self.c1)
        return self._parts[id(rows)][1]

    def products(self, rows, polynomials):
        """sum_u X_su times a polynomial of each ciphertext."""
        values = self.polynomials(rows)
        products = ProductSum(values.shape[1])
        products.add(values, np.stack([polynomials, polynomials], axis=1))
        return products.total()[:, 0]

    def multipliers(self):
        """Weights and errors of the silo's ciphertexts, (ciphertexts, 2, N) evaluations."""
        c0, c1 = np.moveaxis(SiloKnowledge(self.silo).ciphertexts, 1, 0)
        return ring.add(c0, ring.multiply(c1, self.s))

    def errors(self):
        """e of the silo's ciphertexts (ciphertexts, N): the server drew them."""
        table = self.scheme.weighting.table()[self.counts.sum(axis=0)]
        weights = self.scheme.joined(ring.from_integers(table[:, None]))
        return whole(ring.subtract(self.multipliers(), weights)).astype(np.int64)

    def phase(self, body, coefficients=None):
        """c0 + c1 s of the d coefficients, or of more of c0 (blocks, 2, N), as integers."""
        opened = ring.to_coefficients(ring.multiply(body.c1, self.s))
        if coefficients is None:
            return ring.centred(ring.add(body.c0, cut(opened, self.dimension)))
        return ring.centred(ring.add(coefficients, opened))

    def guesses(self, score, bodies_of):
        """How often the guess with the lower score is right; ``bodies_of(rows, number)`` is what the silo sends."""
        bits, right = np.random.default_rng(7).integers(0, 2, TRIALS), 0
        for number, bit in enumerate(bits):
            bodies = bodies_of((self.known, self.other)[bit], number)
            scores = [score(bodies, guess) for guess in (self.known, self.other)]
            right += int(np.argmin(scores)) == bit
        return right


def whole(polynomials):
    """Evaluations as the integers of least magnitude, (n, N)."""
    return np.array(ring.centred(ring.to_coefficients(polynomials)).to_integers(), dtype=object).reshape(-1, N)


def assert_fails(right):
    assert FEWEST <= right <= MOST, f"{right} of {TRIALS} guesses are right"


def size(polynomials):
    """The largest coefficient of evaluations, as a number in [0, 96] of bits."""
    wide = ring.centred(ring.to_coefficients(polynomials))
    return float(np.log2(1 + np.abs(wide.to_floats()).max()))


def inverse(a):
    """1 / a, evaluations."""
    rows = [[pow(int(value), -1, p) for value in row] for row, p in zip(a, PRIMES, strict=True)]
    return np.array(rows, dtype=np.uint64)


def parts_of(body):
    return body.c0, body.c1


def zeros(stream, shape):
    return np.zeros(shape, dtype=np.int64)


@pytest.fixture(scope="module", params=[14, 2100], ids=["users share a ciphertext", "everybody has one"])
def attacked(request):
    return Attacked(request.param)


@pytest.fixture(scope="module")
def two_blocks():
    return Attacked(2 * N)


# --- 1: c1 --------------------------------------------------------------------------------------------------------


def test_division_by_a_users_ciphertext_gives_nothing(monkeypatch):
    """One user: without encryptions of zero c1 = c1_u X, and the server divides."""
    one = Attacked(107, users=1)
    expected = one.integers(one.known)[0]

    def divided(body):
        found = ring.centred(ring.to_coefficients(ring.multiply(body.c1[0], inverse(one.c1[0]))))
        return found.to_floats()

    ours = divided(one.body(one.known, 0))
    with monkeypatch.context() as weakened:
        weakened.setattr(lattice_silo, "ternary", zeros)
        weakened.setattr(lattice_silo, "errors", zeros)
        plain = divided(one.body(one.known, 0))
    np.testing.assert_array_equal(plain[:107], expected)
    assert not plain[107:].any()
    # Ours is spread over all of Z_q, whatever the row: a sixteenth of q in each cell.
    cells = np.floor((ours / float(ring.MODULUS) + 0.5) * 16).astype(int)
    assert stats.chisquare(np.bincount(cells, minlength=16)).pvalue > LEVEL
    assert abs(np.corrcoef(ours[:107], expected)[0, 1]) < 0.5  # 5 standard deviations of a chance correlation


@pytest.mark.parametrize("left_out", ["v, f0 and f1", "f0 and f1"])
def test_a_guess_cannot_be_verified(attacked, monkeypatch, left_out):
    """The rest c1 - sum_u c1_u X_u is zero for the right guess without encryptions of zero, and a ternary multiple of a
    without f1; with v and f1 it looks random for either guess."""

    over_a = inverse(attacked.a)

    def rest(body, guess):
        return ring.subtract(body.c1, attacked.data_part(guess))

    def small(body, guess):
        return size(rest(body, guess))

    def multiple(body, guess):
        return size(ring.multiply(rest(body, guess), over_a))

    score = small if "v" in left_out else multiple
    assert_fails(attacked.guesses(score, attacked.body))
    monkeypatch.setattr(lattice_silo, "errors", zeros)
    if "v" in left_out:
        monkeypatch.setattr(lattice_silo, "ternary", zeros)
    assert attacked.guesses(score, attacked.body) == TRIALS


def test_blocks_do_not_share_an_encryption_of_zero(two_blocks, monkeypatch):
    """With one v for two blocks, their difference has no a v left."""

    def score(body, guess):
        difference = ring.subtract(body.c1, two_blocks.data_part(guess))
        return size(ring.subtract(difference[0], difference[1]))

    assert_fails(two_blocks.guesses(score, two_blocks.body))
    drawn = lattice_silo.ternary

    def same_for_all_blocks(stream, shape):
        return np.broadcast_to(drawn(stream, shape)[:1], shape).copy()

    monkeypatch.setattr(lattice_silo, "ternary", same_for_all_blocks)
    assert two_blocks.guesses(score, two_blocks.body) == TRIALS


def test_rounds_do_not_share_an_encryption_of_zero(attacked):
    """With the same one in two rounds, the difference of c1 is that of the rows, without any noise.

    Ours is bound to the sum that it covers too: even the same round, with other rows, takes another one.
    """
    first = attacked.rows(np.random.default_rng(3))

    def score(bodies, guess):
        expected = ring.subtract(attacked.data_part(guess), attacked.data_part(first))
        return size(ring.subtract(ring.subtract(bodies[1].c1, bodies[0].c1), expected))

    def ours(rows, number):
        return attacked.body(first, number), attacked.body(rows, number)

    def reused(rows, number):
        def bound(purpose, further):
            return attacked.secrets.child("reused", number, purpose)

        return attacked.body(first, number, bound), attacked.body(rows, number, bound)

    assert_fails(attacked.guesses(score, ours))
    assert attacked.guesses(score, reused) == TRIALS


# --- 5: masks ---------------------------------------------------------------------------------------------------------


def test_masks_of_one_request_never_cover_two_bodies(attacked):
    """Of two messages under the same masks and noise the difference is that of the rows alone, in one silo.

    Ours are bound to the request: of another one for the round, which a silo refuses, the masks would be others.
    """
    first = attacked.rows(np.random.default_rng(3))
    multipliers = attacked.multipliers()

    def message(rows, number, request, bound=None):
        body = attacked.body(rows, number, bound)
        sent = attacked.silo.protected(body, RoundRequest(1, request, b""))
        return Body.unpack(sent, attacked.scheme, "here")

    def score(messages, guess):
        """The largest coefficient that is left of the difference of two messages, decrypted, without the guess."""
        between = Body(*(ring.subtract(*parts) for parts in zip(*map(parts_of, messages[::-1]), strict=True)))
        expected = ring.subtract(attacked.products(guess, multipliers), attacked.products(first, multipliers))
        between.c0 = ring.subtract(between.c0, cut(ring.to_coefficients(expected), attacked.dimension))
        return np.abs(attacked.phase(between).to_floats()).max()

    def ours(rows, number):
        return message(first, number, "one"), message(rows, number, "another")

    def reused(rows, number):
        def bound(purpose, further):  # the same noise and the same zero, as of the same release
            return attacked.secrets.child("reused", number, purpose)

        return message(first, number, "one", bound), message(rows, number, "one", bound)

    assert_fails(attacked.guesses(score, ours))
    assert attacked.guesses(score, reused) == TRIALS


# --- 2: coefficients without a parameter --------------------------------------------------------------------------


def leaking(attacked, rows, number, monkeypatch):
    """A silo that sends c0 of whole blocks: (body, c0 as it is before it is cut)."""
    whole = []

    def keep(coefficients, dimension):
        whole.append(coefficients)
        return cut(coefficients, dimension)

    with monkeypatch.context() as weakened:
        weakened.setattr(lattice_silo, "cut", keep)
        body = attacked.body(rows, number)
    return body, whole[0]


def multiplication(error, count, first):
    """The matrix of ``count`` coefficients to the coefficients of e X from ``first`` on, modulo x^N + 1."""
    both = np.concatenate([-error, error])
    return np.array([both[N - k + first : 2 * N - k] for k in range(count)]).T.astype(np.float64)


@pytest.mark.parametrize("dimension", [14, 107, 4097])
def test_least_squares_on_padding_would_give_every_row(dimension, monkeypatch):
    """e_u X_u is spread over all N coefficients; on those without a parameter there is no noise to cover it.

    Where users share a ciphertext, weights times rows of others are there too, also without noise.
    """
    attacked = Attacked(dimension)
    last, together = dimension % N, min(attacked.users, attacked.scheme.together)
    body, coefficients = leaking(attacked, attacked.known, 0, monkeypatch)
    padding = attacked.phase(body, coefficients).to_floats()[-1, last:]
    multipliers = whole(attacked.multipliers()) if together > 1 else attacked.errors()
    matrix = np.concatenate([multiplication(each, last * together, last) for each in multipliers], axis=1)
    scale = np.abs(matrix).max()
    found = np.linalg.lstsq(matrix / scale, padding / scale)[0].reshape(attacked.users, last)
    expected = attacked.integers(attacked.known)[:, -last:]
    assert np.abs(found - expected).max() < 2e-3 * attacked.units
    # Ours: there is no such coefficient in any message, and no multiple of a lane's or a block's length of them.
    assert body.c0.shape == (LIMBS, dimension)
    message = attacked.silo.protected(body, RoundRequest(1, "digest", b""))
    assert len(message) == 12 * (dimension + attacked.scheme.blocks * N)


def test_one_coefficient_of_padding_would_be_enough_for_a_guess(monkeypatch):
    attacked = Attacked(4095)
    errors = attacked.errors()

    def score(found, guess):
        body, whole = found
        rest = attacked.phase(body, whole).to_floats()[0, 4095]
        rows = attacked.integers(guess)
        return abs(rest - sum(float(error[1:] @ row[::-1]) for error, row in zip(errors, rows, strict=True)))

    def bodies(rows, number):
        return leaking(attacked, rows, number, monkeypatch)

    assert attacked.guesses(score, bodies) == TRIALS
    assert attacked.body(attacked.known, 0).c0.shape == (LIMBS, 4095)


def test_c1_beyond_the_parameters_is_uniform(attacked):
    """c1 leaves in whole blocks. Of few parameters and users all of it is covered by a v + f1."""
    found = np.concatenate([attacked.body(attacked.known, number).c1.ravel() for number in range(8)])
    for bits in (found >> np.uint64(40), found & np.uint64(255)):
        assert stats.chisquare(np.bincount(bits.astype(int), minlength=256)).pvalue > LEVEL


# --- 3: the last bits ---------------------------------------------------------------------------------------------


def low_bits(attacked, body):
    return attacked.phase(body).low & (2**DITHER_BITS - 1)


def without_dither(scale, count, gaussian, dither):
    class Zeros:
        def words(self, count):
            return np.zeros(count, dtype=np.uint64)

    return noise(scale, count, gaussian, Zeros())


def test_noise_reaches_the_last_bit(attacked, monkeypatch):
    """Noise in multiples of 2^k alone would show the sum modulo 2^k: the right guess leaves next to nothing."""
    multipliers = attacked.multipliers()
    sums = {}

    def score(body, guess):
        if id(guess) not in sums:
            sums[id(guess)] = cut(ring.to_coefficients(attacked.products(guess, multipliers)), attacked.dimension)
        expected = ring.centred(sums[id(guess)]).low
        rest = (low_bits(attacked, body) - expected) % 2**DITHER_BITS
        return np.minimum(rest, 2**DITHER_BITS - rest).max()

    assert_fails(attacked.guesses(score, attacked.body))
    monkeypatch.setattr(lattice_silo, "noise", without_dither)
    assert attacked.guesses(score, attacked.body) == TRIALS


@pytest.mark.parametrize("data", ["zero", "all in one coordinate", "the clip in every row"])
def test_the_last_bits_are_uniform_whatever_the_rows(data):
    attacked = Attacked(5000, users=2)
    rows = np.zeros((2, 5000))
    if data == "all in one coordinate":
        rows[:, 0] = 1.0
    elif data == "the clip in every row":
        rows[:] = 1 / np.sqrt(5000)
    found = np.concatenate([low_bits(attacked, attacked.body(rows, number)) for number in range(4)])
    for cells in (found >> (DITHER_BITS - 8), found & 255):
        assert stats.chisquare(np.bincount(cells, minlength=256)).pvalue > LEVEL
