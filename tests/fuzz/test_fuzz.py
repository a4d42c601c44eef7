"""The fuzzer: nothing is found in a short run, and what is planted is found."""

import json

import pytest
from tests.fuzz import fuzzer as fuzz
from tests.fuzz.mutations import MUTATIONS

from uldp.aggregation.key_agreement import SiloKey
from uldp.errors import ConfigError
from uldp.protocol import messages as m
from uldp.sessions.server import ServerSession
from uldp.sessions.silo import SiloSession


def findings(report):
    return [finding for case in report["cases"] for finding in case["findings"]]


def test_mutated_messages_are_refused_and_change_nothing():
    """A few thousand at every place of every case; `make fuzz` is the long run."""
    report = fuzz.run_fuzz(3_000, seed=1)
    assert findings(report) == []
    for case in report["cases"]:
        assert case["refused"] > 40 and case["refused"] + case["taken"] + case["failed"] >= report["places"] / 10
    assert sum(case["refused"] + case["taken"] for case in report["cases"]) <= 3_000
    assert sum(case["taken"] for case in report["cases"]) > 10


@pytest.fixture
def recorded(monkeypatch):
    """The genuine run was well: errors are planted later."""
    case = fuzz.Case(fuzz.CASES["plain, no guarantee"])
    monkeypatch.setattr(fuzz, "Case", lambda sections: case)


def planted(monkeypatch, owner, name, error=None):
    """``owner.name`` also raises ``error``, or changes something, before it does its work."""
    original = getattr(owner, name)

    def wrong(self, *arguments):
        if error is not None:
            raise error
        self.left_out += 1
        return original(self, *arguments)

    monkeypatch.setattr(owner, name, wrong)


@pytest.mark.parametrize(
    ("owner", "name", "error", "what"),
    [
        (SiloSession, "_check_round", None, "refused, and the state is another"),
        (SiloSession, "_check_round", IndexError("of no message"), "IndexError in uldp/"),
        (ServerSession, "_check_response", OverflowError(), "OverflowError in uldp/"),
        (ServerSession, "charge", KeyError("x"), "taken, then KeyError"),
    ],
)
def test_planted_errors_are_found(monkeypatch, recorded, owner, name, error, what):
    planted(monkeypatch, owner, name, error)
    report = fuzz.run_fuzz(1_200, seed=3, cases=["plain, no guarantee"])
    assert any(finding.startswith(what) for finding in findings(report))


def test_a_number_that_cannot_be_saved_is_found(monkeypatch):
    """What crashed a server once: nobody bounded the number of saturated coordinates."""
    monkeypatch.setattr(ServerSession, "_max_saturated", 2**64)
    report = fuzz.run_fuzz(3_000, seed=0, cases=["plain, no guarantee"])
    assert any(finding.startswith("taken, then OverflowError") for finding in findings(report))


def test_what_a_series_leaves_behind_is_found(monkeypatch):
    receive = ServerSession.receive

    def forgetful(self, name, reply):
        if len(reply) == 7:  # a response of random bytes: something hidden changes
            self._heard.append(0)
        receive(self, name, reply)

    monkeypatch.setattr(ServerSession, "silos_heard", ())
    monkeypatch.setattr(ServerSession, "receive", forgetful)
    report = fuzz.run_fuzz(3_000, seed=0, cases=["plain, no guarantee"])
    assert any(finding.startswith("the genuine exchange comes out otherwise") for finding in findings(report))


def test_every_mutation_is_made_and_the_same_for_a_seed():
    import random

    messages = [
        m.encode("d" * 64, "silo-1", body) for body in (SiloKey(b"k" * 32, b"s" * 64), m.CountsRequest(), m.Close())
    ]
    for mutation in set(MUTATIONS):
        made = [mutation(random.Random(seed), messages) for seed in range(30)]
        assert made == [mutation(random.Random(seed), messages) for seed in range(30)]
        assert any(one not in messages for one in made) or mutation.__name__ == "replayed"


def test_the_command_prints_counts_and_ends_with_1_when_it_finds_something(monkeypatch, recorded, capsys):
    arguments = ["--messages", "60", "--case", "plain, no guarantee"]
    assert fuzz.main(arguments) == 0 and json.loads(capsys.readouterr().out)["messages"] == 60
    planted(monkeypatch, ServerSession, "_check_response", ZeroDivisionError())
    assert fuzz.main(arguments) == 1 and "ZeroDivisionError" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--messages: at least 1, not 0"):
        fuzz.run_fuzz(0)
    with pytest.raises(ConfigError, match="--case: unknown case"):
        fuzz.run_fuzz(1, cases=["unknown"])
