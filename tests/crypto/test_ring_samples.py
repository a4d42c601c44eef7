"""Random polynomials: uniform, ternary, Gaussian; the operator norm; test vectors."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from scipy import stats

from uldp.crypto import ring_samples
from uldp.crypto.ring import PRIMES, N
from uldp.crypto.ring_samples import (
    MAX_ERROR,
    MAX_OPERATOR_NORM,
    bounded_errors,
    errors,
    operator_norms,
    public_polynomial,
    ternary,
    uniform_residues,
)
from uldp.rng import SecretStream

#: A right sampler fails a chi-square test below with this probability, for a random key; the keys are fixed.
LEVEL = 1e-6


def stream(letter=b"k"):
    return SecretStream(letter * 32, simulated=True)


class Words:
    """A stream of given words, and then of ChaCha20's."""

    def __init__(self, *words):
        self.given, self.more = list(words), stream()

    def words(self, count):
        found, self.given = self.given[:count], self.given[count:]
        return np.array([*found, *self.more.words(count - len(found))], dtype=np.uint64)


def passes(observed, probabilities):
    """Pearson's chi-square; cells that expect fewer than ten are one."""
    expected = np.asarray(probabilities) * observed.sum()
    rare = expected < 10
    seen, due = [*observed[~rare]], [*expected[~rare]]
    if rare.any():
        seen, due = [*seen, observed[rare].sum()], [*due, expected[rare].sum()]
    return stats.chisquare(seen, due).pvalue > LEVEL


def test_uniform_residues_are_uniform_below_their_primes():
    residues = uniform_residues(stream(), (8, 2, N))
    for limb, p in enumerate(PRIMES):
        assert (residues[:, limb] < p).all()
        cells = np.floor(residues[:, limb] / (p / 256)).astype(int).ravel()
        assert passes(np.bincount(cells, minlength=256), np.full(256, 1 / 256))
        low = (residues[:, limb].ravel() & np.uint64(255)).astype(int)
        assert passes(np.bincount(low, minlength=256), np.full(256, 1 / 256))


def test_candidates_from_a_prime_up_are_drawn_anew():
    p1, p2 = PRIMES
    found = uniform_residues(Words(p1, p1 - 1, p2, 2**64 - 1, 7, p2 - 1), (2, 2))
    assert found.tolist()[0][1] == p1 - 1 and 7 in found.ravel() and (found < np.array([[p1], [p2]])).all()


def test_words_of_a_mask():
    """Test vector: both silos of a pair must come to these, whatever their versions of numpy."""
    digest = hashlib.sha256(uniform_residues(stream(), (3, 2, N)).astype("<u8").tobytes()).hexdigest()
    assert digest == "6475ece22b6461273910abae1591e41063518895a3aa7730cdfed4ca8963accb"


def test_public_polynomials():
    """Test vector of the hash that all parties share."""
    polynomial = public_polynomial(b"digest", "ct", 1, 2)
    assert (polynomial < np.array(PRIMES, dtype=np.uint64)[:, None]).all()
    digest = hashlib.sha256(polynomial.astype("<u8").tobytes()).hexdigest()
    assert digest == "b0bd45063f9e424de97f5609c0665ade71512c85bc4e56f934e2bd841749ea53"
    assert (polynomial != public_polynomial(b"digest", "ct", 12)).any()
    first = int.from_bytes(hashlib.shake_128(b"uldp.ring" + ring_samples.path_bytes((1,))).digest(6), "little")
    assert int(public_polynomial(1)[0, 0]) == first


def test_public_polynomials_are_uniform():
    cells = np.concatenate([public_polynomial(k).ravel() for k in range(8)]) >> np.uint64(40)
    assert passes(np.bincount(cells.astype(int), minlength=256), np.full(256, 1 / 256))


def test_ternary_numbers():
    found = ternary(stream(), (40, N))
    assert found.shape == (40, N) and passes(np.bincount(found.ravel() + 1, minlength=3), np.full(3, 1 / 3))
    pairs = (found[:, ::2] + 1) * 3 + found[:, 1::2] + 1
    assert passes(np.bincount(pairs.ravel(), minlength=9), np.full(9, 1 / 9))
    assert ternary(stream(), (0,)).shape == (0,)


def test_errors_follow_the_discrete_gaussian():
    found = errors(stream(), (64, N))
    weights = [math.exp(-(k**2) / (2 * 3.2**2)) for k in range(-MAX_ERROR, MAX_ERROR + 1)]
    observed = np.bincount(found.ravel() + MAX_ERROR, minlength=2 * MAX_ERROR + 1)
    assert passes(observed, np.array(weights) / sum(weights))


def test_a_word_on_a_quantile_is_decided_by_the_next():
    high, low = ring_samples._quantiles()
    middle = MAX_ERROR  # the quantile below the error 0
    assert errors(Words(int(high[middle]), int(low[middle])), (1,)).tolist() == [0]
    assert errors(Words(int(high[middle]), int(low[middle]) - 1), (1,)).tolist() == [-1]
    assert errors(Words(int(high[middle]) - 1), (1,)).tolist() == [-1]
    assert errors(Words(0, 0), (1,)).tolist() == [-MAX_ERROR]
    assert errors(Words(2**64 - 1, 2**64 - 1), (1,)).item() > 25


@pytest.mark.parametrize("n", [4, 16, 64])
def test_operator_norm_is_that_of_the_matrix(n):
    generator = np.random.default_rng(n)
    for polynomial in [*generator.integers(-20, 21, size=(20, n)), np.ones(n, dtype=np.int64)]:
        # x^shift e(x) modulo x^n + 1
        columns = [np.concatenate([-polynomial[n - shift :], polynomial[: n - shift]]) for shift in range(n)]
        largest = np.linalg.norm(np.array(columns, dtype=np.float64), 2)
        found = operator_norms(polynomial)
        assert largest <= found <= largest * (1 + 1e-6)


def test_errors_beyond_the_bound_are_drawn_anew(monkeypatch):
    drawn = []

    def first_too_large(source, shape):
        found = errors(source, shape)
        if not drawn:
            found[1] = 1  # sum over N of 1: the operator norm is about 2 N / pi
        drawn.append(shape)
        return found

    monkeypatch.setattr(ring_samples, "errors", first_too_large)
    found = bounded_errors(stream(), 3)
    assert drawn == [(3, N), (1, N)]
    assert (operator_norms(found) <= MAX_OPERATOR_NORM).all() and (found[1] != 1).any()
