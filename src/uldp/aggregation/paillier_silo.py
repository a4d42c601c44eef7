"""A silo's machine of ``paillier``; the protocol is in :mod:`uldp.aggregation.paillier`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import gmpy2
import numpy as np
from gmpy2 import mpz

from uldp.aggregation import offers
from uldp.aggregation.base import Accumulator, AggregationContext, BoundSecrets, RoundRequest, SiloSide, SiloUpdate
from uldp.aggregation.key_agreement import KeyRequest, PairwiseKeys, SealedSeeds, SiloKeys, pair_purpose
from uldp.aggregation.layout import PaillierScheme
from uldp.aggregation.paillier_messages import BlindedShares, Choices, ChoicesRequest, EncryptedWeights, SealedSeed
from uldp.crypto import randomisers
from uldp.crypto.integers import pack, uniform_below, uniform_units, unpack
from uldp.crypto.keys import SharedKey, SigningKey
from uldp.crypto.multiexp import products
from uldp.crypto.paillier import PublicKey
from uldp.crypto.parallel import spread
from uldp.crypto.transfer import Chooser
from uldp.data.federation import IntArray
from uldp.errors import MessageRefused, ModelError
from uldp.privacy.releases.sums import add_noise, finite_rows
from uldp.protocol import messages as m
from uldp.rng import Secrets, SecretStream
from uldp.vectors import Integers, Residues, Rows, Vector

BLOCK_USERS: Final = 128
"""Users whose rows are raised together: they share the squarings, and no more of their rows are in memory."""
BLOCK_NUMBERS: Final = 1 << 22
"""At most so many numbers of rows at a time, but at least those of eight users."""
MASK_BLOCK: Final = 256


class PaillierSilo(SiloSide):
    """Holds the seed, shares a secret with each other silo, and never sees a plaintext of the server's."""

    def __init__(
        self,
        scheme: PaillierScheme,
        context: AggregationContext,
        index: int,
        counts: IntArray,
        secrets: Secrets,
        identity: SigningKey,
    ) -> None:
        super().__init__(context, index, counts, secrets)
        self._scheme = scheme
        self._pairwise = PairwiseKeys(context, index, secrets, identity)
        self._ratios = scheme.ratios
        self._layout = scheme.layout
        self._modulus = b""
        self._public: PublicKey | None = None
        self._shared: dict[int, SharedKey] = {}
        self._roll = b""
        self._offer = b""
        self._chosen: tuple[tuple[int, bytes], list[tuple[bytes, bytes, int]]] | None = None
        self._seed: SharedKey | None = None
        self._fixed: Weights | None = None
        self._sampled: tuple[str, Weights] | None = None

    @property
    def context(self) -> AggregationContext:
        return self._context

    @property
    def public(self) -> PublicKey:
        if self._public is None:
            raise MessageRefused("the server has not sent its modulus", location=self._location)
        return self._public

    @property
    def seed(self) -> SharedKey:
        if self._seed is None:
            raise MessageRefused("the common seed has not come", location=self._location)
        return self._seed

    def respond(self, body: m.Message) -> m.Message:
        match body:
            case KeyRequest(modulus):
                bits = self._scheme.key_bits
                public = PublicKey.from_peer(unpack(modulus, bits // 8, 1, self._location)[0], bits, self._location)
                self._public, self._modulus = public, modulus
                return self._pairwise.introduce(modulus)
            case SiloKeys(publics):
                self._shared = self._pairwise.pair(body, self._modulus)
                self._roll = hashlib.sha256(b"".join(publics)).digest()
                return SealedSeeds(self._pairwise.sealed_seeds(self._shared, self._modulus))
            case SealedSeed(sealed):
                seed = self._open_seed(sealed)
                blinded = self._blind_shares(seed)
                self._seed = seed
                if self._uses_table:
                    self._table()  # built here, so that no round waits for it
                return BlindedShares(pack(blinded, self.public.plain_width))
            case EncryptedWeights(weights):
                fixed = self._weights(weights)
                fixed.for_users(np.flatnonzero(self._counts))
                self._fixed = fixed
                return m.Accepted()
            case ChoicesRequest(round_, offer):
                points = b"".join(point for point, _, _ in self._choices(round_, offer))
                self._offer = offer
                return Choices(round_, points)
            case _:
                return super().respond(body)

    def _purpose(self, other: int, purpose: str, *further: str | int) -> tuple[str | int | bytes, ...]:
        return (*pair_purpose(self._context, self._index, other, purpose, *further), self._modulus)

    def _open_seed(self, sealed: bytes) -> SharedKey:
        secret = self._pairwise.common_seed(self._shared, sealed, self._modulus)
        # Bound to all silos' keys, and they to their records: blinds and slots of one setup never serve another.
        return SharedKey(secret, b"common seed" + self._roll, self._secrets.simulated)

    def blinds(self, seed: SharedKey) -> list[mpz]:
        """Step 1(d): r_u, the same in all silos, unknown to the server."""
        stream = seed.stream("blinds", self._context.digest, self._modulus)
        return uniform_units(stream, self.public.n, self._context.facts.users)

    def _blind_shares(self, seed: SharedKey) -> list[mpz]:
        """Step 1(e): r_u share_su with masks that cancel over the silos."""
        n = self.public.n
        shares = self._ratios.shares(self._counts, self._index).tolist()
        values = [blind * share for blind, share in zip(self.blinds(seed), shares, strict=True)]
        for other, shared in self._shared.items():
            masks = uniform_below(shared.stream(*self._purpose(other, "counts")), n, len(values))
            sign = -1 if self._index > other else 1
            values = [value + sign * mask for value, mask in zip(values, masks, strict=True)]
        return [gmpy2.f_mod(value, n) for value in values]

    def _weights(self, data: bytes) -> Weights:
        public, users = self.public, self._context.facts.users
        ciphertexts = unpack(data, public.width, users, self._location)
        public.check(ciphertexts, self._location)
        numerators = self._ratios.numerators(self._counts).tolist()
        exponents = [
            gmpy2.f_mod(blind * numerator * self._layout.multiple, public.n)
            for blind, numerator in zip(self.blinds(self.seed), numerators, strict=True)
        ]
        return Weights(public, ciphertexts, exponents, self._scheme.workers)

    def _choices(self, round_: int, offer: bytes) -> list[tuple[bytes, bytes, int]]:
        """What was chosen; computed once, for it is needed when the weights come."""
        if self._chosen is None or self._chosen[0] != (round_, offer):
            self._chosen = ((round_, offer), list(self._chosen_slots(round_, offer)))
        return self._chosen[1]

    def _chosen_slots(self, round_: int, offer: bytes) -> Iterator[tuple[bytes, bytes, int]]:
        """For every user the point that goes to the server, the key that opens, and the slot: alike in all silos.

        All of it is bound to the offer. The same slot hidden twice, against two offers, would show.
        """
        _, slots = self._context.release.user_sampling.slots
        purpose = (self._context.digest, self._modulus, round_, offer)
        chooser = Chooser(offer, slots, self._location)
        indices = uniform_below(self.seed.stream("slots", *purpose), slots, self._context.facts.users)
        stream = self.seed.stream("points", *purpose)
        for user, index in enumerate(indices):
            context = offers.context(self._context.digest, round_, user)
            yield *chooser.choose(int(index), stream, context), int(index)

    def opened_weights(self, request: RoundRequest) -> bytes:
        """The weights in the slots that were chosen; that of a user who is not sampled is an encrypted zero."""
        _, slots = self._context.release.user_sampling.slots
        size, users = offers.user_bytes(slots, self.public.width), self._context.facts.users
        each = zip(
            offers.split_by_user(request.weights, size, users, self._location),
            self._choices(request.round, self._offer),
            strict=True,
        )
        return b"".join(offers.open_offer(offer, slots, index, key, self._location) for offer, (_, key, index) in each)

    def check_request(self, request: RoundRequest) -> None:
        if bool(request.weights) == (self._fixed is not None):
            raise MessageRefused(
                "encrypted weights come once at setup, or with every sampled round", location=self._location
            )
        self._round_weights(request)

    def _round_weights(self, request: RoundRequest) -> Weights:
        """A round's weights; read once, before anything is charged for the round, for they may be malformed."""
        if self._fixed is not None:
            return self._fixed
        if self._sampled is None or self._sampled[0] != request.digest:
            sent = self.opened_weights(request) if self._offer else request.weights
            self._sampled = (request.digest, self._weights(sent))
        return self._sampled[1]

    def accumulator(self, weights: Vector | None, request: RoundRequest) -> _PaillierAccumulator:
        return _PaillierAccumulator(self, self._round_weights(request), request)

    def raised_sums(self, weights: Weights, users: IntArray, block: Integers) -> list[mpz]:
        """prod_u Enc(w_su)^(a_suj) for every coordinate j, over a block of users."""
        bits = self._context.release.encoding.bits + 1
        return products(weights.for_users(users), block, bits, self.public.n2, self._scheme.workers)

    def noised(self, product: list[mpz], digest: str, bound_secrets: BoundSecrets) -> list[mpz]:
        """The ciphertexts with noise, dither and a fresh residue. ``digest`` is a digest of the rows."""
        scale = self._context.release.silo_noise_std
        nothing = np.zeros(self._context.facts.dimension, dtype=np.int64)
        noise = add_noise(nothing, scale, bound_secrets("noise", (repr(scale), digest)).stream())
        ciphertexts = self._pack(product)
        ciphertexts = self._with_noise(ciphertexts, noise, bound_secrets("dither", (repr(scale), digest)))
        return self._randomise(ciphertexts, bound_secrets("residues", (repr(scale), digest)))

    def protect_metrics(self, residues: Residues, request: RoundRequest) -> Residues:
        further = (request.round, request.digest, self._modulus)
        return self._pairwise.mask(residues, self._shared, "metrics", *further)

    def _pack(self, product: list[mpz]) -> list[mpz]:
        """One ciphertext for every ``slots`` coordinates: the slot's number becomes a power of two in the exponent."""
        slots, n2 = self._layout.slots, self.public.n2
        if slots == 1:
            return product
        shift = mpz(1) << self._layout.width

        def horner(part: range) -> list[mpz]:
            ciphertexts = []
            for start in (slots * i for i in part):
                *lower, packed = product[start : start + slots]
                for value in reversed(lower):
                    packed = gmpy2.powmod(packed, shift, n2) * value % n2
                ciphertexts.append(packed)
            return ciphertexts

        return spread(horner, self._layout.ciphertexts, self._scheme.workers, self.public.width)

    def _with_noise(self, ciphertexts: list[mpz], noise: Integers, secrets: Secrets) -> list[mpz]:
        """L z_sj and a dither on every coordinate."""
        public, multiple = self.public, self._layout.multiple
        dithers = uniform_below(secrets.stream(), multiple, len(noise))
        plaintexts = self._layout.pack([multiple * z + d for z, d in zip(noise.tolist(), dithers, strict=True)])
        return [public.add(value, public.factor(m)) for value, m in zip(ciphertexts, plaintexts, strict=True)]

    def _randomise(self, ciphertexts: list[mpz], secrets: Secrets) -> list[mpz]:
        """A fresh n-th residue on every ciphertext."""
        residues = self._residues(len(ciphertexts), secrets)
        return [self.public.add(value, residue) for value, residue in zip(ciphertexts, residues, strict=True)]

    @property
    def _uses_table(self) -> bool:
        return randomisers.is_worthwhile(self._layout.ciphertexts * self._context.rounds, self.public.bits)

    def _table(self) -> randomisers.ResidueTable:
        key = self.seed.key("residues", self._context.digest, self._modulus)
        return _residue_table(self.public, key, _Workers(self._scheme.workers))

    def _residues(self, count: int, secrets: Secrets) -> list[mpz]:
        workers = self._scheme.workers
        if self._uses_table:
            return self._table().draw(secrets.stream(), count, workers)
        return randomisers.direct(self.public, secrets.stream(), count, workers)

    def mask(self, product: list[mpz], request: RoundRequest) -> list[mpz]:
        """Step 2(c): masks from Z*_(n^2), one for every pair and coordinate."""
        n2 = self.public.n2
        streams = {
            other: shared.stream(*self._purpose(other, "ciphertexts", request.round, request.digest))
            for other, shared in self._shared.items()
        }
        masked: list[mpz] = []
        for start in range(0, len(product), MASK_BLOCK):
            part = product[start : start + MASK_BLOCK]
            below = [mpz(1)] * len(part)
            for other, stream in streams.items():
                masks = uniform_units(stream, n2, len(part), radical=self.public.n)
                if self._index > other:
                    below = [a * b % n2 for a, b in zip(below, masks, strict=True)]
                else:
                    part = [a * b % n2 for a, b in zip(part, masks, strict=True)]
            masked += [a * gmpy2.invert(b, n2) % n2 for a, b in zip(part, below, strict=True)]
        return masked


class _PaillierAccumulator(Accumulator):
    """Raises encrypted weights to the rows of up to ``BLOCK_USERS`` users at a time: they share the squarings."""

    def __init__(self, silo: PaillierSilo, weights: Weights, request: RoundRequest) -> None:
        release = silo.context.release
        self._silo, self._weights, self._request, self._encoding = silo, weights, request, release.encoding
        self._dimension = release.facts.dimension
        self._size = min(BLOCK_USERS, max(8, BLOCK_NUMBERS // max(1, self._dimension)))
        self._product, self._rows_digest, self._left_out = [mpz(1)] * self._dimension, hashlib.sha256(), 0
        self._users: list[IntArray] = []
        self._rows: list[Integers] = []

    def add(self, users: IntArray | None, rows: Rows) -> None:
        if users is None:
            raise ModelError("paillier weighs rows of single users", location="method.silo")
        users, finite, missing = finite_rows(users, rows, self._dimension)
        self._left_out += missing
        for start in range(0, len(finite), self._size):
            integers, cut = self._encoding.encode_rows(finite[start : start + self._size])
            self._left_out += cut
            # One less than the encoded clip fits the exponent's width; a coordinate comes there only alone.
            np.clip(integers, 1 - self._encoding.integer_limit, self._encoding.integer_limit - 1, out=integers)
            self._users.append(users[start : start + self._size])
            self._rows.append(integers)
            if sum(map(len, self._rows)) >= self._size:
                self._multiply()

    def _multiply(self) -> None:
        """Bring the waiting rows into the product."""
        users, block = np.concatenate(self._users), np.concatenate(self._rows)
        self._users, self._rows = [], []
        self._rows_digest.update(m.pack(users) + m.pack(block))
        raised = self._silo.raised_sums(self._weights, users, block)
        self._product = [self._silo.public.add(left, right) for left, right in zip(self._product, raised, strict=True)]

    def release(self, bound_secrets: BoundSecrets) -> SiloUpdate:
        if self._rows:
            self._multiply()
        noised = self._silo.noised(self._product, self._rows_digest.hexdigest(), bound_secrets)
        sent, inside = (
            pack(ciphertexts, self._silo.public.width)
            for ciphertexts in (self._silo.mask(noised, self._request), noised)
        )
        return SiloUpdate(sent, 0, self._left_out, inside)


class Weights:
    """Enc(num_su L / D_u) of the users asked for. A full exponentiation each, so they are cached."""

    def __init__(self, public: PublicKey, ciphertexts: list[mpz], exponents: list[mpz], workers: int) -> None:
        self._public = public
        self._ciphertexts = ciphertexts
        self._exponents = exponents
        self._workers = workers
        self._known: dict[int, mpz] = {}

    def for_users(self, users: IntArray) -> list[mpz]:
        missing = [user for user in users.tolist() if user not in self._known]

        def powers(part: range) -> list[mpz]:
            n2 = self._public.n2
            return [gmpy2.powmod(self._ciphertexts[missing[i]], self._exponents[missing[i]], n2) for i in part]

        self._known |= zip(missing, spread(powers, len(missing), self._workers, self._public.width), strict=True)
        return [self._known[user] for user in users.tolist()]


@dataclass(frozen=True)
class _Workers:
    """How many processes build a table. It is the same table, so all numbers of them are equal."""

    count: int = field(compare=False)


@lru_cache(maxsize=1)
def _residue_table(public: PublicKey, key: bytes, workers: _Workers) -> randomisers.ResidueTable:
    """One table for all silos of this process: its bases may be known, see :mod:`uldp.crypto.randomisers`."""
    return randomisers.ResidueTable.build(public, SecretStream(key, simulated=False), workers.count)
