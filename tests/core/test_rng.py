"""Randomness is addressed by path, and secrets are a type of their own."""

import numpy as np
import pytest

from uldp.errors import ConfigError
from uldp.rng import Secrets, Streams


def test_paths_are_not_confused():
    streams = Streams.from_seed(0)
    words = {
        streams.child(*path).word()
        for path in [("a", "b"), ("ab",), ("b", "a"), ("a",), (1,), ("1",), ("a", 1), ("a", "1"), ("a1",)]
    }
    assert len(words) == 9


def test_a_path_taken_in_steps_is_the_same_path():
    assert Streams.from_seed(3).child("a").child(2) == Streams.from_seed(3).child("a", 2)
    assert Secrets.from_key(b"k" * 32).child("a").child(2) == Secrets.from_key(b"k" * 32).child("a", 2)


def test_a_stream_gives_every_word_once():
    whole = Secrets.simulated_from_seed(1).stream().words(100)
    stream = Secrets.simulated_from_seed(1).stream()
    parts = np.concatenate([stream.words(30), stream.words(0), stream.words(70)])
    assert (whole == parts).all()
    assert len(set(whole.tolist())) == 100


def test_seeds_and_purposes_are_independent():
    assert Streams.from_seed(0).key != Secrets.simulated_from_seed(0).key
    assert Secrets.simulated_from_seed(0).key != Secrets.simulated_from_seed(1).key


def test_secrets_from_the_os_differ_and_are_not_marked_simulated():
    one, other = Secrets.from_os(), Secrets.from_os()
    assert one.key != other.key
    assert not one.simulated
    assert not one.child("x").stream().simulated
    assert Secrets.simulated_from_seed(0).child("x").stream().simulated


def test_a_key_is_not_shown():
    secrets = Secrets.from_key(b"\x07" * 32)
    assert "07" not in repr(secrets)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "0"])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(ConfigError, match=r"run\.seed"):
        Streams.from_seed(seed)
