"""The private weighting protocol as simple published code runs it: the baseline of ``uldp bench protocol``.

Written from the paper (ULDP-FL, Protocol 1) on top of ``phe`` and gmpy2. In every round, silo s does for every user u

    c = Enc(1 / (r_u N_u))^(n_su r_u C_LCM mod n)     once for each tensor of the model
    c^(delta_suj mod n)                               for each parameter j of the tensor

multiplies over users and adds C_LCM times the encoded noise; the server multiplies over silos and decrypts each
parameter. An encoded delta that is negative is reduced modulo n and so becomes an exponent of full size: half of them
are. ``phe`` would invert the ciphertext instead, so its ``powmod`` is called directly here. That is no straw man. The
authors' code sets ``max_int = n - 1`` in ``phe``, upon which ``phe`` inverts for *every* scalar: the positive half then
has exponents of full size, and all pay for an inversion.

Elsewhere the baseline is kinder than the authors' code: one power for a coefficient instead of three (count, blind,
C_LCM), no objects around ciphertexts, and no masks. It does not re-randomise either.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from uldp.data.federation import IntArray
from uldp.errors import ConfigError
from uldp.vectors import Integers

TENSORS: Final = 2
"""A layer has two: weight and bias."""


def load_phe() -> Any:
    """The module ``phe.paillier``."""
    try:
        from phe import paillier
    except ImportError as error:
        raise ConfigError(
            "the baseline needs the package phe; install it with: pip install 'uldp[bench]'", location="bench protocol"
        ) from error
    return paillier


class PublishedProtocol:
    """Server and silos of one federation. ``counts`` are (silos, users)."""

    def __init__(self, key_bits: int, counts: IntArray, max_records: int) -> None:
        self._phe = load_phe()
        self.public, self._private = self._phe.generate_paillier_keypair(n_length=key_bits)
        self._counts: list[list[int]] = counts.tolist()
        self.multiple = math.lcm(*range(1, max_records + 1))
        self._n, self._n2 = self.public.n, self.public.nsquare
        self._blinds = [self.public.get_random_lt_n() for _ in range(counts.shape[1])]
        totals = counts.sum(axis=0).tolist()
        self._inverses = [pow(r * total, -1, self._n) for r, total in zip(self._blinds, totals, strict=True)]

    @cached_property
    def weights(self) -> list[int]:
        """Enc(1 / (r_u N_u)) of all users."""
        return [self.encrypt(user) for user in range(len(self._inverses))]

    def encrypt(self, user: int) -> int:
        return int(self.public.raw_encrypt(self._inverses[user]))

    def coefficient(self, weight: int, silo: int, user: int) -> int:
        """Enc(C_LCM n_su / N_u)."""
        factor = self._counts[silo][user] * self._blinds[user] * self.multiple % self._n
        return int(self._phe.powmod(weight, factor, self._n2))

    def scale(self, c: int, delta: int) -> int:
        return int(self._phe.powmod(c, delta % self._n, self._n2))

    def add(self, a: int, b: int) -> int:
        return int(self._phe.mulmod(a, b, self._n2))

    def add_noise(self, c: int, noise: int) -> int:
        """With r = 1: noise comes as a plaintext."""
        return self.add(c, self.public.raw_encrypt(noise * self.multiple % self._n, r_value=1))

    def decrypt(self, c: int) -> int:
        """C_LCM times the total, which need not be whole."""
        plain = int(self._private.raw_decrypt(c))
        return plain - self._n if plain > self._n // 2 else plain

    def silo(self, index: int, rows: Integers, noise: Integers) -> list[int]:
        """What silo ``index`` sends: one ciphertext for each parameter."""
        tensors = [part.tolist() for part in np.array_split(np.arange(rows.shape[1]), TENSORS)]
        sums = [1] * rows.shape[1]
        for user, row in enumerate(rows.tolist()):
            for tensor in tensors:
                coefficient = self.coefficient(self.weights[user], index, user)
                for j in tensor:
                    sums[j] = self.add(sums[j], self.scale(coefficient, row[j]))
        return [self.add_noise(c, z) for c, z in zip(sums, noise.tolist(), strict=True)]

    def total(self, vectors: Sequence[Sequence[int]]) -> list[int]:
        """C_LCM times the total of all silos."""
        product = list(vectors[0])
        for vector in vectors[1:]:
            product = [self.add(a, b) for a, b in zip(product, vector, strict=True)]
        return [self.decrypt(c) for c in product]


def full_run(naive: PublishedProtocol, rows: Integers, noise: Integers) -> dict[str, float]:
    """Seconds of one whole round, by phase. ``rows`` are (silos, users, d), ``noise`` is (silos, d)."""
    start = time.perf_counter()
    assert len(naive.weights) == rows.shape[1]
    encrypted = time.perf_counter()
    vectors = [naive.silo(index, rows[index], noise[index]) for index in range(len(rows))]
    weighted = time.perf_counter()
    naive.total(vectors)
    return {
        "encrypting weights": encrypted - start,
        "silo weighting": weighted - encrypted,
        "aggregation and decryption": time.perf_counter() - weighted,
    }


def sampled_run(naive: PublishedProtocol, rows: Integers, noise: Integers, samples: int) -> dict[str, float]:
    """The same, extrapolated: the mean time of each kind of operation, times how often a round does it."""
    mean = _operation_times(naive, rows, noise, samples)
    silos, users, dimension = rows.shape
    negative = int((rows < 0).sum())
    weighting = (
        silos * users * TENSORS * mean["coefficient"]
        + negative * mean["negative"]
        + (rows.size - negative) * mean["positive"]
        + rows.size * mean["add"]
        + silos * dimension * mean["noise"]
    )
    return {
        "encrypting weights": users * mean["encrypt"],
        "silo weighting": weighting,
        "aggregation and decryption": dimension * ((silos - 1) * mean["add"] + mean["decrypt"]),
    }


def _operation_times(naive: PublishedProtocol, rows: Integers, noise: Integers, samples: int) -> dict[str, float]:
    """Mean seconds of each kind of operation on random picks from the data, the kinds in turn."""
    generator = np.random.default_rng(0)
    silos, users, dimension = rows.shape
    positive, negative = rows[rows >= 0], rows[rows < 0]
    total: dict[str, float] = {}

    def time_operation(kind: str, operation: Callable[..., int], *arguments: int) -> int:
        start = time.perf_counter()
        result = operation(*arguments)
        total[kind] = total.get(kind, 0.0) + time.perf_counter() - start
        return result

    for _ in range(samples):
        silo, user, j = (int(generator.integers(limit)) for limit in (silos, users, dimension))
        weight = time_operation("encrypt", naive.encrypt, user)
        c = time_operation("coefficient", naive.coefficient, weight, silo, user)
        a = time_operation("positive", naive.scale, c, int(generator.choice(positive)))
        b = time_operation("negative", naive.scale, c, int(generator.choice(negative)))
        c = time_operation("add", naive.add, a, b)
        c = time_operation("noise", naive.add_noise, c, int(noise[silo, j]))
        time_operation("decrypt", naive.decrypt, c)
    return {kind: seconds / samples for kind, seconds in total.items()}
