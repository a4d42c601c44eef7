"""A server that asks in another order than the protocol's: it may be refused, but it opens no table twice.

Each attack wins against silos that prepare a round as often as they are asked, and fails against ours. The last one
needs a key that no silo can tell from a right one; it is documented, and wins.
"""

from dataclasses import replace

import numpy as np
import pytest
from tests.core.test_sessions import DIGEST, build
from tests.guarantees.adversary import OwnCoordinates, federation_of
from tests.protocol.lattice_knowledge import ServerKnowledge, SiloKnowledge
from tests.protocol.test_lattice_attacks import COUNTS, TOTALS, centred, totals_of
from tests.protocol.test_lattice_circuit_privacy import Attacked, size
from tests.support import decode, make_sessions, step_until

from uldp.aggregation.lattice_messages import AnswerRequest, SlotEntries, SlotRequest, TransferRequest
from uldp.aggregation.lattice_sampling import OFFERED
from uldp.crypto import ring
from uldp.errors import MessageRefused
from uldp.protocol import messages as m
from uldp.rng import Secrets
from uldp.sessions.silo import SiloSession


class Curious:
    """A server in the first round of a run with sampled users, when the silos have offered their tables."""

    def __init__(self, **sampling):
        method = build("uldp-avg-w", rounds=9, noise_multiplier=1.0, **sampling)
        self.server, self.silos = make_sessions(
            method,
            federation_of(COUNTS),
            learner=OwnCoordinates(4),
            aggregation="lattice",
            secrets=Secrets.from_key(b"k" * 32),
            min_silos=2,  # a silo that was left out of a round comes back in a later one
        )
        step_until(SlotRequest, self.server, self.silos)
        self.transfer, self.transfers = self.server.side.transfer, ServerKnowledge(self.server.side).transfers

    def ask(self, name, body):
        return decode(self.silos[name].reply(m.encode(DIGEST, name, body)), experiment=DIGEST, silo=name, limit=10**9)

    def slots(self, transfer, keeper):
        """What a keeper opens for the server that asks as ``transfer`` does."""
        offered = self.transfers[transfer.roles.dealer(keeper)]
        found = self.ask(f"silo-{keeper}", transfer.slot_request(keeper, offered))
        assert isinstance(found, SlotEntries)
        return found

    def again(self, keeper, detour):
        """Lead a keeper back to where it opens tables: of the same round, or of the first one after the second."""
        if self.transfer.rule.private:
            self.ask(f"silo-{keeper}", AnswerRequest(1, self.slots(self.transfer, keeper + 1).answers))
        self.ask(f"silo-{keeper}", TransferRequest(1 + detour))


def totals_from_both_entries(curious, detour):
    """-nu and mu - nu are both entries of a user's table; their difference and a = W - mu give W."""
    both = curious.transfer, replace(curious.transfer, sample=~curious.transfer.sample)
    sample, roles, found = curious.transfer.sample, curious.transfer.roles, np.zeros_like(curious.transfer.blinded)
    for keeper in range(roles.silos):
        users, entries = roles.dealt_by(roles.dealer(keeper)), []
        for number, transfer in enumerate(both):
            if number:
                curious.again(keeper, detour)
            entries.append(transfer.entries(keeper, curious.slots(transfer, keeper), "server"))
        chosen = sample[users][:, None, None]
        mu = np.where(chosen, ring.subtract(*entries), ring.subtract(*entries[::-1]))
        found[users] = ring.add(curious.transfer.blinded[users], mu)
    return totals_of(centred(found))


def slots_of_a_dealer(curious, detour):
    """j of the first silo's users. A keeper that seals two answers under one key shows their difference.

    The server offers other tables the second time: it knows every entry, and at which of them they differ like that.
    """
    first, second = curious.transfer, replace(curious.transfer, round=1)
    second.__dict__["_masks"] = ring.add(first._masks, ring.number(12345))
    answers = [curious.slots(first, 1).answers]
    curious.again(1, detour)
    answers.append(curious.slots(second, 1).answers)
    bits = np.bitwise_xor(*(np.frombuffer(one[:-16], dtype=np.uint8) for one in answers)).reshape(-1, 12)
    shape = (len(bits), first.rule.count, 12)
    tables = [np.frombuffer(one._offers(0), dtype=np.uint8).reshape(shape) for one in (first, second)]
    places = [(table == row).all(axis=1).argmax() for table, row in zip(np.bitwise_xor(*tables), bits, strict=True)]
    rotations = first.rule.rotations(first.keys[0], (first.setup, 1, OFFERED), len(bits))
    return ((places - rotations) % first.rule.count).tolist()


def drawn_by_the_first_silo(curious):
    return SiloKnowledge(curious.silos["silo-0"].side).drawn_slots(1)


def asks_as_often_as_it_likes(monkeypatch):
    monkeypatch.setattr(SiloSession, "_check_preparation", lambda self, body: self._check_round(body.round))


DETOURS = pytest.mark.parametrize("detour", [0, 1], ids=["the same round again", "over another round"])


@DETOURS
def test_a_table_that_is_opened_twice_would_tell_the_server_every_total(monkeypatch, detour):
    with pytest.raises(MessageRefused, match="prepared"):
        totals_from_both_entries(Curious(sample_rate=0.5), detour)
    asks_as_often_as_it_likes(monkeypatch)
    assert totals_from_both_entries(Curious(sample_rate=0.5), detour) == TOTALS.tolist()


@DETOURS
def test_a_second_answer_would_tell_the_server_the_dealers_slots_and_so_the_sample(monkeypatch, detour):
    settings = {"sample_rate": 0.1, "sampling": "private"}
    with pytest.raises(MessageRefused, match="prepared"):
        slots_of_a_dealer(Curious(**settings), detour)
    asks_as_often_as_it_likes(monkeypatch)
    curious = Curious(**settings)
    assert slots_of_a_dealer(curious, detour) == drawn_by_the_first_silo(curious)


def test_a_refused_preparation_changes_nothing_and_the_next_round_is_prepared():
    curious = Curious(sample_rate=0.5)
    curious.slots(curious.transfer, 0)
    before = curious.silos["silo-0"].save()
    with pytest.raises(MessageRefused, match="prepared"):
        curious.ask("silo-0", TransferRequest(1))
    assert curious.silos["silo-0"].save() == before
    curious.ask("silo-0", TransferRequest(2))  # whoever was left out of a round's updates


def test_a_key_with_a_large_error_would_strip_the_encryptions_of_zero_as_documented():
    """b = -a s + e + 2^85 looks like any other key. The decrypted total then has 2^85 v in it, above rows and noise."""
    attacked = Attacked(ring.N)
    attacked.silo._public = ring.add(attacked.silo._public, ring.number(2**85))
    body = attacked.body(attacked.other, 0)
    v = np.array([round(value / 2**85) for value in attacked.phase(body).to_integers()])
    assert set(v.tolist()) == {-1, 0, 1}
    stripped = ring.subtract(body.c1[0], ring.multiply(ring.to_evaluations(ring.from_integers(v)), attacked.a))
    # What is left of the right guess is f1, of another one everything.
    right, wrong = (
        size(ring.subtract(stripped, attacked.data_part(rows)[0])) for rows in (attacked.other, attacked.known)
    )
    assert right < 6 < 90 < wrong
