"""An aggregation of somebody else's, with messages of its own: one file, nothing registered elsewhere."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from tests.core.test_sessions import build
from tests.support import drive_with_restarts, make_sessions, small_federation

from uldp.aggregation.base import ModularSumServer, ModularSumSilo
from uldp.aggregation.plain import Plain
from uldp.errors import ConfigError, MessageRefused
from uldp.protocol import messages as m
from uldp.protocol.turns import Exchange, Phase, Route


class PadRequest(m.Message, frozen=True):
    """Server: your pad?"""

    length: int


class Pad(m.Message, frozen=True):
    """Silo: what I shall add to every residue."""

    pad: int


class Update(m.Message, frozen=True):
    """Has the name of a message that there is."""


@dataclass(frozen=True)
class Padded(Plain):
    """Every silo adds a number that it has told the server before: of no use, but with an exchange of its own."""

    name: ClassVar[str] = "padded"
    response: type[m.Message] = Pad

    def route(self, release):
        return Route((Exchange(PadRequest, self.response, "padded"), *super().route(release).setup))

    def server(self, context, secrets):
        return PaddedServer(context, secrets)

    def silo(self, context, index, counts, secrets, identity):
        return PaddedSilo(context, index, counts, secrets)


class PaddedServer(ModularSumServer):
    def ask(self, request, silo):
        return PadRequest(self._context.facts.dimension)

    def check(self, silo, body):
        if body.pad > 100:
            raise MessageRefused("too large", location=f"silo {silo}")

    def collect(self, request, responses):
        self.pads = {silo: body.pad for silo, body in responses.items()}

    def total(self, vectors):
        residues = {
            silo: m.unpack_residues(vector, self._context.facts.dimension, silo) for silo, vector in vectors.items()
        }
        return super().total({silo: m.pack(each - np.uint64(self.pads[silo])) for silo, each in residues.items()})


class PaddedSilo(ModularSumSilo):
    def respond(self, body):
        return Pad(7 + self._index)

    def protect(self, residues, request):
        return residues + np.uint64(7 + self._index)


@pytest.mark.parametrize("method", ["uldp-avg", "uldp-avg-w"])
def test_it_runs_over_its_own_exchange_and_is_restored_from_it(method):
    plain = drive_with_restarts(lambda: make_sessions(build(method), small_federation()))
    padded = drive_with_restarts(lambda: make_sessions(build(method), small_federation(), aggregation=Padded()))
    assert (Phase.CONNECTED, PadRequest) in padded.plan.turns
    assert padded.model.tobytes() == plain.model.tobytes()


def test_its_message_is_refused_out_of_turn_and_elsewhere():
    _, silos = make_sessions(build("uldp-avg"), small_federation(), aggregation=Padded())
    foreign = m.encode("d" * 64, "silo-0", PadRequest(3))
    with pytest.raises(MessageRefused, match="PadRequest is out of turn"):
        silos["silo-0"].reply(foreign)
    _, others = make_sessions(build("uldp-avg"), small_federation())
    with pytest.raises(MessageRefused, match="not a message of this protocol"):
        others["silo-0"].reply(foreign)


def test_a_message_of_its_own_does_not_take_the_name_of_another():
    server, _ = make_sessions(build("uldp-avg"), small_federation())
    with pytest.raises(ConfigError, match="two types of messages have one name"):
        replace(server.plan, aggregation=Padded(response=Update))
