"""The Paillier cryptosystem with g = n + 1.

P. Paillier, "Public-key cryptosystems based on composite degree residuosity classes", EUROCRYPT 1999.

With n = p q, a ciphertext of m with randomness r is (1 + n)^m r^n modulo n^2, and (1 + n)^m = 1 + m n. Products of
ciphertexts add plaintexts, powers scale them. Whoever holds the key gets the plaintext *and* the randomness
(:meth:`PrivateKey.nth_root`): a result that is derived from the key holder's own ciphertexts hides how it was derived
only after it has been multiplied by a fresh n-th residue (``uldp.crypto.randomisers``).

Running times depend on the numbers. The key must not be used where others can time single operations finely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from gmpy2 import gcd, invert, is_power, is_prime, mpz, powmod, primorial

from uldp.crypto.integers import coprime, uniform_below, uniform_units
from uldp.crypto.parallel import spread
from uldp.errors import ConfigError, MessageRefused, require
from uldp.rng import SecretStream

MIN_BITS: Final = 64
"""Keys below some 2048 bits protect nobody; they are for tests."""

_PRIME_ROUNDS: Final = 40
_TRIAL_LIMIT: Final = 1 << 16


def signed_residue(x: int, n: int) -> mpz:
    """The representative of x modulo n that is nearest to zero.

    >>> int(signed_residue(13, 15)), int(signed_residue(7, 15))
    (-2, 7)
    """
    residue = mpz(x) % n
    return residue - n if 2 * residue > n else residue


@dataclass(frozen=True)
class PublicKey:
    """The modulus n, and what everybody can do with it."""

    n: mpz

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", mpz(self.n))

    @classmethod
    def from_peer(cls, n: int, bits: int, location: str) -> PublicKey:
        """The key that another party sent, refused where it is visibly none.

        This finds mistakes and crude cheating: a prime, a power, a modulus that anybody can factor by trial. It cannot
        tell that n has exactly two prime factors.
        """
        n = mpz(n)
        if n < 1 or n.bit_length() != bits:
            raise MessageRefused(f"a modulus of {bits} bits was agreed, not of {n.bit_length()}", location=location)
        if gcd(n, primorial(min(_TRIAL_LIMIT, n - 1))) != 1:
            raise MessageRefused("the modulus has a small factor", location=location)
        if is_prime(n, _PRIME_ROUNDS):
            raise MessageRefused("the modulus is a prime", location=location)
        if is_power(n):
            raise MessageRefused("the modulus is a power", location=location)
        return cls(n)

    @cached_property
    def n2(self) -> mpz:
        """The modulus of ciphertexts."""
        return self.n * self.n

    @property
    def bits(self) -> int:
        return int(self.n.bit_length())

    @property
    def width(self) -> int:
        """Bytes of a ciphertext."""
        return (int(self.n2.bit_length()) + 7) // 8

    @property
    def plain_width(self) -> int:
        """Bytes of a plaintext."""
        return (self.bits + 7) // 8

    def factor(self, m: int) -> mpz:
        """(1 + n)^m: what adds m, of either sign, to the plaintext of a ciphertext."""
        return (m % self.n) * self.n + 1

    def residue(self, r: int) -> mpz:
        """r^n, an encryption of zero. The dearest operation of all: an exponent of the size of n."""
        return powmod(r, self.n, self.n2)

    def encrypt(self, m: int, r: int) -> mpz:
        """A ciphertext of m with randomness r, which must be a fresh unit modulo n."""
        return self.factor(m) * self.residue(r) % self.n2

    def add(self, a: int, b: int) -> mpz:
        """A ciphertext of the sum of two plaintexts."""
        return mpz(a) * b % self.n2

    def check(self, ciphertexts: Sequence[int], location: str) -> None:
        """Refuse another party's numbers unless all of them are units modulo n^2."""
        for position, c in enumerate(ciphertexts):
            if not 0 < c < self.n2:
                raise MessageRefused(f"ciphertext {position} is out of range", location=location)
        if not coprime(ciphertexts, self.n):
            raise MessageRefused("a ciphertext has a factor in common with the modulus", location=location)


