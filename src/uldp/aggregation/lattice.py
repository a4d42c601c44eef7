"""``lattice``: weighting by records although nobody learns anybody's record counts, for models with many parameters.

Protocol 1 of ULDP-FL (Kato et al., 2024) with ring-LWE in place of Paillier. Symbols: R = Z_q[x] / (x^N + 1), N = 4096,
q = p1 p2 of 96 bits, s the server's secret, a and c1_u public (hashes of the setup), e errors of operator norm at most
B_e = 2048, W(N) = floor(2^52 / N) - B_e the weight, n_su counts (capped), N_u = sum_s n_su, x_su the clipped row in
units of 2^-24 clips, as polynomials of N coefficients each (*blocks*), z_s noise.

Setup, once, under an id that is a hash of all parties' keys::

    1  server -> silos: its key for agreement, then b = -a s + e; the first silo seals a common seed for the others
    2  silo s -> server: m_su = n_su + masks [+ rho_u]      3  dealer -> keeper, sealed: T_u, a padded table of weights
    4  server -> keeper, sealed: alpha_u = sum_s m_su; back: T_u[alpha_u]; the server has a_u = W(N_u) - mu_u
    5  server -> silos: c0_u = -c1_u s + e_u + a_u; a silo adds mu_u, which all silos derive from the seed, so that
       (c0_u + mu_u, c1_u) is an encryption of W(N_u). g = floor(N / d) users share one, of sum_i W(N_i) x^(-i d)

Every round, silo s::

    (a) sum_u n_su x_su (c0_u + mu_u, c1_u), over all users, for every block; of users who share a ciphertext,
        times sum_i n_si x_si x^(i d)
    (b) + (b v + f0, a v + f1), an encryption of zero, fresh for each block
    (c) c0 cut to the d coefficients that are parameters; + z_s = 2^k DG + dither on each of them
    (d) + masks of pairs of silos modulo p1 and p2, on c0 and c1

and the server adds up, decrypts c0 + c1 s, takes off the dithers' mean and divides by 2^52, rounding.

The look-up is in :mod:`uldp.aggregation.lattice_lookup`, why it is private and what is assumed in ``docs/protocol.md``
and ``docs/decisions/0019``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from uldp.aggregation.base import Aggregation, AggregationContext, largest_total
from uldp.aggregation.key_agreement import AGREE_KEYS
from uldp.aggregation.lattice_lookup import (
    ENTRY_BYTES,
    ERROR_BOUND,
    INDEX_BYTES,
    WEIGHT_BITS,
    Roles,
    SlotRule,
    Weighting,
)
from uldp.aggregation.lattice_messages import ANSWERS, LOOK_UP_WEIGHTS, RING_WEIGHTS, TRANSFER
from uldp.aggregation.lattice_ring import (
    CIPHERTEXT_BYTES,
    DITHER_BITS,
    NONCE_BYTES,
    Scheme,
    seconds_per_block,
    users_together,
    weight_bytes,
)
from uldp.aggregation.lattice_server import LatticeServer
from uldp.aggregation.lattice_silo import LatticeSilo
from uldp.caveats import Caveat
from uldp.crypto.keys import TAG_BYTES, SigningKey
from uldp.crypto.ring import LIMBS, MODULUS, RESIDUE_BYTES, N
from uldp.crypto.ring_products import blocks_of, seconds_per_product
from uldp.data.federation import IntArray
from uldp.errors import ConfigError
from uldp.limits import MAX_PAIRED_SILOS, check_whole
from uldp.mechanisms.discrete_gaussian import MAX_SCALE
from uldp.privacy.distance import Distance
from uldp.privacy.releases import Release
from uldp.protocol.turns import UPDATE, Route
from uldp.rng import Secrets

MAX_RECORDS: Final = 20_000
"""The largest N_max, in units of records."""
MAX_UNIT: Final = 10_000
MAX_USERS: Final = 2**14
MAX_DIMENSION: Final = 2**23
MAX_TABLE_BYTES: Final = 50_000_000
"""Of look-up tables that a silo gets and sends at setup, where nobody asked for ``lattice`` by name."""
MAX_SAMPLED_BYTES: Final = 100_000_000
"""Of what a silo gets in a round because users are sampled, where nobody asked for ``lattice`` by name."""
MIN_NOISE: Final = 0.01
"""The smallest deviation of one silo's noise, in clips. The model tells silos the sum with the errors in it; less noise
would not cover them. One silo's share counts: of the others some may be missing, and the silo itself knows its own."""
ZERO_ENCRYPTION: Final = 2**13
"""More than a coefficient of e v + f0 + s f1, by far."""


