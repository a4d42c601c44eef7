"""A silo's state machine of ``lattice``; the protocol is in :mod:`uldp.aggregation.lattice`."""

from __future__ import annotations

import hashlib
from typing import Final
from weakref import WeakValueDictionary

import numpy as np

from uldp.aggregation.base import Accumulator, AggregationContext, BoundSecrets, RoundRequest, SiloSide, SiloUpdate
from uldp.aggregation.key_agreement import KeyRequest, PairwiseKeys, SealedSeeds, SiloKeys, pair_purpose
from uldp.aggregation.lattice_lookup import entries_of, pack_indices, tables, uniform_indices, unpack_indices
from uldp.aggregation.lattice_messages import (
    AnswerRequest,
    LookUp,
    MaskedCounts,
    RingKey,
    RingWeights,
    SlotRequest,
    TableEntries,
    TransferRequest,
)
from uldp.aggregation.lattice_ring import (
    AT_ONCE,
    CIPHERTEXT_BYTES,
    NONCE_BYTES,
    Body,
    Scheme,
    cut,
    noise,
    public_components,
    public_element,
    setup_id,
)
from uldp.aggregation.lattice_rows import row_products
from uldp.aggregation.lattice_sampling import SiloTransfer
from uldp.crypto import ring
from uldp.crypto.keys import KEY_BYTES, SharedKey, SigningKey
from uldp.crypto.ring import LIMBS, N, Polynomials
from uldp.crypto.ring_rows import weigh_rows
from uldp.crypto.ring_samples import errors, ternary, uniform_residues
from uldp.data.federation import IntArray
from uldp.errors import MessageRefused, ModelError
from uldp.privacy.releases.sums import check_rows
from uldp.protocol import messages as m
from uldp.rng import Secrets
from uldp.vectors import Integers, Residues, Rows, Vector

_SHARED: Final[WeakValueDictionary[bytes, Polynomials]] = WeakValueDictionary()
"""Ciphertexts that some silo of this process holds."""


