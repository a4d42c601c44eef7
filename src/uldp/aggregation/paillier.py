"""``paillier``: weighting by records although nobody learns anybody's record counts (ULDP-FL, Protocol 1, corrected).

Symbols: n the server's Paillier modulus, L = C_LCM, r_u blinds that all silos know and the server does not, D_u the
denominator of user u's weights and num_su their numerators (:class:`uldp.methods.weights.Ratios`), a_suj the clipped
row in units, not weighted, z_sj noise in units.

Setup::

    (a) the server makes a Paillier key and sends n; every silo sends a signed key for agreement
    (b) all silos get all keys, every two agree on a secret
    (c) the first silo draws a seed and seals it for each of the others
    (d) r_u = units modulo n from the seed
    (e) silo s sends r_u share_su + masks modulo n; the masks cancel, the server gets r_u D_u for every user
    (f) the server inverts: 1 / (r_u D_u)

Every round::

    (a) the server sends Enc(1 / (r_u D_u)), or Enc(0) for users outside its sample (without sampling: once, at setup)
    (b) silo s:  Enc(sum_u a_suj num_su L / D_u + L z_sj)  for every coordinate j, as
                 prod_u (Enc(1 / (r_u D_u))^(num_su r_u L))^(a_suj) (1 + n)^(L z_sj)
        with a uniform dither from [0, L) in the plaintext and a fresh n-th residue on the ciphertext
    (c) every silo multiplies with its masks from Z*_(n^2); the masks cancel in the product over silos, the server
        decrypts it, divides by L and rounds down

Where L is short, several coordinates share a ciphertext, each in a slot of fixed width (:class:`Layout`).

What the published protocol lacks, and where it is here (``docs/protocol.md`` has the arguments):

* The decrypted sum modulo L carries no noise. A dither makes it uniform, whatever the data are.
* A ciphertext's randomness is a function of the rows without noise, and the key holder can read it. The masks make
  single ciphertexts uniform in Z*_(n^2); the n-th residues do the same for the randomness of the product.
  One silo's dither and residue would do; all silos add theirs, so that it stays true if the server and one silo pool.
* Users without records and counts beyond the range: see :mod:`uldp.methods.weights`; the range is checked in ``check``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar, Final

import gmpy2
import numpy as np
from gmpy2 import mpz

from uldp.aggregation.base import (
    Aggregation,
    Covered,
    Released,
    RoundQuestion,
    Sample,
    ServerSide,
    Setting,
    SiloSide,
    checked_total,
    largest_total,
    out_of_range,
)
from uldp.aggregation.masked import ONE_SILO
from uldp.aggregation.pairing import Pairing, check_key, pair_purpose, relay
from uldp.crypto import randomisers
from uldp.crypto.integers import pack, uniform_below, uniform_units, unpack
from uldp.crypto.keys import KEY_BYTES, TAG_BYTES, SharedKey, SigningKey
from uldp.crypto.multiexp import products
from uldp.crypto.paillier import PrivateKey, PublicKey, signed
from uldp.crypto.parallel import spread
from uldp.data.federation import IntArray
from uldp.errors import ConfigError, MessageRefused
from uldp.methods.base import Contribution, Facts, Method
from uldp.methods.release import add_noise, finite_rows
from uldp.methods.user_sum import UserSum
from uldp.methods.weights import Ratios, common_multiple
from uldp.protocol import messages as m
from uldp.protocol.turns import AGREE_KEYS, BLIND_COUNTS, FIXED_WEIGHTS, Question
from uldp.rng import Secrets, SecretStream
from uldp.vectors import Integers, Vector, Words

SECURE_BITS: Final = 3072
SMALLEST_BITS: Final = 128
LARGEST_BITS: Final = 16384
DECRYPTION_PER_BIT: Final = 0.28
SQUARING: Final = 0.85
"""Costs in multiplications modulo n^2, measured at 3072 bits."""
BLOCK_USERS: Final = 128
"""Users whose rows are raised together: they share the squarings, and no more of their rows are kept in memory."""
BLOCK_NUMBERS: Final = 1 << 22
"""At most so many numbers of rows at a time, but at least those of eight users."""
MASK_BLOCK: Final = 256


@dataclass(frozen=True)
class PaillierWeighting(Aggregation):
    """Neither the server nor any silo learns anybody's record counts, nor a silo who was sampled."""

    key_bits: int = SECURE_BITS
    slots: int | None = None
    """Coordinates in one ciphertext; None for what takes less time."""
    workers: int = 1

    name: ClassVar[str] = "paillier"
    summary: ClassVar[str] = "the server sees the noised total only; nobody sees anybody's record counts"
    hides_counts: ClassVar[bool] = True
    hides_sample: ClassVar[bool] = True
    dither: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not SMALLEST_BITS <= self.key_bits <= LARGEST_BITS or self.key_bits % 16:
            raise ConfigError(
                f"a multiple of 16 from {SMALLEST_BITS} to {LARGEST_BITS} ({SECURE_BITS} is secure), "
                f"not {self.key_bits}",
                place="aggregation.key_bits",
                value=self.key_bits,
            )
        if self.slots is not None and self.slots < 1:
            raise ConfigError(f"at least 1, not {self.slots}", place="aggregation.slots", value=self.slots)

    @property
    def secure(self) -> bool:
        return self.key_bits >= SECURE_BITS

    def setup(self, method: Method) -> tuple[Question, ...]:
        return AGREE_KEYS + BLIND_COUNTS + (FIXED_WEIGHTS if method.sample_rate == 1 else ())

    def item_bytes(self) -> int:
        return self.key_bits // 4

    def check(self, method: Method, facts: Facts) -> None:
        self.layout(method, facts)

    def layout(self, method: Method, facts: Facts) -> Layout:
        """How coordinates lie in plaintexts; a ``ConfigError`` if not even one fits."""
        multiple = common_multiple(_ratios(method, facts))
        width = (multiple * math.ceil(largest_total(method, facts) + facts.silos)).bit_length() + 1
        most = (self.key_bits - 1) // width
        if most < 1:
            raise ConfigError(
                f"weights with up to {method.count_cap(facts)} records per silo, {facts.users} users and this noise "
                f"need {width + 1} bits, a key has {self.key_bits}; lower method.max_records"
                + ("" if self.secure else " or raise aggregation.key_bits"),
                place="method.max_records",
                value=width + 1,
            )
        if self.slots is not None and self.slots > most:
            raise ConfigError(
                f"at most {most} coordinates of {width} bits fit a ciphertext, not {self.slots}; lower "
                "method.max_records or method.ghost",
                place="aggregation.slots",
                value=self.slots,
            )
        slots = self.slots or (most if self._packing_pays(width, most, method, facts) else 1)
        return Layout(multiple, width, slots, facts.dimension, facts.silos)

    def _packing_pays(self, width: int, slots: int, method: Method, facts: Facts) -> bool:
        """Whether a round is faster with ``slots`` coordinates per ciphertext, counted in multiplications.

        Silos work at the same time, so one of them counts, and the server.
        """
        table = randomisers.pays(facts.dimension * method.rounds, self.key_bits)
        residue = randomisers.lookup_cost(self.key_bits) if table else randomisers.direct_cost(self.key_bits)
        alone = DECRYPTION_PER_BIT * self.key_bits + residue
        return width * SQUARING + alone / slots < alone

    def caveats(self, method: Method, facts: Facts) -> tuple[str, ...]:
        lines = [ONE_SILO] if facts.silos == 1 else []
        if not self.secure:
            lines.append(
                f"INSECURE KEY: aggregation.key_bits = {self.key_bits} is for tests; a silo that breaks the key learns "
                f"everybody's record totals and the sample. Take {SECURE_BITS}."
            )
        lines.append(
            "Hidden record counts (and, towards silos, the hidden sample) rest on the Paillier and Diffie-Hellman "
            "assumptions, on a server that follows the protocol, and on nobody pooling: the server and any one silo "
            "together learn everybody's record totals."
        )
        return tuple(lines)

    def costs(self, method: Method, facts: Facts) -> Mapping[str, int]:
        layout = self.layout(method, facts)
        size = layout.ciphertexts * self.item_bytes()
        return {"update_bytes": size, "ciphertexts": layout.ciphertexts, "slots": layout.slots}

    def advice(self, method: Method, facts: Facts) -> str:
        """Which limits on record counts would let several coordinates share a ciphertext."""
        if self.slots is not None or self.layout(method, facts).slots > 1 or not isinstance(method, UserSum):
            return ""
        found = []
        for ghost in sorted({method.ghost, 1}, reverse=True):
            allowed = self._most_records(replace(method, ghost=ghost), facts)
            if allowed is not None:
                slots = self.layout(replace(method, ghost=ghost, max_records=allowed), facts).slots
                with_ghost = "" if ghost == method.ghost else f" with method.ghost = {ghost}"
                found.append(f"method.max_records = {allowed}{with_ghost} would let {slots} parameters share one")
        return f"A ciphertext holds one parameter; {' and '.join(found)}." if found else ""

    def _most_records(self, method: UserSum, facts: Facts) -> int | None:
        """The largest N_max with which packing pays, if there is one."""
        low, high = facts.silos - 1, method.max_records  # pays at low (or is too small to try), does not at high
        while high - low > 1:
            middle = (low + high) // 2
            if self.layout(replace(method, max_records=middle), facts).slots > 1:
                low = middle
            else:
                high = middle
        return low if low >= facts.silos else None

    def server(self, setting: Setting, secrets: Secrets) -> PaillierServer:
        return PaillierServer(self, setting, secrets)

    def silo(
        self, setting: Setting, index: int, counts: IntArray, secrets: Secrets, identity: SigningKey
    ) -> PaillierSilo:
        return PaillierSilo(self, setting, index, counts, secrets, identity)