@dataclass(frozen=True)
class LatticeWeighting(Aggregation):
    """Neither the server nor any silo learns anybody's record counts, nor a silo who was sampled."""

    max_records: int = 2000
    """Of a user at most so many records count for the weights, the same number in each silo."""
    count_unit: int = 1
    """Records are counted in units of so many, rounded up. Tables have N_max = max_records / count_unit entries."""
    workers: int = field(default=1, repr=False)  # two parties may differ in it: no part of what is agreed on

    name: ClassVar[str] = "lattice"
    summary: ClassVar[str] = (
        "the server sees the noised total only; no single party sees anybody's record counts; for large models"
    )
    hides_counts: ClassVar[bool] = True
    needs_key_agreement: ClassVar[bool] = True
    hides_sample: ClassVar[bool] = True
    silo_pairs_learn: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True
    rounding: ClassVar[float] = 2.0 ** (DITHER_BITS - WEIGHT_BITS)
    """Of the dither: given its residue modulo 2^k, the sum is rounded at a known point to multiples of 2^k."""

    @property
    def residual(self) -> float:
        """eta: the error of a ciphertext of weight 0 still multiplies the user's rows."""
        return ERROR_BOUND * max(self.max_units, MAX_PAIRED_SILOS) / 2.0**WEIGHT_BITS

    @property
    def max_units(self) -> int:
        """N_max."""
        return self.max_records // self.count_unit

    def distance(self, release: Release) -> Distance:
        """Of the zeros' part h in the decrypted total from a total without it (docs/decisions/0019, Zeros).

        A coordinate of h is about 237 in size, and moves noise of deviation s by 0.4 |h| / s. It never moves the noise
        by more than one step of 2^k. One silo's noise counts, and every silo's h: of a repeated round the server may
        see them one by one.
        """
        numbers = release.facts.silos * release.facts.dimension
        deviation, step = release.silo_noise_std * 2.0**WEIGHT_BITS, 2.0**DITHER_BITS
        return Distance(numbers * 0.4 * 256 / deviation, shift=math.sqrt(numbers) * step / deviation)

    def __post_init__(self) -> None:
        check_whole(self.count_unit, 1, MAX_UNIT, "aggregation.count_unit")
        check_whole(self.max_records, 1, MAX_RECORDS * self.count_unit, "aggregation.max_records")

    def route(self, release: Release) -> Route:
        setup, sampling = AGREE_KEYS + LOOK_UP_WEIGHTS, release.user_sampling
        if sampling.everybody:
            return Route(setup + RING_WEIGHTS, repeats=True)
        return Route(setup, (*TRANSFER, *(ANSWERS if sampling.private else ()), UPDATE), repeats=True)

    def item_bytes(self) -> int:
        return 2 * LIMBS * RESIDUE_BYTES  # c0 and c1; what a last block has beyond d fits the overhead

    def user_bytes(self, release: Release) -> int:
        return max(CIPHERTEXT_BYTES, ENTRY_BYTES * self.weighting(release).entries) + NONCE_BYTES + TAG_BYTES

    def weighting(self, release: Release) -> Weighting:
        """The weights of ``release`` as they can be looked up."""
        silos = release.facts.silos
        if release.user_weighting not in ("uniform", "records"):
            raise ConfigError(
                "lattice weighs single users with weights that sum to at most 1 over silos, and this method's silos "
                "send one vector for all of theirs, or weigh nobody; take name = 'masked'",
                location="aggregation.name",
                value="lattice",
            )
        if release.user_weighting == "uniform":
            return Weighting(1, silos, uniform=True)
        if self.max_units < silos:
            least = f"{silos}" if self.count_unit == 1 else f"{silos}, times count_unit: {silos * self.count_unit}"
            raise ConfigError(
                f"at least the number of silos ({least}), so that each may count one, not {self.max_records}",
                location="aggregation.max_records",
                value=self.max_records,
            )
        return Weighting(self.max_units // silos, silos, unit=self.count_unit)

    def check(self, release: Release, rounds: int) -> None:
        facts = release.facts
        self.weighting(release)
        for value, least, most, location, what in (
            (facts.silos, 2, None, "data.silos", "silos: the dealer and the keeper of a table are two"),
            (facts.users, 1, MAX_USERS, "data.users", "users: every silo gets up to 49 KB for each"),
            (facts.dimension, 1, MAX_DIMENSION, "model", "parameters"),
        ):
            if value < least or (most is not None and value > most):
                wanted = f"from {least} to {most:,}" if most is not None else f"at least {least}"
                raise ConfigError(
                    f"lattice takes {wanted} {what}, not {value:,}; take aggregation.name = 'masked'",
                    location=location,
                    value=value,
                )
        self._check_noise(release)

    def _check_noise(self, release: Release) -> None:
        facts, scale, units = release.facts, release.silo_noise_std, release.encoding.integer_limit
        shares = math.sqrt(max(1, facts.silos - release.dropout_tolerance))
        sigma = scale * shares / units
        # No wrap-around: (U + deviations of the noise) 2^76 + dithers + encryptions of zero < q / 2.
        largest = math.ceil(largest_total(release) + facts.silos + 1) << WEIGHT_BITS
        room = largest + facts.silos * ((1 << DITHER_BITS) + ZERO_ENCRYPTION) < MODULUS // 2
        if scale < MIN_NOISE * units:
            reason = (
                f"at least {MIN_NOISE * shares:.3g} with {facts.silos} silos: one silo's noise covers the errors of "
                "the ciphertexts, whoever else is missing; take 'masked' for less"
            )
        elif scale * 2 ** (WEIGHT_BITS - DITHER_BITS) > MAX_SCALE or not room:
            reason = "this noise does not fit lattice; use less (a larger epsilon), or aggregation.name = 'masked'"
        else:
            return
        raise ConfigError(
            f"{reason} (the noise multiplier is {sigma:.4g})", location="privacy.noise_multiplier", value=sigma
        )

    def caveats(self, release: Release) -> tuple[Caveat, ...]:
        return (ASSUMPTIONS,)

    def costs(self, release: Release, rounds: int) -> Mapping[str, int]:
        facts, weighting = release.facts, self.weighting(release)
        blocks = blocks_of(facts.dimension)
        looked_up = 2 * weighting.entries * ENTRY_BYTES + INDEX_BYTES + ENTRY_BYTES  # of a user, as dealer and keeper
        once = CIPHERTEXT_BYTES + facts.users * INDEX_BYTES + -(-facts.users // facts.silos) * looked_up
        gets, sends = sampling_bytes(release)  # where nobody is sampled, weights are sent once
        return {
            "update_bytes": ENTRY_BYTES * (facts.dimension + blocks * N) + sends,
            "request_bytes": 8 * facts.dimension + gets,
            "setup_bytes": once if gets else once + weight_bytes(facts.users, facts.dimension),
            "ciphertexts": blocks,
        }

    def advice(self, release: Release, rounds: int) -> str:
        """How long a round takes, by measurements of one block, and how many records of a person count."""
        facts, weighting = release.facts, self.weighting(release)
        ciphertexts = -(-facts.users // users_together(facts.dimension))
        products = min(ciphertexts, facts.users / release.participation.groups)
        finishing, masking = seconds_per_block()
        each = products * seconds_per_product() + finishing + (facts.silos - 1) * masking
        seconds = blocks_of(facts.dimension) * each
        took = f"A round takes a silo about {seconds:.2g} s of computing here, beyond training."
        if weighting.uniform:
            return took
        units = "" if weighting.unit == 1 else f", in units of {weighting.unit}, rounded up (aggregation.count_unit)"
        most = f"{weighting.most:,} records of a person count in each silo at most (aggregation.max_records)"
        return f"{took} {most}{units}."

    def notes(self, release: Release, counts: IntArray) -> tuple[str, ...]:
        """Whom the cap on record counts touches."""
        weighting, facts = self.weighting(release), release.facts
        touched = (counts > weighting.most).any(axis=0)
        if weighting.uniform or not touched.any():
            return ()
        note = (
            f"lattice counts at most {weighting.most} records of a person in a silo (aggregation.max_records = "
            f"{self.max_records} over {facts.silos} silos): {int(touched.sum())} of the "
            f"{int((counts > 0).any(axis=0).sum())} people with records have more"
        )
        if len(counts) < facts.silos:  # one silo's own: the weights are nobody's to know
            return (f"{note} here.",)
        exact = (counts[:, touched] / counts[:, touched].sum(axis=0)).max(axis=0).mean()
        capped = weighting.in_the_clear(counts[:, touched]).max(axis=0).mean()
        return (
            f"{note}. The mean of their largest weights is {capped:.3f} instead of {exact:.3f}: records weigh less "
            f"where they are many. With name = 'lattice', a larger max_records (up to {MAX_RECORDS:,}, or with "
            "count_unit that many times as many) touches fewer people.",
        )

    def server(self, context: AggregationContext, secrets: Secrets) -> LatticeServer:
        return LatticeServer(self._scheme(context), context, secrets)

    def silo(
        self, context: AggregationContext, index: int, counts: IntArray, secrets: Secrets, identity: SigningKey
    ) -> LatticeSilo:
        return LatticeSilo(self._scheme(context), context, index, counts, secrets, identity)

    def _scheme(self, context: AggregationContext) -> Scheme:
        facts = context.facts
        roles = Roles(facts.users, facts.silos)
        sampling = context.release.user_sampling
        rule = None if sampling.everybody else SlotRule.of(sampling)
        return Scheme(self.weighting(context.release), roles, rule, facts.dimension, self.workers)


def automatic(release: Release, workers: int) -> LatticeWeighting:
    """What ``aggregation.name = "auto"`` takes where it takes ``lattice``: of many users fewer records count."""
    facts = release.facts
    of_a_record = 2 * ENTRY_BYTES * -(-facts.users // facts.silos)  # one entry of each table that is dealt, or kept
    most = max(facts.silos, MAX_TABLE_BYTES // of_a_record - 1)
    return LatticeWeighting(max_records=min(LatticeWeighting.max_records, most), workers=workers)


def automatic_misfit(release: Release) -> str:
    """Why ``aggregation.name = "auto"`` does not take ``lattice`` for this release; empty if it does."""
    facts, sampling = release.facts, release.user_sampling
    if release.user_weighting is None or (release.user_weighting != "records" and not sampling.private):
        return (
            "there are no record counts to hide" if release.exchange is None else "lattice hides counts of weights only"
        )
    if facts.silos < 2 or facts.users > MAX_USERS:
        return f"lattice takes two silos or more and up to {MAX_USERS:,} users"
    gets, _ = sampling_bytes(release)
    if gets > MAX_SAMPLED_BYTES:
        return f"lattice would send {gets / 1e6:,.0f} MB to every silo in every sampled round"
    return ""


def sampling_bytes(release: Release) -> tuple[int, int]:
    """What a silo gets and sends in a round because users are sampled, model and update apart; 0 where nobody is."""
    facts, sampling = release.facts, release.user_sampling
    if sampling.everybody:
        return 0, 0
    gets, sends = SlotRule.of(sampling).transfer_bytes(Roles(facts.users, facts.silos))
    return gets + weight_bytes(facts.users, facts.dimension), sends


ASSUMPTIONS: Final = Caveat(
    "lattice-assumptions",
    "Towards the server and the silos the guarantee is computational: hidden record counts (and, towards silos, the "
    "hidden sample) rest on ring-LWE with N = 4096 and a modulus of 96 bits (128 bits of security against classical "
    "computers; less than that against quantum computers), on Diffie-Hellman, and on parties that follow the protocol. "
    "The server and any one silo together learn everybody's record totals and the sample, and subtract that silo's "
    "noise; two neighbouring silos (the dealer and the keeper of a table) learn the totals and the sample of the users "
    "whose table they share.",
)
