"""The server's state machine of ``lattice``; the protocol is in :mod:`uldp.aggregation.lattice`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from io import BytesIO

import numpy as np

from uldp.aggregation.base import AggregationContext, Sample, ServerSide, check_total
from uldp.aggregation.key_agreement import KeyRequest, SealedSeeds, SiloKey, SiloKeys, check_key, check_seeds, relay
from uldp.aggregation.lattice_lookup import (
    ENTRY_BYTES,
    pack_indices,
    pack_numbers,
    pads_at,
    unpack_indices,
    unpack_numbers,
)
from uldp.aggregation.lattice_messages import (
    AnswerRequest,
    LookUp,
    MaskedCounts,
    RingKey,
    RingWeights,
    SlotEntries,
    SlotRequest,
    TableEntries,
    Transfer,
    TransferRequest,
    WeightShares,
)
from uldp.aggregation.lattice_ring import (
    AT_ONCE,
    Body,
    Scheme,
    cut,
    decoded,
    public_components,
    public_element,
    setup_id,
)
from uldp.aggregation.lattice_sampling import ServerTransfer
from uldp.crypto import ring
from uldp.crypto.keys import TAG_BYTES, AgreementKey, SharedKey
from uldp.crypto.ring import N, Polynomials
from uldp.crypto.ring_samples import bounded_errors, ternary
from uldp.data.federation import IntArray
from uldp.errors import MessageRefused
from uldp.protocol import messages as m
from uldp.protocol.turns import RequestType
from uldp.rng import Secrets
from uldp.vectors import Residues


class LatticeServer(ServerSide):
    """Holds the secret s; sees masked counts, blinded weights, and the noised total under every silo's zero."""

    def __init__(self, scheme: Scheme, context: AggregationContext, secrets: Secrets) -> None:
        super().__init__(context, secrets)
        self._scheme = scheme
        self._agreement = AgreementKey(secrets.child("pairing"))
        self._keys: SiloKeys | None = None
        self._setup = ""
        self._sealed: list[bytes] = []
        self._tables: list[bytes] = []
        self._indices: IntArray | None = None
        self._blinded: Polynomials | None = None
        self._fixed: RingWeights | None = None
        self._transfer: ServerTransfer | None = None
        self._transfers: dict[int, Transfer] = {}
        self._entries_of_round: dict[int, SlotEntries] = {}
        self._shares: list[bytes] = []

    @cached_property
    def _secret(self) -> Polynomials:
        """s, ternary, as evaluations."""
        stream = self._secrets.child("ring key", self._setup).stream()
        return ring.to_evaluations(ring.from_integers(ternary(stream, (N,))))

    @cached_property
    def _public(self) -> Polynomials:
        """b = -a s + e (step 1)."""
        stream = self._secrets.child("ring key error", self._setup).stream()
        error = ring.to_evaluations(ring.from_integers(bounded_errors(stream, 1)[0]))
        return ring.subtract(error, ring.multiply(public_element(self._setup), self._secret))

    def _shared(self, silo: int) -> SharedKey:
        """What the server shares with a silo."""
        assert self._keys is not None
        return self._agreement.with_peer(self._keys.publics[silo], f"silo {self._context.silos[silo]}")

    def ask(self, request: RequestType, silo: str) -> m.Message:
        index = self._context.silos.index(silo)
        if request is KeyRequest:
            return KeyRequest(self._agreement.public)
        if request is SiloKeys:
            assert self._keys is not None
            return self._keys
        if request is RingKey:
            return RingKey(self._sealed[index - 1] if index else b"", ring.pack(self._public))
        if request is LookUp:
            return self._look_up(index)
        if request is TransferRequest:
            return TransferRequest(self._round)
        if request is SlotRequest:
            return self.transfer.slot_request(index, self._transfers[self._scheme.roles.dealer(index)])
        if request is AnswerRequest:
            return AnswerRequest(self._round, self._entries_of_round[self._scheme.roles.keeper(index)].answers)
        if self._fixed is None:
            assert self._blinded is not None
            self._fixed = RingWeights(self._encrypted(self._blinded, 0))
        return self._fixed

    def check(self, silo: str, body: m.Message) -> None:
        location, index, roles = f"silo {silo}", self._context.silos.index(silo), self._scheme.roles
        entries = self._scheme.weighting.entries
        match body:
            case SiloKey():
                check_key(self._context, silo, body, self._agreement.public)
                self._agreement.with_peer(body.public, location)
            case SealedSeeds():
                check_seeds(self._context, silo, body)
            case MaskedCounts(counts, tables):
                unpack_indices(counts, roles.users, entries, location)
                expected = len(roles.dealt_by(index)) * entries * ENTRY_BYTES + TAG_BYTES
                if len(tables) != expected:
                    reason = f"sealed tables of {len(tables)} bytes, {expected} are expected"
                    raise MessageRefused(reason, location=location, value=len(tables))
            case TableEntries(sealed):
                self._entries(index, sealed)
            case Transfer() | SlotEntries() | WeightShares():
                self.transfer.check(index, body, location)
            case _:
                pass

    def collect(self, request: RequestType, responses: Mapping[str, m.Message]) -> None:
        silos, roles = self._context.silos, self._scheme.roles
        if request is KeyRequest:
            self._keys = relay(self._context, responses)
            self._setup = setup_id(self._context.digest, self._agreement.public, self._keys.publics)
        elif request is SiloKeys:
            first = responses[silos[0]]
            self._sealed = list(first.sealed) if isinstance(first, SealedSeeds) else []
        elif request is RingKey:
            bodies = [body for name in silos if isinstance(body := responses[name], MaskedCounts)]
            self._tables = [body.tables for body in bodies]
            entries = self._scheme.weighting.entries
            counts = [unpack_indices(body.counts, roles.users, entries, "server") for body in bodies]
            self._indices = np.sum(counts, axis=0) % entries  # alpha_u: the masks cancel, rho_u stays (step 2)
        elif request is LookUp:
            blinded = np.zeros((roles.users, ring.LIMBS, 1), dtype=np.uint64)
            for keeper, name in enumerate(silos):
                if isinstance(body := responses[name], TableEntries):
                    blinded[roles.dealt_by(roles.dealer(keeper))] = self._entries(keeper, body.entries)
            self._blinded, self._tables = blinded, []
        else:
            self._collect_transfer([responses[name] for name in silos])

    def _collect_transfer(self, responses: list[m.Message]) -> None:
        """The same for the exchanges of a round; responses are in the order of the silos."""
        for index, body in enumerate(responses):
            match body:
                case Transfer():
                    self._transfers[index] = body
                case SlotEntries():
                    self._entries_of_round[index] = body
                case WeightShares(_, shares):
                    self._shares.append(shares)

    def begin_round(self, round_: int, sample: Sample | None) -> None:
        super().begin_round(round_, sample)
        self._transfers, self._entries_of_round, self._shares = {}, {}, []
        if (rule := self._scheme.rule) is not None:
            assert self._blinded is not None
            keys = tuple(self._shared(index) for index in range(len(self._context.silos)))
            roles, secrets = self._scheme.roles, self._secrets
            self._transfer = ServerTransfer(roles, rule, keys, self._blinded, secrets, self._setup, round_, sample)

    @property
    def transfer(self) -> ServerTransfer:
        """The round's, where users are sampled."""
        assert self._transfer is not None
        return self._transfer

    def weights(self) -> bytes:
        if self._scheme.rule is None:
            return b""
        numbers = self.transfer.numbers(self._entries_of_round, self._context.silos)
        return self._encrypted(numbers, self._round) + b"".join(self._shares)

    def prune_response(self, body: m.Message) -> m.Message:
        return MaskedCounts(body.counts, b"") if isinstance(body, MaskedCounts) else body

    def _look_up(self, keeper: int) -> LookUp:
        """Step 4: alpha_u goes to the keeper only, and nobody else can read it on the way."""
        dealer = self._scheme.roles.dealer(keeper)
        assert self._indices is not None
        indices = pack_indices(self._indices[self._scheme.roles.dealt_by(dealer)])
        return LookUp(self._tables[dealer], self._shared(keeper).seal(indices, "indices", self._setup, dealer))

    def _entries(self, keeper: int, sealed: bytes) -> Polynomials:
        """a_u = T_u[alpha_u] - k (step 4), of the users whose tables this keeper keeps."""
        location, dealer = f"silo {self._context.silos[keeper]}", self._scheme.roles.dealer(keeper)
        users = self._scheme.roles.dealt_by(dealer)
        entries = self._shared(keeper).open(sealed, "entries", self._setup, dealer, location=location)
        assert self._indices is not None
        pads = pads_at(
            self._shared(dealer).stream("pads", self._setup), self._scheme.weighting.entries, self._indices[users]
        )
        return ring.subtract(unpack_numbers(entries, len(users), location), pads)

    def _encrypted(self, numbers: Polynomials, round_: int) -> bytes:
        """Encryptions of numbers modulo q, one of each user: a nonce, then c0 = -c1 s + e + numbers (step 5).

        Errors and nonce, and with it c1, are bound to what is encrypted: no c1 and no error serves two encryptions.
        """
        content = hashlib.sha256(pack_numbers(numbers)).hexdigest()
        secrets = self._secrets.child("weights", self._setup, round_, content)
        nonce, stream = secrets.child("nonce").key, secrets.child("errors").stream()
        encrypted = BytesIO()
        encrypted.write(nonce)
        together, ciphertexts = self._scheme.together, self._scheme.ciphertexts
        for start in range(0, ciphertexts, AT_ONCE):
            some = range(start, min(start + AT_ONCE, ciphertexts))
            c1 = public_components(self._setup, round_, nonce, some)
            # Condition (a): the bound on the operator norm is checked, not expected.
            errors = bounded_errors(stream, len(c1))
            plain = self._scheme.joined(numbers[some.start * together : some.stop * together])
            error = ring.add(ring.to_evaluations(ring.from_integers(errors)), plain)
            encrypted.write(ring.pack(ring.subtract(error, ring.multiply(c1, self._secret))))
        return encrypted.getvalue()

    def check_vector(self, silo: str, vector: bytes) -> None:
        Body.unpack(vector, self._scheme, f"silo {silo}")

    def total(self, vectors: Mapping[str, bytes]) -> Residues:
        """The phase c0 + c1 s of the sum, decoded (step 4 of a round). Rounding it is post-processing."""
        body = Body.zero(self._scheme)
        for silo, vector in vectors.items():
            body.add(Body.unpack(vector, self._scheme, f"silo {silo}"))
        opened = ring.to_coefficients(ring.multiply(body.c1, self._secret))
        phase = ring.add(body.c0, cut(opened, self._scheme.dimension))
        return check_total(decoded(phase, len(vectors)), self._context)
