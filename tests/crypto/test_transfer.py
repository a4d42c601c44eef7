"""Oblivious transfer: the chooser gets one key, the sender learns not which."""

import pytest

from uldp.crypto.keys import seal, unseal
from uldp.crypto.transfer import POINT_BYTES, Chooser, Sender, check_point
from uldp.errors import ConfigError, MessageRefused
from uldp.rng import Secrets

CONTEXT = ("experiment", "round", 1, "user", 2)
NEUTRAL = (1).to_bytes(32, "little")
ORDER_8 = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")


def stream(*path):
    return Secrets.simulated_from_seed(1).child(*path).stream()


@pytest.mark.parametrize("slots", [2, 3, 10])
def test_the_chooser_has_the_key_of_the_chosen_slot_and_of_no_other(slots):
    sender = Sender.draw(stream("sender"), slots)
    chooser = Chooser(sender.offer, slots, "server")
    for index in range(slots):
        choice, key = chooser.choose(index, stream("chooser", index), CONTEXT)
        keys = sender.keys(choice, CONTEXT, "silo")
        assert [k == key for k in keys] == [j == index for j in range(slots)]
        assert len(set(keys)) == slots


def test_keys_of_other_contexts_senders_and_choices_are_unrelated():
    sender = Sender.draw(stream("sender"), 4)
    choice, _ = Chooser(sender.offer, 4, "server").choose(1, stream("chooser"), CONTEXT)
    other_choice, _ = Chooser(sender.offer, 4, "server").choose(1, stream("another"), CONTEXT)
    keys = [
        *sender.keys(choice, CONTEXT, "silo"),
        *sender.keys(choice, (*CONTEXT[:-1], 3), "silo"),
        *sender.keys(other_choice, CONTEXT, "silo"),
        *Sender.draw(stream("other"), 4).keys(choice, CONTEXT, "silo"),
    ]
    assert len(set(keys)) == 16


def test_what_the_sender_sees_is_spread_alike_for_every_index():
    """B is uniform whatever the index is: its bits are balanced for both, within five deviations."""
    sender = Sender.draw(stream("sender"), 8)
    chooser = Chooser(sender.offer, 8, "server")
    for index in (0, 7):
        choices = [chooser.choose(index, stream("chooser", index, t), CONTEXT)[0] for t in range(400)]
        assert len(set(choices)) == 400
        for bit in (0, 5, 100, 200, 250):
            ones = sum(int.from_bytes(choice, "little") >> bit & 1 for choice in choices)
            assert abs(ones - 200) < 5 * 10


@pytest.mark.parametrize("point", [b"", bytes(31), bytes(32), NEUTRAL, ORDER_8, b"\xff" * 32, b"\x02" + bytes(31)])
def test_points_outside_the_group_are_refused_by_both(point):
    sender = Sender.draw(stream("sender"), 2)
    with pytest.raises(MessageRefused, match="silo a: a point"):
        sender.keys(point, CONTEXT, "silo a")
    with pytest.raises(MessageRefused, match="server: a point"):
        Chooser(point, 2, "server")
    with pytest.raises(MessageRefused):
        check_point(point, "x")


@pytest.mark.parametrize("index", [-1, 4, 100])
def test_an_index_out_of_range_is_refused(index):
    sender = Sender.draw(stream("sender"), 4)
    with pytest.raises(ConfigError, match="slot"):
        Chooser(sender.offer, 4, "server").choose(index, stream("chooser"), CONTEXT)


@pytest.mark.parametrize("slots", [-1, 0, 1])
def test_a_choice_needs_two_slots(slots):
    with pytest.raises(ConfigError, match="at least 2"):
        Sender.draw(stream("sender"), slots)


def test_only_the_right_key_opens_and_changes_are_noticed():
    sealed = seal(b"k" * 32, b"message")
    assert unseal(b"k" * 32, sealed, "server", "does not open") == b"message"
    for key, text in ((b"x" * 32, sealed), (b"k" * 32, sealed[:-1] + b"x"), (b"k" * 32, b"")):
        with pytest.raises(MessageRefused, match="server: does not open"):
            unseal(key, text, "server", "does not open")


def test_points_have_a_fixed_length_and_no_secret_shows():
    sender = Sender.draw(stream("sender"), 2)
    assert len(sender.offer) == POINT_BYTES
    assert "scalar" not in repr(sender)
