"""Protocol 1 of ULDP-FL as published: a model to attack. Beside it, what the attacks and the other tests here share.

Faithful in what matters to an attack: weights n_su / N_u, C_LCM = lcm(1 .. N_max), noise Encode(z) C_LCM, masks added
to plaintexts, no re-randomisation, no dither. The slips of the text are repaired (``docs/errata.md``, U17): the encoded
delta is clipped and not yet weighted, masks are added for s < s' and subtracted for s > s'. The key agreement is left
out: two silos that would agree on a key are given one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from gmpy2 import f_mod, invert, legendre, mpz, powmod

from uldp.crypto.integers import uniform_below, uniform_units
from uldp.crypto.paillier import PrivateKey, PublicKey, signed_residue
from uldp.data.federation import Federation, Records, SiloData, Task
from uldp.rng import Secrets
from uldp.vectors import FixedPoint, clip_rows

UNITS = FixedPoint(limit=1.0).integer_limit
"""One over the precision P, for a clip of 1."""


class PublishedSilo:
    """Silo s of Protocol 1. ``common`` is the seed R that all silos share."""

    def __init__(self, index: int, counts: np.ndarray, n_max: int, public: PublicKey, common: Secrets) -> None:
        self._index = index
        self._counts = counts[index].tolist()
        self._silos = len(counts)
        self._multiple = math.lcm(*range(1, n_max + 1))
        self._public = public
        self._common = common
        self._blinds = uniform_units(common.child("blinds").stream(), public.n, len(self._counts))

    def blinded_counts(self) -> list[mpz]:
        """Step 1(e): B(n_su) = r_u n_su with masks that cancel over the silos."""
        return self._masked([r * count for r, count in zip(self._blinds, self._counts, strict=True)], "counts")

    def update(self, weights: list[mpz], rows: list[list[int]], noise: list[int]) -> list[mpz]:
        """Steps 2(b) and 2(c), from Enc(B_inv(N_u)), the encoded rows of all users, and the encoded noise."""
        public = self._public
        masks = self._masked([mpz(0)] * len(noise), "round")
        result = []
        for j, (z, mask) in enumerate(zip(noise, masks, strict=True)):
            product = public.factor(z * self._multiple)
            for weight, row, count, r in zip(weights, rows, self._counts, self._blinds, strict=True):
                exponent = f_mod(row[j] * count * r * self._multiple, public.n)
                product = public.add(product, powmod(weight, exponent, public.n2))
            result.append(public.add(product, public.factor(mask)))
        return result

    def _masked(self, values: list[mpz], purpose: str) -> list[mpz]:
        n = self._public.n
        for other in range(self._silos):
            if other != self._index:
                pair = self._common.child("pair", min(self._index, other), max(self._index, other), purpose)
                masks = uniform_below(pair.stream(), n, len(values))
                sign = 1 if self._index < other else -1
                values = [value + sign * mask for value, mask in zip(values, masks, strict=True)]
        return [f_mod(value, n) for value in values]


def published_round(
    counts: np.ndarray, rows: np.ndarray, noise: np.ndarray, n_max: int, secrets: Secrets
) -> ServerView:
    """What the server holds after one round. ``rows``: silo, user, coordinate, encoded; ``noise``: silo, coordinate."""
    key = PrivateKey.generate(256, secrets.child("server").stream())
    common = secrets.child("silos")
    silos = [PublishedSilo(index, counts, n_max, key.public, common) for index in range(len(counts))]
    blinded = [f_mod(sum(parts), key.public.n) for parts in zip(*(s.blinded_counts() for s in silos), strict=True)]
    randomness = uniform_units(secrets.child("rho").stream(), key.public.n, len(blinded))
    inverses = [invert(value, key.public.n) for value in blinded]  # step 1(f)
    weights = [key.encrypt(inverse, rho) for inverse, rho in zip(inverses, randomness, strict=True)]  # step 2(a)
    received = [silo.update(weights, rows[s].tolist(), noise[s].tolist()) for s, silo in enumerate(silos)]
    return ServerView(key, math.lcm(*range(1, n_max + 1)), randomness, blinded, received, whole_exponents=True)


@dataclass(frozen=True)
class ServerView:
    """What a server holds, of this protocol or of ours: its key, the randomness it chose, and what came."""

    key: PrivateKey
    multiple: int
    """C_LCM."""
    randomness: list[mpz]
    """rho_u of the encrypted inverses."""
    blinded: list[mpz]
    """r_u times the denominator of user u's weights, modulo n."""
    received: list[list[mpz]]
    """Silo, coordinate: ciphertexts."""
    whole_exponents: bool
    """Whether silos reduce the exponent of a user's weight modulo n with the row in it; else the row stays signed."""
    slots: int = 1
    """Coordinates in a ciphertext."""
    width: int = 0
    """Bits of a slot."""

    @cached_property
    def product(self) -> list[mpz]:
        """The product over silos, in which all masks cancel."""
        n2 = self.key.public.n2
        return [math.prod(column) % n2 for column in zip(*self.received, strict=True)]

    def plaintexts(self, ciphertexts: list[mpz]) -> list[mpz]:
        return [signed_residue(self.key.decrypt(c), self.key.public.n) for c in ciphertexts]

    def totals(self, dimension: int) -> list[mpz]:
        """C_LCM times the noised total, coordinate by coordinate."""
        return unpacked(self.plaintexts(self.product), self.slots, self.width)[:dimension]


