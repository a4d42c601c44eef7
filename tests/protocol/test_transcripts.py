"""Record counts leave no trace in what the server and the other silos receive, nor the sample in what silos receive.

Worlds differ in one user's record counts. Many runs of each, with independent secrets, are turned into features of the
messages that a party received and of whatever it can compute from them (the server has the key; a silo has the blinds).
Each feature is compared between two worlds: numbers by Kolmogorov and Smirnov's test, classes by chi-square. All
comparisons of this file together raise a false alarm with probability at most 0.001 (Bonferroni); secrets are fixed, so
the outcome is too.

Power. A feature whose distribution moves by 0.6 in Kolmogorov's distance is found almost surely in 80 runs of each
world, one that moves by 0.55 in 100; ``test_the_number_of_runs`` tries it. Planted leaks show that the same comparisons
find what they are for: no blinds, short blinds, forgotten masks, a forgotten dither, no re-randomisation, ciphertexts
without randomness.

What is not compared is the total over C_LCM: that is the release, noise hides it as far as the accountant says
(``test_attacks`` attacks it).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pytest
from gmpy2 import f_mod, invert, jacobi, mpz, powmod
from scipy.stats import chi2_contingency, ks_2samp
from tests.protocol.published import Guess, PlantedLearner, ServerView, characters, encoded, planted_federation
from tests.protocol.test_exactness import layout_of, undithered
from tests.support import awaited, build, decode, make_sessions

from uldp.aggregation.key_agreement import KeyRequest, SiloKeys
from uldp.aggregation.paillier import PaillierSilo, PaillierWeighting
from uldp.aggregation.paillier_messages import BlindedShares, EncryptedWeights, SealedSeed
from uldp.aggregation.ratios import PSEUDO_COUNT
from uldp.crypto.integers import uniform_below, unpack
from uldp.crypto.paillier import PrivateKey
from uldp.protocol import messages as m
from uldp.rng import Secrets
from uldp.runtimes.transcript import SERVER

LEVEL = 0.001
COMPARISONS = 10
"""How many pairs of worlds and parties are compared in this file, at most."""

RUNS = 80
ROUND_RUNS = 100
LEAK_RUNS = 40

KEY_BITS = 224
MOST = 7
"""The cap of a user's count in a silo."""
SILOS = 3
DIMENSION = 3
TARGET, OTHER = 0, 1
ONLOOKER = 2
"""The silo whose transcript is looked at; it holds the same records in both worlds of a comparison."""

WORLDS = {
    "few": (2, 1, 1),
    "many": (2, 7, 1),
    "absent": (0, 0, 0),
    "present": (0, 7, 0),
    "elsewhere": (7, 0, 0),
}
"""The target's records in each silo."""
PAIRS = [("few", "many"), ("absent", "present"), ("present", "elsewhere")]
OTHERS = np.array([[1, 0, 3], [0, 2, 5], [4, 0, 1]])
"""Silo, user: everybody else's records."""

ROWS = np.random.default_rng(11).normal(size=(SILOS, 4, DIMENSION))
METHOD = build("uldp-avg-w", noise_multiplier=5.0, rounds=1)


def counts_of(world: str) -> np.ndarray:
    return np.column_stack([WORLDS[world], OTHERS])


@dataclass(frozen=True)
class Run:
    """One run's sessions, and what each party received, in order: (sender, message's length, body)."""

    server: object
    silos: dict
    received: dict[str, list[tuple[str, int, m.Message]]]

    def bodies(self, party: str, kind: type) -> list:
        return [body for _, _, body in self.received[party] if isinstance(body, kind)]

    @property
    def key(self) -> PrivateKey:
        return self.server.side.key

    @property
    def weights(self) -> list[mpz]:
        """Everybody's encrypted weights, where they hold for all rounds."""
        sent = self.server.side.ask(EncryptedWeights, "0").weights
        return unpack(sent, self.key.public.width, 4, "test")