class LatticeSilo(SiloSide):
    """Shares a secret with each other silo and with the server, and holds blinded weights under the server's key."""

    def __init__(
        self,
        scheme: Scheme,
        context: AggregationContext,
        index: int,
        counts: IntArray,
        secrets: Secrets,
        identity: SigningKey,
    ) -> None:
        super().__init__(context, index, counts, secrets)
        self._scheme = scheme
        # Frozen: rows are multiplied with the counts that the setup reported, or one user would weigh more than 1.
        self._counted = scheme.weighting.counted(counts)
        self._counted.flags.writeable = False
        self._pairwise = PairwiseKeys(context, index, secrets, identity)
        self._server_public = b""
        self._shared: dict[int, SharedKey] = {}
        self._server: SharedKey | None = None
        self._setup = ""
        self._seed: SharedKey | None = None
        self._public: Polynomials | None = None
        self._agreed: tuple[str, ...] = ()
        """Digests of the server's ring key and of the encrypted weights of the setup. Masks are bound to them."""
        self._fixed: Polynomials | None = None
        self._sampled: tuple[str, Polynomials] | None = None

    def respond(self, body: m.Message) -> m.Message:
        match body:
            case KeyRequest(modulus):
                if len(modulus) != KEY_BYTES:
                    raise MessageRefused(f"a server's key of {len(modulus)} bytes", location=self._location)
                answer = self._pairwise.introduce(modulus)
                self._server_public = modulus
                return answer
            case SiloKeys(publics):
                return self._pair(body, publics)
            case RingKey(sealed, public):
                return self._counts_and_tables(sealed, public)
            case LookUp(sealed, indices):
                return self._looked_up(sealed, indices)
            case RingWeights(weights):
                self._fixed = self._ciphertexts(weights, 0, self._blinds("blinds"))
                self._agreed = (self._agreed[0], hashlib.sha256(weights).hexdigest())
                return m.Accepted()
            case TransferRequest(round_):
                return self._transfer(round_).transfer()
            case SlotRequest(round_):
                return self._transfer(round_).slot_entries(body)
            case AnswerRequest(round_):
                return self._transfer(round_).shares(body)
            case _:
                return super().respond(body)

    # --- setup --------------------------------------------------------------------------------------------------------

    def _pair(self, keys: SiloKeys, publics: list[bytes]) -> SealedSeeds:
        shared = self._pairwise.pair(keys, self._server_public)
        if self._server_public in publics:
            raise MessageRefused("the server's key is a silo's", location=self._location)
        server = self._pairwise.with_server(self._server_public)
        self._shared, self._server = shared, server
        self._setup = setup_id(self._context.digest, self._server_public, publics)
        return SealedSeeds(self._pairwise.sealed_seeds(shared, self._setup))

    def _counts_and_tables(self, sealed: bytes, public: bytes) -> MaskedCounts:
        """Steps 2 and 3: masked counts for the server, and for the keeper the tables of the users that this silo deals.

        rho_u follows from this silo's own secrets and the setup, mu_u from the common seed, the pads from the key that
        this silo shares with the server. All of them are bound to the setup: none serves two.
        """
        key = ring.unpack(public, (LIMBS, N), self._location)
        secret = self._pairwise.common_seed(self._shared, sealed, self._setup)
        seed = SharedKey(secret, b"common seed", self._secrets.simulated)
        weighting, dealt = self._scheme.weighting, self._scheme.roles.dealt_by(self._index)
        rotations = uniform_indices(
            self._secrets.child("rotations", self._setup).stream(), weighting.entries, len(dealt)
        )
        masked = self._masked_counts()
        masked[dealt] += rotations
        self._seed, self._public, self._agreed = seed, key, (hashlib.sha256(public).hexdigest(),)
        pads = self._with_server.stream("pads", self._setup)
        weights = ring.from_integers(weighting.table())
        values = (ring.subtract(weights, blind) for blind in self._blinds("blinds")[dealt])
        dealing = b"".join(tables(values, rotations, pads))
        keeper = self._scheme.roles.keeper(self._index)
        purpose = self._purpose(keeper, "tables", self._index)
        return MaskedCounts(pack_indices(masked % weighting.entries), self._shared[keeper].seal(dealing, *purpose))

    def _masked_counts(self) -> IntArray:
        """n_su under masks modulo M that cancel over the silos."""
        entries, masked = self._scheme.weighting.entries, self._counted.copy()
        for other, shared in self._shared.items():
            masks = uniform_indices(shared.stream(*self._purpose(other, "counts")), entries, len(masked))
            masked += -masks if self._index > other else masks
        return masked

    def _looked_up(self, sealed: bytes, indices: bytes) -> TableEntries:
        """Step 4, as keeper: the entry that the server asks for, of tables whose pads this silo does not know.

        Nothing of it is kept.
        """
        location, entries = self._location, self._scheme.weighting.entries
        dealer = self._scheme.roles.dealer(self._index)
        users = len(self._scheme.roles.dealt_by(dealer))
        asked = self._with_server.open(indices, "indices", self._setup, dealer, location=location)
        places = unpack_indices(asked, users, entries, location)
        opened = self._shared[dealer].open(sealed, *self._purpose(dealer, "tables", dealer), location=location)
        found = entries_of(opened, entries, places, location)
        return TableEntries(self._with_server.seal(found, "entries", self._setup, dealer))

    @property
    def _with_server(self) -> SharedKey:
        if self._server is None:
            raise MessageRefused("the server's key has not come", location=self._location)
        return self._server

    def _purpose(self, other: int, purpose: str, *further: str | int) -> tuple[str | int, ...]:
        return pair_purpose(self._context, self._index, other, purpose, self._setup, *further)

    def _blinds(self, purpose: str, *further: str | int) -> Polynomials:
        """mu_u of all users (users, 2, 1): the same in all silos, unknown to the server."""
        if self._seed is None:
            raise MessageRefused("the common seed has not come", location=self._location)
        return uniform_residues(self._seed.stream(purpose, self._setup, *further), (self._scheme.roles.users, LIMBS, 1))

    def _transfer(self, round_: int) -> SiloTransfer:
        """This silo's part of the transfers of a round in which users are sampled."""
        rule = self._scheme.rule
        if rule is None or self._seed is None:
            raise MessageRefused("nothing is transferred: all users take part", location=self._location)
        return SiloTransfer(
            roles=self._scheme.roles,
            rule=rule,
            index=self._index,
            shared=self._shared,
            server=self._with_server,
            seed=self._seed,
            blinds=self._blinds("blinds"),
            secrets=self._secrets,
            setup=self._setup,
            round=round_,
            location=self._location,
        )

    def _ciphertexts(self, data: bytes, round_: int, blinds: Polynomials) -> Polynomials:
        """(c0 + mu, c1) of all ciphertexts (ciphertexts, 2, 2, N), evaluations (step 5)."""
        users, expected = self._scheme.roles.users, self._scheme.weight_bytes
        if len(data) != expected:
            reason = f"weights of {users} users take {expected} bytes, not {len(data)}"
            raise MessageRefused(reason, location=self._location, value=len(data))
        # All silos get the same: those of one process share them.
        known = hashlib.sha256(f"{self._setup} {round_} ".encode() + ring.pack(blinds))
        known.update(data)
        if (found := _SHARED.get(known.digest())) is None:
            found = _SHARED[known.digest()] = self._unblinded(data, round_, blinds)
        return found

    def _unblinded(self, data: bytes, round_: int, blinds: Polynomials) -> Polynomials:
        """Some ciphertexts at a time: what is needed besides the result is small."""
        ciphertexts, together, nonce = self._scheme.ciphertexts, self._scheme.together, data[:NONCE_BYTES]
        found = np.empty((ciphertexts, 2, LIMBS, N), dtype=np.uint64)
        for start in range(0, ciphertexts, AT_ONCE):
            some = range(start, min(start + AT_ONCE, ciphertexts))
            part = data[NONCE_BYTES + CIPHERTEXT_BYTES * some.start : NONCE_BYTES + CIPHERTEXT_BYTES * some.stop]
            c0 = ring.unpack(part, (len(some), LIMBS, N), self._location)  # refuses what is not in the ring
            blinding = self._scheme.joined(blinds[some.start * together : some.stop * together])
            found[some.start : some.stop, 0] = ring.add(c0, blinding)
            found[some.start : some.stop, 1] = public_components(self._setup, round_, nonce, some)
        found.flags.writeable = False
        return found

    # --- rounds -------------------------------------------------------------------------------------------------------

    def check_request(self, request: RoundRequest) -> None:
        if bool(request.weights) == (self._fixed is not None):
            raise MessageRefused(
                "encrypted weights come once at setup, or with every sampled round", location=self._location
            )
        self._round_weights(request)

    def _round_weights(self, request: RoundRequest) -> Polynomials:
        """A round's weights; read once, before anything is charged for the round, for they may be malformed."""
        if self._fixed is not None:
            return self._fixed
        if self._sampled is None or self._sampled[0] != request.digest:
            split = self._scheme.weight_bytes
            added = self._transfer(request.round).added(request.weights[split:])
            self._sampled = (request.digest, self._ciphertexts(request.weights[:split], request.round, added))
        return self._sampled[1]

    def accumulator(self, weights: Vector | None, request: RoundRequest) -> _LatticeAccumulator:
        return _LatticeAccumulator(self, self._round_weights(request), request)

    @property
    def context(self) -> AggregationContext:
        return self._context

    @property
    def scheme(self) -> Scheme:
        return self._scheme

    def weigh(self, users: IntArray, rows: Rows, weighted: Integers) -> int:
        """X_su = n_su x_su; rows that are not finite count as zero, and their number is returned."""
        # Truncated toward zero, and the norm checked in integers: ||x_su|| <= 2^24.
        encoding = self._context.release.encoding
        return weigh_rows(encoding, rows, self._counted[users], weighted, self._scheme.threads)

    def finished(self, total: Polynomials, bound_secrets: BoundSecrets) -> Body:
        """Step 3 of a round: an encryption of zero for each block, and noise on every coefficient that leaves.

        (b v + f0, a v + f1) with fresh v, f0, f1 hides what c1 would tell the server, who knows s: sum_u c1_u X_su. All
        of it, and the noise, is bound to the sum that it covers.
        """
        scale, blocks = self._context.release.silo_noise_std, self._scheme.blocks
        digest = hashlib.sha256(np.ascontiguousarray(total).data).hexdigest()

        def secret(purpose: str) -> Secrets:
            return bound_secrets(purpose, (repr(scale), digest))

        assert self._public is not None
        zero = secret("zero encryption")
        v = ring.to_evaluations(ring.from_integers(ternary(zero.child("v").stream(), (blocks, N))))
        f0, f1 = (ring.from_integers(errors(zero.child(name).stream(), (blocks, N))) for name in ("f0", "f1"))
        c0 = ring.add(ring.to_coefficients(ring.add(total[:, 0], ring.multiply(v, self._public))), f0)
        c1 = ring.add(ring.add(total[:, 1], ring.multiply(v, public_element(self._setup))), ring.to_evaluations(f1))
        dimension = self._scheme.dimension
        z = noise(scale, dimension, secret("noise").stream(), secret("dither").stream())
        return Body(ring.add(cut(c0, dimension), z), c1)

    def protected(self, body: Body, request: RoundRequest) -> bytes:
        """``body`` under pair masks modulo both primes, of the silos that are present; they cancel in the total."""
        present = request.present
        masked = Body(body.c0, body.c1)
        for other, shared in self._shared.items():
            if present is None or present[other]:
                # Silos that got other ring keys, or other weights, do not come together.
                about: tuple[str | int, ...] = (request.round, request.digest, *self._agreed)
                stream = shared.stream(*self._purpose(other, "update", *about))
                masked.add(Body.uniform(self._scheme, stream), negative=self._index > other)
        return masked.pack()

    def repeat_update(self, noised_sum: bytes, request: RoundRequest) -> bytes:
        # The same body, its noise and its zero included, under new masks (docs/decisions/0012).
        return self.protected(Body.unpack(noised_sum, self._scheme, self._location), request)

    def protect_metrics(self, residues: Residues, request: RoundRequest) -> Residues:
        return self._pairwise.mask(residues, self._shared, "metrics", request.round, request.digest, self._setup)


class _LatticeAccumulator(Accumulator):
    """sum_u X_su (c0_u, c1_u) over all users of a round."""

    def __init__(self, silo: LatticeSilo, ciphertexts: Polynomials, request: RoundRequest) -> None:
        release = silo.context.release
        self._silo, self._request = silo, request
        # Where users take turns, whose turn it is, is public: nobody else is accumulated.
        members = release.participation.members(release.facts.users, request.round)
        self._products = row_products(silo.scheme, ciphertexts, members)
        self._left_out = 0

    def add(self, users: IntArray | None, rows: Rows) -> None:
        if users is None:
            raise ModelError("lattice weighs rows of single users", location="method.silo")
        check_rows(rows, self._silo.scheme.dimension)
        self._left_out += self._products.add(users, rows, self._silo.weigh)

    def release(self, bound_secrets: BoundSecrets) -> SiloUpdate:
        body = self._silo.finished(self._products.total(), bound_secrets)
        return SiloUpdate(self._silo.protected(body, self._request), 0, self._left_out, body.pack())