@dataclass(frozen=True)
class Guess:
    """What a server takes to be true: all weights, as ratios, and all rows in units."""

    numerators: np.ndarray
    """Silo, user."""
    denominators: np.ndarray
    """User."""
    rows: np.ndarray
    """Silo, user, coordinate."""

    def plaintexts(self, multiple: int) -> list[int]:
        """The total times C_LCM, without noise."""
        silos, users, dimension = self.rows.shape
        share = [multiple // int(denominator) for denominator in self.denominators]
        return [
            sum(
                int(self.rows[s, u, j]) * int(self.numerators[s, u]) * share[u]
                for s in range(silos)
                for u in range(users)
            )
            for j in range(dimension)
        ]

    def roots(self, view: ServerView, silo: int) -> list[mpz]:
        """prod_u rho_u^(exponent): the randomness of this silo's ciphertexts, where nobody re-randomises."""
        n, result = view.key.public.n, [mpz(1)] * self.rows.shape[2]
        for u, (rho, blinded) in enumerate(zip(view.randomness, view.blinded, strict=True)):
            r = blinded * invert(int(self.denominators[u]), n)
            once = f_mod(r * int(self.numerators[silo, u]) * view.multiple, n)
            exponents = [once * row for row in self.rows[silo, u].tolist()]
            exponents = [f_mod(exponent, n) for exponent in exponents] if view.whole_exponents else exponents
            result = [value * powmod(rho, e, n) % n for value, e in zip(result, exponents, strict=True)]
        groups = [result[start : start + view.slots] for start in range(0, len(result), view.slots)]
        return [math.prod(powmod(x, 1 << view.width * i, n) for i, x in enumerate(group)) % n for group in groups]

    def product_roots(self, view: ServerView) -> list[mpz]:
        """The same for the product over silos."""
        every = [self.roots(view, silo) for silo in range(len(self.rows))]
        return [math.prod(column) % view.key.public.n for column in zip(*every, strict=True)]


def unpacked(plaintexts: list[mpz], slots: int, width: int) -> list[mpz]:
    """What lies in the slots of signed plaintexts, the lowest first; more at the end than was put in."""
    values = []
    for plaintext in plaintexts:
        rest = plaintext
        for _ in range(slots - 1):
            values.append(signed_residue(rest, 1 << width))
            rest = (rest - values[-1]) >> width
        values.append(rest)
    return values


def characters(key: PrivateKey, value: int) -> tuple[int, int]:
    """Whether a unit is a square modulo p and modulo q: what only the holder of the key can tell."""
    return legendre(value, key.p), legendre(value, key.q)


def encoded(rows: np.ndarray, clip: float = 1.0) -> np.ndarray:
    """Clipped rows in units; the last axis is the coordinate."""
    flat = clip_rows(rows.reshape(-1, rows.shape[-1]), clip)
    return FixedPoint(limit=clip).encode_rows(flat)[0].reshape(rows.shape)


def planted_federation(counts: np.ndarray, dimension: int) -> Federation:
    """A federation with exactly these record counts (silo, user), in silos 0, 1, 2, ..."""
    parts = []
    for index, each in enumerate(counts):
        users = np.repeat(np.arange(len(each)), each)
        features = np.ones((len(users), dimension), dtype=np.float32)
        parts.append(SiloData(str(index), features, np.zeros(len(users), dtype=np.float32), users))
    test = Records(np.ones((1, dimension), dtype=np.float32), np.zeros(1, dtype=np.float32))
    return Federation("planted", tuple(parts), counts.shape[1], Task(0), test)


class PlantedLearner:
    """Every user's change of the model is given: ``rows`` has silo, user, coordinate."""

    def __init__(self, rows: np.ndarray) -> None:
        self.dimension = rows.shape[2]
        self._rows = rows

    def initial(self, streams):
        return np.zeros(self.dimension)

    def user_deltas(self, x, data, local, streams):
        users = np.unique(data.users)
        if len(users):
            yield users, self._rows[int(data.name), users]
