"""Keys: who signed, who shares a secret, and that a key serves one purpose."""

import gc
import weakref

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from uldp.crypto import keys
from uldp.crypto.keys import AgreementKey, SigningKey, verify
from uldp.errors import MessageRefused
from uldp.rng import Secrets


def secrets(letter):
    return Secrets.from_key(letter * 32)


ALICE, BOB = AgreementKey(secrets(b"a")), AgreementKey(secrets(b"b"))
EVE = AgreementKey(secrets(b"e"))
LOW_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
]


def test_two_parties_agree_and_a_third_does_not():
    ours, theirs = ALICE.with_peer(BOB.public, "bob"), BOB.with_peer(ALICE.public, "alice")
    assert ours == theirs
    assert ours.key("mask", 1) == theirs.key("mask", 1)
    assert EVE.with_peer(BOB.public, "bob").key("mask", 1) != ours.key("mask", 1)


def test_two_parties_of_one_process_compute_their_secret_once_and_it_goes_with_them():
    one, other = AgreementKey(secrets(b"1")), AgreementKey(secrets(b"2"))
    ours = one.with_peer(other.public, "2")
    assert other.with_peer(one.public, "1") is ours
    simulated = AgreementKey(Secrets(b"2" * 32, simulated=True))
    assert simulated.public == other.public and simulated.with_peer(one.public, "1") is not ours
    left = weakref.ref(ours)
    del ours
    gc.collect()
    assert left() is None


def test_a_valid_signature_is_verified_once_and_an_invalid_one_every_time(monkeypatch):
    signer, verified = SigningKey(secrets(b"s")), []

    class Counting:
        @staticmethod
        def from_public_bytes(public):
            verified.append(public)
            return Ed25519PublicKey.from_public_bytes(public)

    monkeypatch.setattr(keys, "Ed25519PublicKey", Counting)
    signature = signer.sign("experiment", b"once")
    for _ in range(3):
        verify(signer.public, signature, ("experiment", b"once"), "silo s")
    assert len(verified) == 1
    for _ in range(2):
        with pytest.raises(MessageRefused):
            verify(signer.public, signature, ("experiment", "once"), "silo s")
    assert len(verified) == 3


def test_a_key_serves_one_purpose():
    shared = ALICE.with_peer(BOB.public, "bob")
    purposes = [
        ("mask", 1),
        ("mask", 2),
        ("mask", "1"),
        ("mask1",),
        ("m", "ask", 1),
        ("seed", 1),
        ("mask", 1, b"x"),
        (),
    ]
    assert len({shared.key(*purpose) for purpose in purposes}) == len(purposes)


@pytest.mark.parametrize("public", [*LOW_ORDER, b"", bytes(31), bytes(33)], ids=lambda key: key.hex()[:8] or "empty")
def test_a_public_key_with_which_the_secret_is_no_secret_is_refused(public):
    with pytest.raises(MessageRefused, match="silo b: its public key"):
        ALICE.with_peer(public, "silo b")


def test_ones_own_key_sent_back_is_refused():
    with pytest.raises(MessageRefused, match="own public key"):
        ALICE.with_peer(ALICE.public, "silo b")


def test_only_the_holder_of_the_purpose_opens_a_sealed_message_and_a_changed_one_is_refused():
    ours, theirs = ALICE.with_peer(BOB.public, "bob"), BOB.with_peer(ALICE.public, "alice")
    sealed = ours.seal(b"seed", "for", "bob")
    assert theirs.open(sealed, "for", "bob", location="silo a") == b"seed"
    changed = bytes([sealed[0] ^ 1]) + sealed[1:]
    for message, purpose in ((changed, ("for", "bob")), (sealed, ("for", "eve")), (b"", ("for", "bob"))):
        with pytest.raises(MessageRefused, match="silo a: a sealed message"):
            theirs.open(message, *purpose, location="silo a")


def test_a_signature_fits_its_signer_and_its_parts_only():
    alice, bob = SigningKey(secrets(b"a")), SigningKey(secrets(b"b"))
    signature = alice.sign("experiment", 1, b"key")
    verify(alice.public, signature, ("experiment", 1, b"key"), "silo a")
    wrong = [
        (bob.public, signature, ("experiment", 1, b"key")),
        (alice.public, signature, ("experiment", 2, b"key")),
        (alice.public, signature, ("experiment1", b"key")),
        (alice.public, bytes(64), ("experiment", 1, b"key")),
        (alice.public, b"", ("experiment", 1, b"key")),
        (b"short", signature, ("experiment", 1, b"key")),
    ]
    for public, given, parts in wrong:
        with pytest.raises(MessageRefused, match="silo a: the signature"):
            verify(public, given, parts, "silo a")


def test_the_public_half_is_an_ed25519_key_that_others_can_read():
    public = SigningKey(secrets(b"a")).public
    raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
    assert Ed25519PublicKey.from_public_bytes(public).public_bytes(*raw) == public


def test_no_key_shows_itself():
    shared = ALICE.with_peer(BOB.public, "bob")
    for key in (ALICE, SigningKey(secrets(b"a")), shared):
        assert (b"a" * 32).hex() not in repr(key) and "secret=" not in repr(key)
        assert repr(b"a" * 32) not in repr(key)