@dataclass(frozen=True, repr=False)
class PrivateKey:
    """The factors of n: decryption, roots, and encryption at a quarter of the public price."""

    p: mpz
    q: mpz

    def __post_init__(self) -> None:
        for name in ("p", "q"):
            object.__setattr__(self, name, mpz(getattr(self, name)))
            if not is_prime(getattr(self, name), _PRIME_ROUNDS):
                raise ConfigError(f"{name} is not a prime", location="crypto.paillier")
        if self.p == self.q or gcd(self.p * self.q, (self.p - 1) * (self.q - 1)) != 1:
            raise ConfigError("p and q do not make a Paillier key", location="crypto.paillier")

    @classmethod
    def generate(cls, bits: int, stream: SecretStream) -> PrivateKey:
        """A key whose n has exactly ``bits`` bits; the primes are uniform among those with the two top bits set."""
        wanted = f"an even number of bits, at least {MIN_BITS}"
        require(bits % 2 == 0 and bits >= MIN_BITS, "crypto.key_bits", bits, wanted)
        p = _prime(bits // 2, stream)
        q = _prime(bits // 2, stream)
        while abs(p - q).bit_length() <= max(0, bits // 2 - 100):  # FIPS 186-5, A.1.3: else n is easy to factor
            q = _prime(bits // 2, stream)
        return cls(p, q)

    def __repr__(self) -> str:
        return f"PrivateKey(bits={self.public.bits})"

    @cached_property
    def public(self) -> PublicKey:
        return PublicKey(self.p * self.q)

    @cached_property
    def _halves(self) -> tuple[_Half, _Half]:
        return _Half.of(self.p, self.q), _Half.of(self.q, self.p)

    def encrypt(self, m: int, r: int) -> mpz:
        """The same ciphertext as ``public.encrypt(m, r)``."""
        p, q = self._halves
        # r^n = (r^q)^p, and a p-th power modulo p^2 depends on its base modulo p only.
        return self._blind(m, powmod(r, p.other_exponent, p.prime), powmod(r, q.other_exponent, q.prime))

    def decrypt(self, c: int) -> mpz:
        """The plaintext, in [0, n)."""
        p, q = self._halves
        return _join(p.logarithm(c), q.logarithm(c), p.prime, q.prime, p.from_other)

    def nth_root(self, c: int) -> mpz:
        """The randomness with which c was encrypted: what the key holder learns besides the plaintext."""
        n = self.public.n
        return powmod(c, invert(n, (self.p - 1) * (self.q - 1)), n)

    def encrypt_all(self, ms: Sequence[int], stream: SecretStream, workers: int) -> list[mpz]:
        """A fresh ciphertext of each plaintext.

        For r uniform, r^q modulo p and r^p modulo q are uniform and independent, since the exponents are coprime to
        the orders. They are drawn directly, as the parts of one unit modulo n; the distribution is that of ``encrypt``.
        """
        units, width = uniform_units(stream, self.public.n, len(ms)), self.public.width
        return spread(lambda part: [self._blind(ms[i], units[i], units[i]) for i in part], len(ms), workers, width)

    def decrypt_all(self, cs: Sequence[int], workers: int) -> list[mpz]:
        """The plaintext of each ciphertext."""
        return spread(lambda part: [self.decrypt(cs[i]) for i in part], len(cs), workers, self.public.plain_width)

    def _blind(self, m: int, y_p: int, y_q: int) -> mpz:
        """(1 + m n) times the n-th residue that is y_p^p modulo p^2 and y_q^q modulo q^2."""
        p, q = self._halves
        residue = _join(p.lift(y_p), q.lift(y_q), p.square, q.square, p.square_from_other)
        return self.public.factor(m) * residue % self.public.n2


@dataclass(frozen=True, repr=False)
class _Half:
    """Arithmetic modulo the square of one of the two primes."""

    prime: mpz
    square: mpz
    other_exponent: mpz
    """The other prime modulo prime - 1."""
    scale: mpz
    """1 / L(g^(prime - 1)) modulo prime, with L(x) = (x - 1) / prime."""
    from_other: mpz
    """The inverse of the other prime modulo this one."""
    square_from_other: mpz
    """The inverse of the other square modulo this one."""

    @classmethod
    def of(cls, prime: mpz, other: mpz) -> _Half:
        square = prime * prime
        # g^(prime - 1) = 1 + (prime - 1) n = 1 - n modulo the square, so L of it is -other.
        scale = invert(-other, prime)
        return cls(prime, square, other % (prime - 1), scale, invert(other, prime), invert(other * other, square))

    def lift(self, y: int) -> mpz:
        return powmod(mpz(y) % self.prime, self.prime, self.square)

    def logarithm(self, c: int) -> mpz:
        """The plaintext modulo the prime."""
        return (powmod(mpz(c) % self.square, self.prime - 1, self.square) - 1) // self.prime * self.scale % self.prime


def _join(a: mpz, b: mpz, modulus: mpz, other: mpz, inverse: mpz) -> mpz:
    """The number that is a modulo ``modulus`` and b modulo ``other``; ``inverse`` is 1 / other modulo ``modulus``."""
    return b + (a - b) * inverse % modulus * other


def _prime(bits: int, stream: SecretStream) -> mpz:
    """A prime of ``bits`` bits that has its two top bits set: the product of two such has exactly 2 * bits bits.

    By rejection, candidate by candidate: the next prime after a random number would favour primes after long gaps.
    """
    top = mpz(3) << (bits - 2)
    while True:
        candidate = top + uniform_below(stream, 1 << (bits - 2), 1)[0]
        if candidate.is_odd() and is_prime(candidate, _PRIME_ROUNDS):
            return candidate