def run(world: str, number: int, *, rounds: int = 0, rate: float = 1.0) -> Run:
    """The handshake, the setup and so many rounds, with secrets of its own."""
    method = replace(METHOD, sample_rate=rate, rounds=max(1, rounds))
    server, silos = make_sessions(
        method,
        planted_federation(counts_of(world), DIMENSION),
        learner=PlantedLearner(ROWS),
        secrets=Secrets.from_key(bytes(32)).child("transcripts", world, number),
        aggregation=PaillierWeighting(key_bits=KEY_BITS, slots=1, max_records=MOST * SILOS),
    )
    received = defaultdict(list)

    def deliver(to: str, sender: str, silo: str, message: bytes) -> None:
        body = decode(message, experiment=server.plan.digest, silo=silo, limit=1 << 20)
        received[to].append((sender, len(message), body))

    while server.round < rounds or (not rounds and awaited(server) is not m.UpdateRequest):
        for name, request in server.requests().items():
            deliver(name, SERVER, name, request)
            reply = silos[name].reply(request)
            deliver(SERVER, name, name, reply)
            server.receive(name, reply)
        server.collect()
        server.charge()
        server.advance()
    return Run(server, silos, dict(received))


@lru_cache(maxsize=16)
def runs(world: str, count: int, rounds: int = 0) -> list[Run]:
    return [run(world, number, rounds=rounds) for number in range(count)]


@pytest.fixture(scope="module", autouse=True)
def forgotten_afterwards():
    yield
    runs.cache_clear()


# --- features: a float is compared as a number, a whole number as a class ------------------------------------------

Features = dict[str, float | int]


def of_residue(name: str, value: int, modulus: int) -> Features:
    """Of a number modulo another, for whoever has no key."""
    value, modulus = int(value), int(modulus)
    return {
        f"{name}: size": value / modulus,
        f"{name}: low digits": (value % 2**16) / 2**16,
        f"{name}: modulo 2": value % 2,
        f"{name}: modulo 3": value % 3,
        f"{name}: modulo 17": value % 17,
    }


def of_unit(name: str, value: int, key: PrivateKey) -> Features:
    """Of a number modulo n, for the holder of the key."""
    n = key.public.n
    square = characters(key, value)
    return of_residue(name, value % n, n) | {
        f"{name}: square modulo p": square[0],
        f"{name}: square modulo q": square[1],
    }


def server_setup(run: Run) -> Features:
    """Of the blinded shares: each, their quotients, their sum, its inverse, and the sum over another user's."""
    key, n = run.key, run.key.public.n
    shares = [unpack(body.shares, key.public.plain_width, 4, "test") for body in run.bodies(SERVER, BlindedShares)]
    found: Features = {}
    for s, share in enumerate(shares):
        found |= of_unit(f"share of silo {s}", share[TARGET], key)
        after = shares[(s + 1) % SILOS][TARGET]
        found |= of_unit(f"share of silo {s} over the next", share[TARGET] * _inverse(after, n) % n, key)
    target, other = (sum(share[user] for share in shares) % n for user in (TARGET, OTHER))
    found |= of_unit("sum", target, key)
    found |= of_unit("inverse", key.decrypt(run.weights[TARGET]), key)
    return found | of_unit("sum over another's", target * invert(other, n) % n, key)


def _inverse(value: int, n: int) -> mpz:
    """A forgotten mask leaves a share of 0: no inverse, and a feature all the same."""
    return invert(value, n) if value % n else mpz(0)


def view_of(run: Run) -> ServerView:
    key, weights = run.key, run.weights
    updates = run.bodies(SERVER, m.Update)
    return ServerView(
        key=key,
        multiple=layout_of(run.server.plan).multiple,
        randomness=[key.nth_root(c) for c in weights],
        blinded=[invert(key.decrypt(c), key.public.n) for c in weights],
        received=[unpack(body.vector, key.public.width, DIMENSION, "test") for body in updates],
        whole_exponents=False,
    )


