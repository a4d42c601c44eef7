"""``paillier``: weighting by records although nobody learns anybody's record counts (ULDP-FL, Protocol 1, corrected).

Symbols: n the server's Paillier modulus, L = C_LCM, r_u blinds that all silos know and the server does not, D_u the
denominator of user u's weights and num_su their numerators (:class:`uldp.aggregation.ratios.Ratios`), a_suj the clipped
row in fixed-point units, not weighted, z_sj noise in the same units.

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
* Users without records, and counts beyond the range: see :mod:`uldp.aggregation.ratios`; ``check`` checks the range.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from uldp.aggregation import offers
from uldp.aggregation.base import Aggregation, AggregationContext, largest_total
from uldp.aggregation.key_agreement import AGREE_KEYS
from uldp.aggregation.layout import Layout, PaillierScheme
from uldp.aggregation.masked import ONE_SILO
from uldp.aggregation.paillier_messages import BLIND_COUNTS, CHOICES, FIXED_WEIGHTS
from uldp.aggregation.paillier_server import PaillierServer
from uldp.aggregation.paillier_silo import PaillierSilo
from uldp.aggregation.ratios import (
    MAX_PSEUDO_COUNT,
    PSEUDO_COUNT,
    Ratios,
    RecordRatios,
    UniformRatios,
    common_multiple,
    weights_in_the_clear,
)
from uldp.caveats import Caveat, Severity
from uldp.crypto import randomisers
from uldp.crypto.keys import SigningKey
from uldp.data.federation import IntArray
from uldp.errors import ConfigError, require
from uldp.privacy.releases import Release
from uldp.protocol.turns import UPDATE, Route
from uldp.rng import Secrets

SECURE_BITS: Final = 3072
MIN_BITS: Final = 128
MAX_BITS: Final = 16384
DECRYPTION_PER_BIT: Final = 0.28
SQUARING: Final = 0.85
"""Costs in multiplications modulo n^2, measured at 3072 bits."""


@dataclass(frozen=True)
class PaillierWeighting(Aggregation):
    """Neither the server nor any silo learns anybody's record counts, nor a silo who was sampled."""

    key_bits: int = SECURE_BITS
    slots: int | None = None
    """Coordinates in one ciphertext; None for what takes less time."""
    max_records: int = 480
    """N_max: of a user at most floor(N_max / |S|) records in each silo count for the weights."""
    pseudo_count: int = PSEUDO_COUNT
    """g: every user has 1/g record more, which no silo holds."""
    workers: int = field(default=1, repr=False)  # two parties may differ in it: no part of what is agreed on

    name: ClassVar[str] = "paillier"
    summary: ClassVar[str] = "the server sees the noised total only; no single party sees anybody's record counts"
    hides_counts: ClassVar[bool] = True
    needs_key_agreement: ClassVar[bool] = True
    hides_sample: ClassVar[bool] = True
    rounding: ClassVar[float] = 1

    def __post_init__(self) -> None:
        if not MIN_BITS <= self.key_bits <= MAX_BITS or self.key_bits % 16:
            raise ConfigError(
                f"a multiple of 16 from {MIN_BITS} to {MAX_BITS} ({SECURE_BITS} is secure), not {self.key_bits}",
                location="aggregation.key_bits",
                value=self.key_bits,
            )
        if self.slots is not None and self.slots < 1:
            raise ConfigError(f"at least 1, not {self.slots}", location="aggregation.slots", value=self.slots)
        require(self.max_records >= 1, "aggregation.max_records", self.max_records, "at least 1")
        require(
            1 <= self.pseudo_count <= MAX_PSEUDO_COUNT,
            "aggregation.pseudo_count",
            self.pseudo_count,
            f"from 1 to {MAX_PSEUDO_COUNT}",
        )

    @property
    def secure(self) -> bool:
        return self.key_bits >= SECURE_BITS

    def route(self, release: Release) -> Route:
        setup = AGREE_KEYS + BLIND_COUNTS
        if release.user_sampling.private:
            return Route(setup, (*CHOICES, UPDATE))
        return Route(setup + (FIXED_WEIGHTS if release.user_sampling.everybody else ()))

    def item_bytes(self) -> int:
        return self.key_bits // 4

    def user_bytes(self, release: Release) -> int:
        if release.user_sampling.private:
            return offers.user_bytes(release.user_sampling.slots[1], self.item_bytes())
        return self.item_bytes()

    def check(self, release: Release, rounds: int) -> None:
        self.layout(release, rounds)

    def ratios(self, release: Release) -> Ratios:
        """The weights of ``release`` as they can be applied under encryption."""
        facts = release.facts
        if release.user_weighting not in ("uniform", "records"):
            raise ConfigError(
                "paillier weighs single users with weights that sum to at most 1 over silos, and this method's silos "
                "send one vector for all of theirs, or weigh nobody; take name = 'masked'",
                location="aggregation.name",
                value="paillier",
            )
        if release.user_weighting == "uniform":
            return UniformRatios(facts.silos)
        require(
            self.max_records >= facts.silos,
            "aggregation.max_records",
            self.max_records,
            f"at least the number of silos ({facts.silos}), so that each may count one",
        )
        return RecordRatios(self.max_records // facts.silos, facts.silos, self.pseudo_count)

    def layout(self, release: Release, rounds: int) -> Layout:
        """How coordinates lie in plaintexts; a ``ConfigError`` if not even one fits."""
        multiple, width = self._width(release)
        if not multiple:
            raise self._width_error(release)
        most = (self.key_bits - 1) // width
        if self.slots is not None and self.slots > most:
            raise ConfigError(
                f"at most {most} {'coordinate' if most == 1 else 'coordinates'} of {width} bits fit a ciphertext, not "
                f"{self.slots}; lower aggregation.max_records or aggregation.pseudo_count",
                location="aggregation.slots",
                value=self.slots,
            )
        slots = self.slots or (most if self._packing_pays(width, most, release.facts.dimension, rounds) else 1)
        return Layout(multiple, width, slots, release.facts.dimension, release.facts.silos)

    def _width(self, release: Release) -> tuple[int, int]:
        """C_LCM and the bits of one coordinate with its sign; 0 and 0 if one does not fit a plaintext."""
        ratios, largest = self.ratios(release), math.ceil(largest_total(release) + release.facts.silos)
        multiple = common_multiple(ratios, self.key_bits)
        width = (multiple * largest).bit_length() + 1
        return (multiple, width) if multiple and width < self.key_bits else (0, 0)

    def _width_error(self, release: Release) -> ConfigError:
        """What to change so that a coordinate fits a plaintext."""
        remedies = []
        smaller = [g for g in (8, 4, 2, 1) if g < self.pseudo_count]
        fits = next((g for g in smaller if replace(self, pseudo_count=g)._width(release)[0]), None)
        if fits is not None:
            remedies.append(f"take aggregation.pseudo_count = {fits}, with which it does")
        allowed = self._max_records(release, lambda kind: kind._width(release)[0] > 0)
        if allowed is not None:
            remedies.append(f"lower aggregation.max_records to {allowed}")
        if not self.secure:
            remedies.append("raise aggregation.key_bits")
        return ConfigError(
            f"the common multiple of the weights of up to {self.max_records} records of a person, with "
            f"{release.facts.users} users and this noise, does not fit a key of {self.key_bits} bits; "
            + (", or ".join(remedies) or "take aggregation.name = 'masked'"),
            location="aggregation.max_records",
            value=self.max_records,
        )

    def _packing_pays(self, width: int, slots: int, dimension: int, rounds: int) -> bool:
        """Whether a round is faster with ``slots`` coordinates per ciphertext, counted in multiplications.

        Silos work at the same time, so one of them counts, and the server.
        """

        def per_coordinate(slots: int) -> float:
            table = randomisers.is_worthwhile(-(-dimension // slots) * rounds, self.key_bits)
            residue = randomisers.lookup_cost(self.key_bits) if table else randomisers.direct_cost(self.key_bits)
            packing = width * SQUARING if slots > 1 else 0.0
            return packing + (DECRYPTION_PER_BIT * self.key_bits + residue) / slots

        return per_coordinate(slots) < per_coordinate(1)

    def caveats(self, release: Release) -> tuple[Caveat, ...]:
        lines = [ONE_SILO] if release.facts.silos == 1 else []
        if not self.secure:
            lines.append(
                Caveat(
                    "insecure-key",
                    f"INSECURE KEY: aggregation.key_bits = {self.key_bits} is for tests; a silo that breaks the key "
                    f"learns everybody's record totals and the sample. Take {SECURE_BITS}.",
                    Severity.WEAKENS,
                )
            )
        lines.append(
            Caveat(
                "paillier-assumptions",
                "Hidden record counts (and, towards silos, the hidden sample) rest on the Paillier and Diffie-Hellman "
                "assumptions, on a server that follows the protocol, and on nobody colluding: the server and any one "
                "silo together learn everybody's record totals and the sample, and subtract that silo's noise.",
            )
        )
        return tuple(lines)

    def costs(self, release: Release, rounds: int) -> Mapping[str, int]:
        layout, facts, everybody = self.layout(release, rounds), release.facts, release.user_sampling.everybody
        size = layout.ciphertexts * self.item_bytes()
        weights = 0 if everybody else facts.users * self.user_bytes(release)
        asked = 8 * facts.dimension + weights
        once = facts.users * self.item_bytes() if everybody else 0
        return {
            "update_bytes": size,
            "request_bytes": asked,
            "setup_bytes": once + facts.users * self.key_bits // 8,
            "ciphertexts": layout.ciphertexts,
            "slots": layout.slots,
        }

    def advice(self, release: Release, rounds: int) -> str:
        """Which limits on record counts would let several coordinates share a ciphertext."""
        if self.slots is not None or self.layout(release, rounds).slots > 1 or release.user_weighting != "records":
            return ""
        found = []
        for pseudo_count in sorted({self.pseudo_count, 1}, reverse=True):
            other = replace(self, pseudo_count=pseudo_count)
            allowed = other._max_records(release, lambda kind: kind.layout(release, rounds).slots > 1)
            if allowed is not None:
                slots = replace(other, max_records=allowed).layout(release, rounds).slots
                changes = {
                    "max_records": (allowed, self.max_records),
                    "pseudo_count": (pseudo_count, self.pseudo_count),
                }
                named = [f"aggregation.{key} = {new}" for key, (new, old) in changes.items() if new != old]
                found.append(f"{' and '.join(named)} would let {slots} parameters share one")
        cheaper = ", or ".join(found)
        return f"A ciphertext holds one parameter; {cheaper} (and change the weights somewhat)." if found else ""

    def _max_records(self, release: Release, holds: Callable[[PaillierWeighting], bool]) -> int | None:
        """An N_max up to the present one for which ``holds``, and no longer for the next; None if none is found."""
        if release.user_weighting != "records":
            return None
        if holds(self):
            return self.max_records
        silos = release.facts.silos
        low, high = silos - 1, silos
        while high < self.max_records and holds(replace(self, max_records=high)):
            low, high = high, 2 * high
        high = min(high, self.max_records)  # holds at low (or that is too small to try), does not at high
        between = range(low + 1, high)
        low += bisect_left(between, True, key=lambda records: not holds(replace(self, max_records=records)))
        return low if low >= silos else None

    def notes(self, release: Release, counts: IntArray) -> tuple[str, ...]:
        """Whom the cap on record counts touches, and what it does to their weights."""
        ratios, facts = self.ratios(release), release.facts
        if not isinstance(ratios, RecordRatios):
            return ()
        touched = (counts > ratios.cap).any(axis=0)
        if not touched.any():
            return ()
        note = (
            f"paillier counts at most {ratios.cap} records of a person in a silo (aggregation.max_records = "
            f"{self.max_records} over {facts.silos} silos): {int(touched.sum())} of the "
            f"{int((counts > 0).any(axis=0).sum())} people with records have more"
        )
        if len(counts) < facts.silos:  # one silo's own: the weights are nobody's to know
            return (f"{note} here.",)
        exact = (counts[:, touched] / counts[:, touched].sum(axis=0)).max(axis=0).mean()
        capped = weights_in_the_clear(ratios, counts[:, touched]).max(axis=0).mean()
        return (
            f"{note}. The mean of their largest weights is {capped:.3f} instead of {exact:.3f}: records weigh less "
            "where they are many, which can cost accuracy. A larger max_records touches fewer people"
            + ("." if self.pseudo_count == 1 else ", and a smaller aggregation.pseudo_count makes room for it."),
        )

    def server(self, context: AggregationContext, secrets: Secrets) -> PaillierServer:
        return PaillierServer(self._scheme(context), context, secrets)

    def silo(
        self, context: AggregationContext, index: int, counts: IntArray, secrets: Secrets, identity: SigningKey
    ) -> PaillierSilo:
        return PaillierSilo(self._scheme(context), context, index, counts, secrets, identity)

    def _scheme(self, context: AggregationContext) -> PaillierScheme:
        release, rounds = context.release, context.rounds
        return PaillierScheme(self.key_bits, self.workers, self.layout(release, rounds), self.ratios(release))
