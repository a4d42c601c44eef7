"""One authenticated silo that says absurd things, and unexpected errors: a refusal or one sentence."""

import msgspec
import pytest
from tests.core.test_sessions import ask
from tests.federation.federation_support import World, experiment, parties
from tests.support import build, decode, make_sessions, small_federation

from uldp.errors import MessageRefused, RunError
from uldp.experiment.config import Experiment
from uldp.protocol import messages as m
from uldp.runtimes.silo_process import SiloProcess
from uldp.runtimes.simulation import run
from uldp.sessions.server import ServerSession, Stage
from uldp.sessions.silo import SiloSession


@pytest.fixture
def world(tmp_path):
    made = []

    def make(built, fault=None):
        made.append(World(tmp_path, built, fault))
        return made[-1]

    yield make
    for one in made:
        one.close()


def built_for(kind):
    """An experiment in which one of the three silos may be missing."""
    tree = experiment(aggregation={"min_silos": 2}).to_tree()
    if kind == "without a guarantee":
        tree |= {"method": {"name": "fedavg", "rounds": 3, "local_epochs": 1}, "privacy": {}}
    return Experiment.from_tree(tree)


def saying(**changes):
    """The third silo's updates carry something else."""

    def fault(made, name, request):
        reply, plan = made.ask(name, request), parties(made.built)[0].plan
        body = decode(reply, experiment=plan.digest, silo=name, limit=plan.message_limit)
        if name == "silo-3" and isinstance(body, m.Update):
            return m.encode(plan.digest, name, msgspec.structs.replace(body, **changes))
        return reply

    return fault


@pytest.mark.parametrize("kind", ["private", "without a guarantee"])
@pytest.mark.parametrize("changes", [{"saturated": 2**64 - 1}, {"round": 2**64 - 1}])
def test_a_number_that_cannot_be_is_that_silo_s_trouble_and_nobody_else_s(world, kind, changes):
    said = []
    made = world(built_for(kind), saying(**changes))
    result = made.serving("exclude", on_trouble=said.append).run()
    assert [report.missing for report in result.reports] == [("silo-3",)] * 3
    assert set().union(*said) == {"silo-3"} and all(one["silo-3"].refused for one in said)
    assert result.saturated == 0


@pytest.mark.parametrize(("name", "most"), [("fedavg", 3 * 4), ("uldp-avg", 0)])
def test_saturated_coordinates_are_bounded_by_what_can_be_cut_off(name, most):
    server, silos = make_sessions(build(name, rounds=2), small_federation())
    for silo, request in server.requests().items():
        server.receive(silo, silos[silo].reply(request))
    server.collect()
    reply = silos["silo-0"].reply(server.requests()["silo-0"])
    update = decode(reply, experiment="d" * 64, silo="silo-0", limit=10**6)
    for wrong in (most + 1, -1, 2**63, 2**64 - 1):
        with pytest.raises(MessageRefused, match=f"saturated lies between 0 and {most}, not {wrong}"):
            server.receive("silo-0", ask(msgspec.structs.replace(update, saturated=wrong)))
    server.receive("silo-0", ask(msgspec.structs.replace(update, saturated=most)))


class Unforeseen(Exception):
    """Not one of ours."""


def raising(*arguments, **named):
    raise Unforeseen("patient 17")


@pytest.mark.parametrize("where", ["collect", "save", "charge", "advance"])
def test_an_error_that_nobody_foresaw_stops_the_server_with_one_sentence_and_nothing_is_lost(world, monkeypatch, where):
    made = world(experiment())
    with monkeypatch.context() as patch:
        patch.setattr(ServerSession, where, raising)
        with pytest.raises(RunError, match=r"unexpected error \(Unforeseen in uldp/runtimes/\w+.py, line") as error:
            made.serving().run()
    assert "patient 17" not in str(error.value)
    assert made.serving().run().model.tobytes() == run(made.built).model.tobytes()


def test_an_answer_that_makes_the_server_fail_is_refused_and_its_silo_named(world, monkeypatch):
    said, receive = [], ServerSession.receive

    def fails(self, name, reply):
        return raising() if name == "silo-3" and self.stage is Stage.ROUND else receive(self, name, reply)

    monkeypatch.setattr(ServerSession, "receive", fails)
    made = world(built_for("private"))
    result = made.serving("exclude", on_trouble=said.append).run()
    assert result.reports[-1].missing == ("silo-3",)
    assert "cannot be taken (Unforeseen in" in said[0]["silo-3"].reason and "patient" not in said[0]["silo-3"].reason


def test_a_silo_that_cannot_save_for_a_reason_nobody_foresaw_refuses_and_goes_on(tmp_path, monkeypatch):
    server, silos = parties(experiment())
    silo = SiloProcess(silos["silo-1"], tmp_path, "unix:/unused")
    request = m.encode(server.plan.digest, "silo-1", server.plan.hello)
    with monkeypatch.context() as patch:
        patch.setattr(SiloSession, "save", raising)
        header, body = silo.respond({"kind": "request"}, request)
    assert header["kind"] == "refused" and b"its own log" in body and b"patient" not in body
    assert silo.respond({"kind": "request"}, request)[0]["kind"] == "reply"
    silo.close()