def _ratios(method: Method, facts: Facts) -> Ratios:
    ratios = method.ratios(facts)
    if ratios is None:
        raise ConfigError(
            "paillier weighs single users, and this method's silos send one vector for all of theirs; "
            "take name = 'masked'",
            place="aggregation.name",
            value="paillier",
        )
    return ratios


@dataclass(frozen=True)
class Layout:
    """Where the coordinates of a total are in the plaintexts: ``slots`` of ``width`` bits in each.

    A coordinate's value is L (total + dithers / L), a signed number below 2^(width - 1) in size, so that neighbours
    never touch: with ``width * slots < key_bits`` the whole plaintext stays below n / 2.
    """

    multiple: int
    width: int
    slots: int
    dimension: int
    silos: int

    @property
    def ciphertexts(self) -> int:
        return -(-self.dimension // self.slots)

    def packed(self, values: Sequence[int]) -> list[mpz]:
        """The plaintexts of these coordinates' values."""
        groups = (values[start : start + self.slots] for start in range(0, len(values), self.slots))
        return [sum((mpz(v) << (self.width * i) for i, v in enumerate(group)), start=mpz(0)) for group in groups]

    def unpacked(self, plaintexts: Sequence[mpz]) -> list[mpz] | None:
        """The values in signed plaintexts; None if one cannot have come from :meth:`packed`."""
        values: list[mpz] = []
        modulus = mpz(1) << self.width
        for rest in plaintexts:
            for _ in range(min(self.slots, self.dimension - len(values))):
                value = signed(rest, modulus)
                values.append(value)
                rest = (rest - value) >> self.width
            if rest:
                return None
        return values

    def decoded(self, value: mpz) -> mpz:
        """A coordinate's total in units: the silos' dithers, (|S| - 1) / 2 + 1/2 units on average, are taken off."""
        return gmpy2.f_div(value - mpz(self.multiple) * (self.silos - 1) // 2, self.multiple)


class PaillierServer(ServerSide):
    """Holds the key; sees blinded counts, one masked ciphertext per silo and coordinate, and the noised total."""

    def __init__(self, aggregation: PaillierWeighting, setting: Setting, secrets: Secrets) -> None:
        super().__init__(setting, secrets)
        self._aggregation = aggregation
        self._layout = aggregation.layout(setting.method, setting.facts)
        self._keys: m.TellKeys | None = None
        self._sealed: list[bytes] = []
        self._inverses: list[mpz] = []
        self._fixed: m.TellWeights | None = None

    @cached_property
    def key(self) -> PrivateKey:
        return PrivateKey.generate(self._aggregation.key_bits, self._secrets.child("paillier").stream())

    @property
    def _modulus(self) -> bytes:
        public = self.key.public
        return pack([public.n], public.plain_width)

    def ask(self, question: Question, silo: str) -> m.Body:
        if question is m.AskKey:
            return m.AskKey(self._modulus)
        if question is m.TellKeys:
            assert self._keys is not None
            return self._keys
        if question is m.TellSeed:
            index = self._setting.silos.index(silo)
            return m.TellSeed(self._sealed[index - 1] if index else b"")
        if self._fixed is None:
            self._fixed = m.TellWeights(self.weights(0, np.ones(self._setting.facts.users, dtype=np.bool_)))
        return self._fixed

    def check(self, silo: str, body: m.Body) -> None:
        place, silos, users = f"silo {silo}", self._setting.silos, self._setting.facts.users
        match body:
            case m.Key():
                check_key(self._setting, silo, body, self._modulus)
            case m.Paired(sealed):
                expected = len(silos) - 1 if silo == silos[0] else 0
                if len(sealed) != expected or any(len(part) != KEY_BYTES + TAG_BYTES for part in sealed):
                    raise MessageRefused(f"{len(sealed)} sealed seeds, {expected} are expected", place=place)
            case m.Blinded(shares):
                public = self.key.public
                if any(share >= public.n for share in unpack(shares, public.plain_width, users, place)):
                    raise MessageRefused("a blinded count is not a residue modulo n", place=place)
            case _:
                pass

    def collect(self, question: Question, answers: Mapping[str, m.Body]) -> None:
        if question is m.AskKey:
            self._keys = relay(self._setting, answers)
        elif question is m.TellKeys:
            first = answers[self._setting.silos[0]]
            self._sealed = list(first.sealed) if isinstance(first, m.Paired) else []
        elif question is m.TellSeed:
            self._inverses = self._inverted(answers)

    def _inverted(self, answers: Mapping[str, m.Body]) -> list[mpz]:
        """1 / (r_u D_u) modulo n for every user (step 1(f))."""
        public, users = self.key.public, self._setting.facts.users
        blinded = [mpz(0)] * users
        for silo, body in answers.items():
            if isinstance(body, m.Blinded):
                shares = unpack(body.shares, public.plain_width, users, f"silo {silo}")
                blinded = [gmpy2.f_mod(total + share, public.n) for total, share in zip(blinded, shares, strict=True)]
        try:
            return [gmpy2.invert(total, public.n) for total in blinded]
        except ZeroDivisionError as error:
            raise MessageRefused(
                "a blinded count has no inverse; one of the silos left the protocol", place="server"
            ) from error

    def weights(self, round_: int, sample: Sample | None) -> bytes:
        """Enc(1 / (r_u D_u)), or Enc(0) for users who are not in the sample (step 2(a))."""
        if sample is None:
            return b""
        chosen = [inverse if taken else mpz(0) for inverse, taken in zip(self._inverses, sample, strict=True)]
        # Bound to what is encrypted: the same randomness on other numbers would show their difference.
        content = hashlib.sha256(pack(chosen, self.key.public.plain_width)).hexdigest()
        stream = self._secrets.child("weights", "round", round_, content).stream()
        return pack(self.key.encrypt_all(chosen, stream, self._aggregation.workers), self.key.public.width)

    def check_vector(self, silo: str, vector: bytes) -> None:
        self._ciphertexts(silo, vector)

    def _ciphertexts(self, silo: str, vector: bytes) -> list[mpz]:
        public, place = self.key.public, f"silo {silo}"
        ciphertexts = unpack(vector, public.width, self._layout.ciphertexts, place)
        public.check(ciphertexts, place)
        return ciphertexts

    def total(self, vectors: Mapping[str, bytes]) -> Words:
        """The decrypted and decoded total (step 2(c))."""
        public = self.key.public
        product = [mpz(1)] * self._layout.ciphertexts
        for silo, vector in vectors.items():
            factors = unpack(vector, public.width, self._layout.ciphertexts, f"silo {silo}")
            product = [public.add(left, right) for left, right in zip(product, factors, strict=True)]
        decrypted = self.key.decrypt_all(product, self._aggregation.workers)
        values = self._layout.unpacked([signed(value, public.n) for value in decrypted])
        if values is None:
            raise out_of_range()
        return checked_total([int(self._layout.decoded(value)) for value in values], self._setting)


class PaillierSilo(SiloSide):
    """Holds the seed, shares a secret with each other silo, and never sees a plaintext of the server's."""

    def __init__(
        self,
        aggregation: PaillierWeighting,
        setting: Setting,
        index: int,
        counts: IntArray,
        secrets: Secrets,
        identity: SigningKey,
    ) -> None:
        super().__init__(setting, index, counts, secrets)
        self._aggregation = aggregation
        self._pairing = Pairing(setting, index, secrets, identity)
        self._ratios = _ratios(setting.method, setting.facts)
        self._layout = aggregation.layout(setting.method, setting.facts)
        self._modulus = b""
        self._public: PublicKey | None = None
        self._shared: dict[int, SharedKey] = {}
        self._seed: SharedKey | None = None
        self._fixed: Weights | None = None

    @property
    def public(self) -> PublicKey:
        if self._public is None:
            raise MessageRefused("the server has not sent its modulus", place=self._place)
        return self._public

    @property
    def seed(self) -> SharedKey:
        if self._seed is None:
            raise MessageRefused("the common seed has not come", place=self._place)
        return self._seed

    def answer(self, body: m.Body) -> m.Body:
        match body:
            case m.AskKey(modulus):
                bits = self._aggregation.key_bits
                public = PublicKey.received(unpack(modulus, bits // 8, 1, self._place)[0], bits, self._place)
                self._public, self._modulus = public, modulus
                return self._pairing.introduce(modulus)
            case m.TellKeys():
                shared = self._pairing.pair(body, self._modulus)
                self._shared = shared
                return m.Paired(self._sealed_seeds() if self._index == 0 else [])
            case m.TellSeed(sealed):
                seed = self._opened(sealed)
                blinded = self._blinded(seed)
                self._seed = seed
                return m.Blinded(pack(blinded, self.public.plain_width))
            case m.TellWeights(weights):
                fixed = self._weights(weights)
                fixed.raised(np.flatnonzero(self._counts))
                self._fixed = fixed
                return m.Accepted()
            case _:
                return super().answer(body)

    def _purpose(self, other: int, purpose: str, *further: str | int) -> tuple[str | int | bytes, ...]:
        return (*pair_purpose(self._setting, self._index, other, purpose, *further), self._modulus)

    def _sealed_seeds(self) -> list[bytes]:
        """Step 1(c): the seed is drawn by the first silo."""
        seed = self._secrets.child("common seed").key
        return [shared.seal(seed, *self._purpose(other, "seed")) for other, shared in sorted(self._shared.items())]

    def _opened(self, sealed: bytes) -> SharedKey:
        if self._index == 0:
            if sealed:
                raise MessageRefused("the first silo draws the seed, and got one", place=self._place)
            secret = self._secrets.child("common seed").key
        else:
            secret = self._shared[0].open(sealed, *self._purpose(0, "seed"), place=self._place)
            if len(secret) != KEY_BYTES:
                raise MessageRefused(f"a seed of {len(secret)} bytes", place=self._place)
        return SharedKey(secret, b"common seed", self._secrets.simulated)

    def _blinds(self, seed: SharedKey) -> list[mpz]:
        """Step 1(d): r_u, the same in all silos, unknown to the server."""
        stream = seed.stream("blinds", self._setting.digest, self._modulus)
        return uniform_units(stream, self.public.n, self._setting.facts.users)

    def _blinded(self, seed: SharedKey) -> list[mpz]:
        """Step 1(e): r_u share_su with masks that cancel over the silos."""
        n = self.public.n
        shares = self._ratios.shares(self._counts, self._index).tolist()
        values = [blind * share for blind, share in zip(self._blinds(seed), shares, strict=True)]
        for other, shared in self._shared.items():
            masks = uniform_below(shared.stream(*self._purpose(other, "counts")), n, len(values))
            sign = -1 if self._index > other else 1
            values = [value + sign * mask for value, mask in zip(values, masks, strict=True)]
        return [gmpy2.f_mod(value, n) for value in values]

    def _weights(self, data: bytes) -> Weights:
        public, users = self.public, self._setting.facts.users
        ciphertexts = unpack(data, public.width, users, self._place)
        public.check(ciphertexts, self._place)
        numerators = self._ratios.numerators(self._counts).tolist()
        exponents = [
            gmpy2.f_mod(blind * numerator * self._layout.multiple, public.n)
            for blind, numerator in zip(self._blinds(self.seed), numerators, strict=True)
        ]
        return Weights(public, ciphertexts, exponents, self._aggregation.workers)

    def check_question(self, question: RoundQuestion) -> None:
        if bool(question.weights) == (self._fixed is not None):
            raise MessageRefused("encrypted weights come once at setup, or with every sampled round", place=self._place)

    def release(
        self, rows: Iterable[Contribution], weights: Vector | None, question: RoundQuestion, covered: Covered
    ) -> Released:
        method, facts, public = self._setting.method, self._setting.facts, self.public
        encrypted = self._fixed or self._weights(question.weights)
        product = [mpz(1)] * facts.dimension
        seen, left_out = hashlib.sha256(), 0
        for users, block, missing in self._blocks(rows):
            left_out += missing
            seen.update(m.pack(users) + m.pack(block))
            bits = method.encoding(facts).bits + 1
            raised = products(encrypted.raised(users), block, bits, public.n2, self._aggregation.workers)
            product = [public.add(left, right) for left, right in zip(product, raised, strict=True)]
        scale, digest = method.noise_scale(facts), seen.hexdigest()
        nothing = np.zeros(facts.dimension, dtype=np.int64)
        noise = add_noise(nothing, scale, covered("noise", (repr(scale), digest)).stream())
        ciphertexts = self._packed(product)
        ciphertexts = self._with_noise(ciphertexts, noise, covered("dither", (repr(scale), digest)))
        ciphertexts = self._randomised(ciphertexts, covered("residues", (repr(scale), digest)))
        return Released(pack(self._masked(ciphertexts, question), public.width), 0, left_out)

    def _blocks(self, rows: Iterable[Contribution]) -> Iterator[tuple[IntArray, Integers, int]]:
        """Encoded rows of up to ``BLOCK_USERS`` users at a time, and how many rows count as zero."""
        method, facts = self._setting.method, self._setting.facts
        encoding = method.encoding(facts)
        size = min(BLOCK_USERS, max(8, BLOCK_NUMBERS // max(1, facts.dimension)))
        users_waiting: list[IntArray] = []
        rows_waiting: list[Integers] = []
        waiting = left_out = 0
        for users, part, missing in finite_rows(rows, facts.dimension):
            assert users is not None
            left_out += missing
            for start in range(0, len(part), size):
                integers, cut = encoding.encode_rows(part[start : start + size])
                left_out += cut
                # One less than the clip's units fits the exponent's width; a coordinate comes there only alone.
                np.clip(integers, 1 - encoding.units, encoding.units - 1, out=integers)
                users_waiting.append(users[start : start + size])
                rows_waiting.append(integers)
                waiting += len(integers)
                if waiting >= size:
                    yield np.concatenate(users_waiting), np.concatenate(rows_waiting), left_out
                    users_waiting, rows_waiting, waiting, left_out = [], [], 0, 0
        if waiting or left_out:
            empty = np.zeros((0, facts.dimension), dtype=np.int64)
            yield (
                np.concatenate([np.zeros(0, np.int64), *users_waiting]),
                np.concatenate([empty, *rows_waiting]),
                left_out,
            )

    def _packed(self, product: list[mpz]) -> list[mpz]:
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

        return spread(horner, self._layout.ciphertexts, self._aggregation.workers, self.public.width)

    def _with_noise(self, ciphertexts: list[mpz], noise: Integers, secrets: Secrets) -> list[mpz]:
        """L z_sj and a dither on every coordinate."""
        public, multiple = self.public, self._layout.multiple
        dithers = uniform_below(secrets.stream(), multiple, len(noise))
        plaintexts = self._layout.packed([multiple * z + d for z, d in zip(noise.tolist(), dithers, strict=True)])
        return [public.add(value, public.factor(m)) for value, m in zip(ciphertexts, plaintexts, strict=True)]

    def _randomised(self, ciphertexts: list[mpz], secrets: Secrets) -> list[mpz]:
        """A fresh n-th residue on every ciphertext."""
        residues = self._residues(len(ciphertexts), secrets)
        return [self.public.add(value, residue) for value, residue in zip(ciphertexts, residues, strict=True)]

    def _residues(self, count: int, secrets: Secrets) -> list[mpz]:
        public, workers = self.public, self._aggregation.workers
        whole_run = count * self._setting.method.rounds
        if not randomisers.pays(whole_run, public.bits):
            return randomisers.direct(public, secrets.stream(), count, workers)
        table = _residue_table(public, self.seed.key("residues", self._setting.digest, self._modulus), workers)
        return table.draw(secrets.stream(), count, workers)

    def _masked(self, product: list[mpz], question: RoundQuestion) -> list[mpz]:
        """Step 2(c): masks from Z*_(n^2), one for every pair and coordinate."""
        n2 = self.public.n2
        streams = {
            other: shared.stream(*self._purpose(other, "ciphertexts", question.round, question.digest))
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


class Weights:
    """Enc(num_su L / D_u) of the users asked for. A full exponentiation each, so they are kept."""

    def __init__(self, public: PublicKey, ciphertexts: list[mpz], exponents: list[mpz], workers: int) -> None:
        self._public = public
        self._ciphertexts = ciphertexts
        self._exponents = exponents
        self._workers = workers
        self._known: dict[int, mpz] = {}

    def raised(self, users: IntArray) -> list[mpz]:
        missing = [user for user in users.tolist() if user not in self._known]

        def powers(part: range) -> list[mpz]:
            n2 = self._public.n2
            return [gmpy2.powmod(self._ciphertexts[missing[i]], self._exponents[missing[i]], n2) for i in part]

        self._known |= zip(missing, spread(powers, len(missing), self._workers, self._public.width), strict=True)
        return [self._known[user] for user in users.tolist()]


@lru_cache(maxsize=1)
def _residue_table(public: PublicKey, key: bytes, workers: int) -> randomisers.ResidueTable:
    """One table for all silos of this process: its bases may be known, see :mod:`uldp.crypto.randomisers`."""
    return randomisers.ResidueTable.build(public, SecretStream(key, simulated=False), workers)
