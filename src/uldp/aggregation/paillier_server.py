"""The server's machine of ``paillier``; the protocol is in :mod:`uldp.aggregation.paillier`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property

import gmpy2
import numpy as np
from gmpy2 import mpz

from uldp.aggregation import offers
from uldp.aggregation.base import AggregationContext, Sample, ServerSide, check_total, out_of_range
from uldp.aggregation.key_agreement import KeyRequest, SealedSeeds, SiloKey, SiloKeys, check_key, check_seeds, relay
from uldp.aggregation.layout import PaillierScheme
from uldp.aggregation.paillier_messages import BlindedShares, Choices, ChoicesRequest, EncryptedWeights, SealedSeed
from uldp.crypto.integers import pack, unpack
from uldp.crypto.paillier import PrivateKey, signed_residue
from uldp.crypto.transfer import Sender, check_point
from uldp.errors import MessageRefused
from uldp.protocol import messages as m
from uldp.protocol.turns import RequestType
from uldp.rng import Secrets
from uldp.vectors import Residues


class PaillierServer(ServerSide):
    """Holds the key; sees blinded counts, one masked ciphertext per silo and coordinate, and the noised total."""

    def __init__(self, scheme: PaillierScheme, context: AggregationContext, secrets: Secrets) -> None:
        super().__init__(context, secrets)
        self._scheme = scheme
        self._layout = scheme.layout
        self._keys: SiloKeys | None = None
        self._sealed: list[bytes] = []
        self._inverses: list[mpz] = []
        self._fixed: EncryptedWeights | None = None
        self._points = b""

    @cached_property
    def key(self) -> PrivateKey:
        return PrivateKey.generate(self._scheme.key_bits, self._secrets.child("paillier").stream())

    @property
    def _modulus(self) -> bytes:
        public = self.key.public
        return pack([public.n], public.plain_width)

    def ask(self, request: RequestType, silo: str) -> m.Message:
        if request is KeyRequest:
            return KeyRequest(self._modulus)
        if request is SiloKeys:
            assert self._keys is not None
            return self._keys
        if request is ChoicesRequest:
            return ChoicesRequest(self._round, self.offer(self._round))
        if request is SealedSeed:
            index = self._context.silos.index(silo)
            return SealedSeed(self._sealed[index - 1] if index else b"")
        if self._fixed is None:
            self._fixed = EncryptedWeights(self._encrypt_weights(0, np.ones(self._context.facts.users, dtype=np.bool_)))
        return self._fixed

    def check(self, silo: str, body: m.Message) -> None:
        location, users = f"silo {silo}", self._context.facts.users
        match body:
            case SiloKey():
                check_key(self._context, silo, body, self._modulus)
            case SealedSeeds():
                check_seeds(self._context, silo, body)
            case BlindedShares(shares):
                public = self.key.public
                if any(share >= public.n for share in unpack(shares, public.plain_width, users, location)):
                    raise MessageRefused("a blinded count is not a residue modulo n", location=location)
            case Choices(_, points):
                for point in offers.cut_points(points, users, location):
                    check_point(point, location)
            case _:
                pass

    def collect(self, request: RequestType, responses: Mapping[str, m.Message]) -> None:
        if request is KeyRequest:
            self._keys = relay(self._context, responses)
        elif request is SiloKeys:
            first = responses[self._context.silos[0]]
            self._sealed = list(first.sealed) if isinstance(first, SealedSeeds) else []
        elif request is SealedSeed:
            self._inverses = self._invert_denominators(responses)
        elif request is ChoicesRequest:
            self._points = self._common_choice(responses)

    @staticmethod
    def _common_choice(responses: Mapping[str, m.Message]) -> bytes:
        """The points that all silos sent alike."""
        chosen = {name: body.points for name, body in responses.items() if isinstance(body, Choices)}
        first = next(iter(chosen))
        for name, points in chosen.items():
            if points != chosen[first]:
                raise MessageRefused(f"chose other slots than silo {first}", location=f"silo {name}")
        return chosen[first]

    def _invert_denominators(self, responses: Mapping[str, m.Message]) -> list[mpz]:
        """1 / (r_u D_u) modulo n for every user (step 1(f))."""
        public, users = self.key.public, self._context.facts.users
        blinded = [mpz(0)] * users
        for silo, body in responses.items():
            if isinstance(body, BlindedShares):
                shares = unpack(body.shares, public.plain_width, users, f"silo {silo}")
                blinded = [gmpy2.f_mod(total + share, public.n) for total, share in zip(blinded, shares, strict=True)]
        try:
            return [gmpy2.invert(total, public.n) for total in blinded]
        except ZeroDivisionError as error:
            raise MessageRefused(
                "a blinded count has no inverse; one of the silos left the protocol", location="server"
            ) from error

    def weights(self) -> bytes:
        if self._context.release.user_sampling.private:
            return self._make_offers(self._round, self._points)
        return b"" if self._sample is None else self._encrypt_weights(self._round, self._sample)

    def _encrypt_weights(self, round_: int, sample: Sample) -> bytes:
        """Enc(1 / (r_u D_u)), or Enc(0) for users who are not in the sample (step 2(a))."""
        chosen = [inverse if taken else mpz(0) for inverse, taken in zip(self._inverses, sample, strict=True)]
        # Bound to what is encrypted: the same randomness on other numbers would show their difference.
        content = hashlib.sha256(pack(chosen, self.key.public.plain_width)).hexdigest()
        stream = self._secrets.child("weights", "round", round_, content).stream()
        return pack(self.key.encrypt_all(chosen, stream, self._scheme.workers), self.key.public.width)

    def offer(self, round_: int) -> bytes:
        """The server's point of a round in which silos choose slots."""
        return self._sender(round_).offer

    def _sender(self, round_: int) -> Sender:
        """Bound to what will be offered: keys of the same slots never seal two different things."""
        _, slots = self._context.release.user_sampling.slots
        content = hashlib.sha256(pack(self._inverses, self.key.public.plain_width)).hexdigest()
        return Sender.draw(self._secrets.child("offer", "round", round_, content).stream(), slots)

    def _make_offers(self, round_: int, points: bytes) -> bytes:
        """For every user m slots of P that open Enc(1 / (r_u D_u)), and P - m that open Enc(0)."""
        users, public = self._context.facts.users, self.key.public
        chosen, _ = self._context.release.user_sampling.slots
        content = hashlib.sha256(points + pack(self._inverses, public.plain_width)).hexdigest()
        secrets = self._secrets.child("weights", "round", round_, content)
        nothing = [mpz(0)] * users
        both, workers = [*self._inverses, *nothing], self._scheme.workers
        encrypted = self.key.encrypt_all(both, secrets.child("ciphertexts").stream(), workers)
        sender, stream = self._sender(round_), secrets.child("slots").stream()
        offered = []
        for user, point in enumerate(offers.cut_points(points, users, "server")):
            keys = sender.keys(point, offers.context(self._context.digest, round_, user), "server")
            real, dummy = (pack([encrypted[i]], public.width) for i in (user, users + user))
            offered.append(offers.make_offer(keys, chosen, real, dummy, stream))
        return b"".join(offered)

    def check_vector(self, silo: str, vector: bytes) -> None:
        self._ciphertexts(silo, vector)

    def _ciphertexts(self, silo: str, vector: bytes) -> list[mpz]:
        public, location = self.key.public, f"silo {silo}"
        ciphertexts = unpack(vector, public.width, self._layout.ciphertexts, location)
        public.check(ciphertexts, location)
        return ciphertexts

    def total(self, vectors: Mapping[str, bytes]) -> Residues:
        """The decrypted and decoded total (step 2(c))."""
        public = self.key.public
        product = [mpz(1)] * self._layout.ciphertexts
        for silo, vector in vectors.items():
            factors = unpack(vector, public.width, self._layout.ciphertexts, f"silo {silo}")
            product = [public.add(left, right) for left, right in zip(product, factors, strict=True)]
        decrypted = self.key.decrypt_all(product, self._scheme.workers)
        values = self._layout.unpack([signed_residue(value, public.n) for value in decrypted])
        if values is None:
            raise out_of_range()
        return check_total([int(self._layout.decode(value)) for value in values], self._context)