def server_round(run: Run) -> Features:
    """Of the ciphertexts of each silo and of their product: plaintext, root, and the root that a guess gives.

    The guess are the counts of the world "few" (with the right rows): right in that world, wrong in the others.
    """
    view, key = view_of(run), run.key
    guessed = counts_of("few")
    guess = Guess(
        PSEUDO_COUNT * guessed, PSEUDO_COUNT * guessed.sum(axis=0) + 1, encoded(ROWS * (guessed > 0)[:, :, None])
    )
    found: Features = {}
    parts = {f"silo {s}": (view.received[s], guess.roots(view, s)) for s in range(SILOS)}
    parts["product"] = (view.product, guess.product_roots(view))
    for part, (ciphertexts, expected) in parts.items():
        for j in range(2):
            c, name = ciphertexts[j], f"{part}, coordinate {j}"
            root, (plaintext,) = key.nth_root(c), view.plaintexts([c])
            found |= of_residue(f"{name}: ciphertext", c, key.public.n2)
            found |= of_unit(f"{name}: root", root, key)
            found |= of_residue(f"{name}: residue", plaintext % view.multiple, view.multiple)
            found |= of_unit(f"{name}: root over guess", root * invert(expected[j], key.public.n), key)
            if part != "product":  # the product's is the total: see the top of this file
                found |= of_residue(f"{name}: plaintext", plaintext % key.public.n, key.public.n)
    return found


def silo_weights(run: Run) -> Features:
    """Of the encrypted weights that the onlooker got, and what its blinds make of them. It knows n, not p and q."""
    party = str(ONLOOKER)
    side = run.silos[party].side
    public, blinds = side.public, side.blinds(side.seed)
    (weights,) = [body.weights for body in run.bodies(party, EncryptedWeights)] or [
        body.weights for body in run.bodies(party, m.UpdateRequest)
    ]
    ciphertexts = unpack(weights, public.width, 4, "test")
    found: Features = {}
    for name, user in (("target", TARGET), ("other", OTHER)):
        c = ciphertexts[user]
        found |= of_residue(f"{name}: ciphertext", c, public.n2)
        found |= of_residue(f"{name}: randomness", c % public.n, public.n)
        found |= of_residue(f"{name}: unblinded", f_mod(c // public.n * blinds[user], public.n), public.n)
        # Enc(1 / (r D))^(r D) (1 + n)^-1 is an encryption of 0 if the guess of D is right
        for total in (4, 10):
            zero = powmod(c, blinds[user] * (PSEUDO_COUNT * total + 1), public.n2) * public.factor(-1) % public.n2
            found[f"{name}: test for {total} records"] = jacobi(zero % public.n, public.n)
            found |= of_residue(f"{name}: test for {total} records", zero, public.n2)
        found[f"{name}: symbol"] = jacobi(c % public.n, public.n)
    return found


def silo_setup(run: Run) -> Features:
    """All else that the onlooker got: modulus, keys, signatures, the sealed seed; and the weights."""
    party = str(ONLOOKER)
    (asked,) = run.bodies(party, KeyRequest)
    (keys,) = run.bodies(party, SiloKeys)
    (seed,) = run.bodies(party, SealedSeed)
    blobs = {"modulus": asked.modulus, "seed": seed.sealed}
    blobs |= {f"key {s}": blob for s, blob in enumerate(keys.publics)}
    blobs |= {f"signature {s}": blob for s, blob in enumerate(keys.signatures)}
    found: Features = {}
    for name, blob in blobs.items():
        found[f"{name}: first bytes"] = int.from_bytes(blob[:6], "big") / 2**48
        found[f"{name}: last bytes"] = int.from_bytes(blob[-6:], "little") / 2**48
    return found | silo_weights(run)


# --- comparisons ---------------------------------------------------------------------------------------------------


def differences(features: Callable[[Run], Features], left: Iterable[Run], right: Iterable[Run]) -> dict[str, float]:
    """The features that tell the two worlds apart, with their p-values."""
    here, there = [features(each) for each in left], [features(each) for each in right]
    level = LEVEL / COMPARISONS / len(here[0])
    values = {name: p_value([f[name] for f in here], [f[name] for f in there]) for name in here[0]}
    return {name: value for name, value in values.items() if value < level}


def p_value(left: list, right: list) -> float:
    """That both samples are from one distribution."""
    if isinstance(left[0], float):
        return float(ks_2samp(left, right).pvalue)
    classes = sorted({*left, *right})
    if len(classes) == 1:
        return 1.0
    return float(chi2_contingency([[side.count(c) for c in classes] for side in (left, right)]).pvalue)


def shape(run: Run) -> dict[str, list[tuple[str, int, str]]]:
    """Who got what from whom, in which order and of which length."""
    return {
        party: [(sender, length, type(body).__name__) for sender, length, body in messages]
        for party, messages in run.received.items()
    }


# --- the instruments -----------------------------------------------------------------------------------------------


def test_the_number_of_runs():
    """Numbers that move by a little less than half of their range are noticed, and fair ones are not."""
    level = LEVEL / COMPARISONS / 200
    generator = np.random.default_rng(3)
    for count, move in ((RUNS, 0.6), (ROUND_RUNS, 0.55)):
        found = 0
        for _ in range(50):
            plain, moved = generator.random(count), generator.random(count)
            moved = np.where(generator.random(count) < move, 0.0, moved)
            found += p_value(list(plain), list(moved)) < level
            assert p_value(list(plain), list(generator.random(count))) > level
        assert found >= 49


def test_a_world_of_this_file_is_what_it_says():
    capped = counts_of("many").max()
    plan = runs("few", RUNS)[0].server.plan
    assert capped == MOST == plan.aggregation.ratios(plan.release).cap
    for left, right in PAIRS:
        assert (counts_of(left)[ONLOOKER] == counts_of(right)[ONLOOKER]).all()
        assert (counts_of(left)[:, 1:] == counts_of(right)[:, 1:]).all()
        assert (counts_of(left) != counts_of(right)).any()


# --- the protocol leaves no trace ----------------------------------------------------------------------------------


def test_types_order_and_lengths_are_the_same_in_all_worlds():
    shapes = [shape(each) for world in WORLDS for each in runs(world, RUNS)]
    assert all(other == shapes[0] for other in shapes)
    assert [kind for _, _, kind in shapes[0]["2"]] == [
        "Hello",
        "KeyRequest",
        "SiloKeys",
        "SealedSeed",
        "EncryptedWeights",
    ]
    answers = [kind for sender, _, kind in shapes[0][SERVER] if sender == "1"]
    assert answers == ["Welcome", "SiloKey", "SealedSeeds", "BlindedShares", "Accepted"]
    shapes = [shape(each) for world in ("few", "many") for each in runs(world, ROUND_RUNS, 1)]
    assert all(other == shapes[0] for other in shapes)


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_the_server_cannot_tell_record_counts_from_the_setup(left, right):
    assert differences(server_setup, runs(left, RUNS), runs(right, RUNS)) == {}


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_another_silo_cannot_tell_record_counts(left, right):
    assert differences(silo_setup, runs(left, RUNS), runs(right, RUNS)) == {}


def test_the_server_cannot_tell_record_counts_from_a_round():
    assert differences(server_round, runs("few", ROUND_RUNS, 1), runs("many", ROUND_RUNS, 1)) == {}


def sampled_and_not(count: int) -> tuple[list[Run], list[Run]]:
    """Runs of one world in which the target is in the first round's sample, and those in which it is not."""
    every = [run("few", 10_000 + number, rounds=1, rate=0.5) for number in range(count)]
    sampled = [bool(each.server.sampler.users(1)[TARGET]) for each in every]
    inside = [each for each, taken in zip(every, sampled, strict=True) if taken]
    outside = [each for each, taken in zip(every, sampled, strict=True) if not taken]
    assert min(len(inside), len(outside)) > 0.35 * count
    return inside, outside


def test_a_silo_cannot_tell_who_was_sampled():
    inside, outside = sampled_and_not(2 * RUNS)
    assert differences(silo_weights, inside, outside) == {}
    shapes = [shape(each) for each in inside + outside]
    assert all(other == shapes[0] for other in shapes)
    assert all(body.sample == b"" for each in inside for body in each.bodies("2", m.UpdateRequest))


def test_weights_are_encrypted_afresh_for_every_user_and_round():
    """Equal randomness in two rounds would show a silo equal choices (errata U17)."""
    each = run("few", 0, rounds=3, rate=0.5)
    asked = [body.weights for body in each.bodies(str(ONLOOKER), m.UpdateRequest)]
    roots = [each.key.nth_root(c) for weights in asked for c in unpack(weights, each.key.public.width, 4, "test")]
    assert len(set(roots)) == len(roots) == 12


def test_all_silos_get_the_same_weights():
    """The sealed seed is the only request of the setup that differs from silo to silo."""
    each = runs("few", RUNS)[0]
    told = [[body for _, _, body in each.received[str(s)]] for s in range(SILOS)]
    for bodies in zip(*told, strict=True):
        assert isinstance(bodies[0], SealedSeed) or all(body == bodies[0] for body in bodies)


# --- planted leaks are found ---------------------------------------------------------------------------------------


def leaky(count: int = LEAK_RUNS, rounds: int = 0, worlds: tuple[str, str] = ("few", "many")) -> list[list[Run]]:
    """Fresh runs of two worlds, under whatever was patched."""
    return [[run(world, number, rounds=rounds) for number in range(count)] for world in worlds]


def test_short_blinds_are_found(monkeypatch):
    """Blinds from [1, 2^16) instead of units modulo n: the sum has the size of the record total."""

    def short(self, seed):
        stream = seed.stream("blinds", self.context.digest, self._modulus)
        return [1 + r for r in uniform_below(stream, 2**16 - 1, self.context.facts.users)]

    monkeypatch.setattr(PaillierSilo, "blinds", short)
    assert "sum: size" in differences(server_setup, *leaky(worlds=("absent", "present")))


def unmasked(self, seed):
    shares = self._ratios.shares(self._counts, self._index).tolist()
    return [f_mod(r * share, self.public.n) for r, share in zip(self.blinds(seed), shares, strict=True)]


def test_forgotten_masks_of_counts_are_found(monkeypatch):
    """The quotient of two silos' shares is the quotient of their counts."""
    monkeypatch.setattr(PaillierSilo, "_blind_shares", unmasked)
    assert "share of silo 1 over the next: size" in differences(server_setup, *leaky())


def test_one_silo_that_forgets_its_masks_of_counts_is_found(monkeypatch):
    """Then the sum keeps the others' masks, and the silo's own share is r_u times its count: 0 tells a user absent."""
    masked = PaillierSilo._blind_shares

    def some(self, seed):
        return unmasked(self, seed) if self._index == 1 else masked(self, seed)

    monkeypatch.setattr(PaillierSilo, "_blind_shares", some)
    assert "share of silo 1: size" in differences(server_setup, *leaky(worlds=("elsewhere", "present")))


def test_ciphertexts_without_randomness_are_found(monkeypatch):
    """1 + n / (r_u D_u): a silo knows r_u and can test a guess of D_u."""
    monkeypatch.setattr(
        PrivateKey, "encrypt_all", lambda self, ms, stream, workers: [self.public.factor(value) for value in ms]
    )
    assert "target: test for 4 records: size" in differences(silo_setup, *leaky())


def test_a_bare_zero_for_users_outside_the_sample_is_found(monkeypatch):
    encrypt = PrivateKey.encrypt_all

    def bare(self, ms, stream, workers):
        return [c if value else mpz(1) for c, value in zip(encrypt(self, ms, stream, workers), ms, strict=True)]

    monkeypatch.setattr(PrivateKey, "encrypt_all", bare)
    assert "target: ciphertext: size" in differences(silo_weights, *sampled_and_not(60))


def unprotected(self, ciphertexts, *_):
    return ciphertexts


ROUND_LEAKS = {
    "no dithers": ({"_with_noise": undithered}, "product, coordinate 0: residue: size"),
    "no residues": ({"_randomise": unprotected}, "product, coordinate 0: root over guess: size"),
    "no masks, no dithers": (
        {"mask": unprotected, "_with_noise": undithered},
        "silo 1, coordinate 0: residue: size",
    ),
    "no masks, no residues": (
        {"mask": unprotected, "_randomise": unprotected},
        "silo 1, coordinate 0: root over guess: size",
    ),
}


@pytest.mark.parametrize("leak", ROUND_LEAKS)
def test_a_round_without_some_of_its_protections_is_found(monkeypatch, leak):
    instead, feature = ROUND_LEAKS[leak]
    for name, step in instead.items():
        monkeypatch.setattr(PaillierSilo, name, step)
    assert feature in differences(server_round, *leaky(24, rounds=1))


def test_a_server_that_is_shown_counts_is_found(monkeypatch):
    """The crudest leak of all: no blinds."""
    monkeypatch.setattr(PaillierSilo, "blinds", lambda self, seed: [mpz(1)] * self.context.facts.users)
    assert "sum: size" in differences(server_setup, *leaky())
