"""A federation over a transport: the simulation's model bit by bit, whatever goes wrong on the way."""

import contextlib
import dataclasses
import errno
import json
import os
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.federation.federation_support import (
    SILOS,
    World,
    away,
    experiment,
    parties,
    signing_key_from,
    with_identities,
)
from tests.support import decode, owner_of

from uldp.errors import RunError
from uldp.privacy.sentences import PUBLIC
from uldp.protocol import messages as m
from uldp.rng import Secrets
from uldp.runs import files
from uldp.runs.directory import RunDirectory
from uldp.runtimes.serving import FailedResponse, Patience
from uldp.runtimes.silo_process import SiloProcess
from uldp.runtimes.simulation import InProcessSilos, run
from uldp.sessions.silo import signing_key

SMALL_KEY = {"name": "paillier", "key_bits": 512, "slots": 1, "max_records": 30}
FEW = {"name": "uldp-avg-w", "rounds": 3, "local_epochs": 1}
CASES = {
    "plain": {"aggregation": {"name": "plain"}},
    "masked": {},
    "masked, sampled": {"method": {"sample_rate": 0.5}},
    "paillier": {"aggregation": SMALL_KEY, "method": FEW},
    "private sampling": {"aggregation": SMALL_KEY, "method": {**FEW, "sample_rate": 0.5, "sampling": "private"}},
    "lattice": {"aggregation": {"name": "lattice"}, "method": FEW},
    "lattice, private sampling": {
        "aggregation": {"name": "lattice"},
        "method": {**FEW, "sample_rate": 0.5, "sampling": "private"},
    },
}
DROPS = {"privacy": {"noise_multiplier": 5.0, "dropout_tolerance": 1}}
"""One of three silos may be missing."""
_SIMULATED: dict[str, object] = {}


@pytest.fixture
def world(tmp_path):
    made = []

    def make(built, fault=None, **further):
        made.append(World(tmp_path, built, fault, **further))
        return made[-1]

    yield make
    for one in made:
        one.close()


def simulated(built):
    key = built.digest()
    if key not in _SIMULATED:
        _SIMULATED[key] = run(built)
    return _SIMULATED[key]


def update_of(reply, plan, name):
    body = decode(reply, experiment=plan.digest, silo=name, limit=plan.message_limit)
    return body if isinstance(body, m.Update) else None


def updates(world):
    """What left each silo for each round, and for which set of silos."""
    plan, found = parties(world.built)[0].plan, {}
    for name, _, reply in world.sent:
        body = update_of(reply, plan, name)
        if body is not None:
            found.setdefault((name, body.round, body.present), set()).add(body.vector)
    return found


def check_nothing_left_twice(world):
    """One vector for each silo, round and set of silos; under plain also over all sets."""
    found = updates(world)
    assert all(len(vectors) == 1 for vectors in found.values())
    if world.built.aggregation.name == "plain":
        rounds = {}
        for (name, round_, _), vectors in found.items():
            rounds.setdefault((name, round_), set()).update(vectors)
        assert all(len(vectors) == 1 for vectors in rounds.values())


def check_same(result, expected):
    assert result.model.tobytes() == expected.model.tobytes()
    assert [report.metrics for report in result.reports] == [report.metrics for report in expected.reports]
    assert result.entries == expected.entries
    assert result.epsilon == expected.epsilon


@pytest.mark.parametrize("case", CASES)
def test_a_rehearsal_ends_with_the_simulation_s_model(world, case):
    built = experiment(**CASES[case])
    made = world(built)
    check_same(made.serving().run(), simulated(built))
    check_nothing_left_twice(made)


@pytest.mark.parametrize("case", ["private sampling", "lattice, private sampling"])
def test_a_simulation_with_the_silos_long_term_keys_sends_what_the_federation_sends(world, tmp_path, case):
    """The sample that nobody knows follows from all keys; ``uldp rehearse`` compares with such a simulation."""
    built = with_identities(tmp_path, secrets="simulated", **CASES[case])
    made = world(built, keys=tmp_path)
    result, told = made.serving().run(), []
    keys = [signing_key_from(tmp_path / f"{name}.key") for name in SILOS]
    expected = run(built, silos=InProcessSilos(keys), record=lambda receiver, sender, message: told.append(message))
    assert result.model.tobytes() == expected.model.tobytes()
    assert {reply for _, _, reply in made.sent} <= set(told)


@pytest.mark.parametrize("aggregation", [{"name": "masked"}, SMALL_KEY])
def test_without_noise_secrets_of_everybody_s_own_give_the_same_model(world, tmp_path, aggregation):
    options = {"method": FEW, "privacy": {"noise_multiplier": 0.0}}
    built = with_identities(tmp_path, aggregation=aggregation, **options)
    made = world(built, keys=tmp_path)
    result = made.serving().run()
    expected = simulated(experiment(aggregation=aggregation, **options)).model
    if aggregation["name"] == "masked":
        assert result.model.tobytes() == expected.tobytes()
    # Under paillier everybody's secret dither rounds each coordinate of the total, by a unit per silo at most.
    units = 3 * 3 / parties(built)[0].plan.release.encoding.integer_limit
    assert np.abs(result.model - expected).max() <= units
    assert not result.statement.simulated
    assert not list(tmp_path.glob("*/experiments/*/secrets.key"))  # forgotten at the end, by everybody


def test_the_run_directory_is_that_of_a_simulation(world, tmp_path):
    built = experiment()
    made = world(built)
    made.serving().run()
    directory = RunDirectory.create(tmp_path / "simulated", built)
    run(built, directory)
    assert {p.name for p in (tmp_path / "run").iterdir()} == {p.name for p in directory.path.iterdir()}
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == (directory.path / "ledger.jsonl").read_bytes()
    ours, theirs = (json.loads((path / "result.json").read_text()) for path in (tmp_path / "run", directory.path))
    assert ours["metrics"] == theirs["metrics"]
    codes = [[caveat["code"] for caveat in one["statement"]["caveats"]] for one in (ours, theirs)]
    assert ["one-place" in each for each in codes] == [False, True]


# --- faults that nothing may change ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["plain", "masked", "private sampling"])
def test_a_server_that_is_killed_at_every_point_goes_on(world, case):
    """It dies before, during and after every exchange; each time a new one continues from the checkpoint."""
    built = experiment(**CASES[case])

    class Dies(BaseException):
        """As a signal does, not as an error."""

    seen = set()

    def once(*point):
        if point not in seen:
            seen.add(point)
            raise Dies

    def fault(made, name, request):
        once(name, request, "before")
        answer = made.ask(name, request)
        once(name, request, "after")
        return answer

    made, result = world(built, fault), None
    while result is None:
        with contextlib.suppress(Dies):
            result = made.serving().run()
    check_same(result, simulated(built))
    check_nothing_left_twice(made)
    assert len(seen) >= 2 * 3 * 5  # before and after every silo's response in every exchange


@pytest.mark.parametrize("point", ["append_ledger", "append_metrics", "save_model", "write_json", "forget_secrets"])
@pytest.mark.parametrize("after", [False, True])
def test_a_server_that_is_killed_while_it_writes_goes_on(world, monkeypatch, point, after):
    built = experiment()
    made = world(built)
    serving = made.serving()
    owner = owner_of(point)
    original, calls = getattr(owner, point), []

    def dies(self, *arguments):
        if after:
            original(self, *arguments)
        calls.append(arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, point, dies)
        with pytest.raises(KeyboardInterrupt):
            serving.run()
    result = made.serving().run()
    check_same(result, simulated(built))
    check_nothing_left_twice(made)
    entries = RunDirectory.open(made.folder / "run").log.ledger_entries()
    assert [entry.round for entry in entries] == [1, 2, 3]


@pytest.mark.parametrize("case", CASES)
def test_silos_that_are_killed_before_and_after_every_answer_go_on(world, case):
    built = experiment(**CASES[case])

    def fault(made, name, request):
        made.kill(name)
        first = made.ask(name, request)
        made.kill(name)  # after it has answered, and the response is lost
        assert made.ask(name, request) == first
        return first

    made = world(built, fault)
    check_same(made.serving().run(), simulated(built))
    check_nothing_left_twice(made)


faults = st.lists(st.sampled_from(["well", "lost", "kill", "kill after", "lost answer", "garbage"]), max_size=40)


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(plan=faults, case=st.sampled_from(["plain", "masked"]))
def test_whatever_goes_wrong_and_passes_changes_nothing(tmp_path_factory, plan, case):
    built, left = experiment(**CASES[case]), list(plan)

    def fault(made, name, request):
        what = left.pop() if left else "well"
        if what == "lost":
            return FailedResponse("lost")
        if what == "garbage":
            return b"garbage"
        if what == "kill":
            made.kill(name)
        answer = made.ask(name, request)
        if what == "kill after":
            made.kill(name)
        return FailedResponse("lost") if what == "lost answer" else answer

    made = World(tmp_path_factory.mktemp("world"), built, fault)
    try:
        check_same(made.serving("wait").run(), simulated(built))
        check_nothing_left_twice(made)
    finally:
        made.close()


def wrong_vector(times):
    """The third silo's vector does not fit to the others' so often."""
    left = [times]

    def fault(made, name, request):
        reply, plan = made.ask(name, request), parties(made.built)[0].plan
        if name == "silo-3" and left[0] and (body := update_of(reply, plan, name)) is not None:
            left[0] -= 1
            return m.encode(plan.digest, name, msgspec.structs.replace(body, vector=b"\x7f" * len(body.vector)))
        return reply

    return fault


def test_answers_that_do_not_add_up_are_asked_for_once_more(world):
    built, said = experiment(), []
    made = world(built, wrong_vector(1))
    check_same(made.serving(on_trouble=said.append).run(), simulated(built))
    assert list(said[0]) == ["silo-1", "silo-2", "silo-3"] and "asked again" in said[0]["silo-1"].reason


def test_answers_that_never_add_up_stop_the_run_with_a_sentence(world):
    built = experiment()
    made = world(built, wrong_vector(99))
    with pytest.raises(RunError, match=r"do not fit together, twice .*whose is wrong; compare .* resume"):
        made.serving("exclude").run()
    made.fault = None
    check_same(made.serving().run(), simulated(built))


def test_a_no_that_is_said_once_does_not_count(world):
    built, left = experiment(), ["no", "no, really"]

    def fault(made, name, request):
        return FailedResponse(left.pop(), refused=True) if name == "silo-1" and left else made.ask(name, request)

    made = world(built, fault)
    check_same(made.serving("stop").run(), simulated(built))
    assert made.time.time < 60
    made = world(built, lambda made, name, request: FailedResponse("no", refused=True))
    made.folder = made.folder / "second"
    made.folder.mkdir()
    with pytest.raises(RunError, match="stopped without"):
        made.serving("stop").run()
    assert made.exchanges == 2


# --- silos that stay away --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", ["plain", "masked"])
def test_a_round_goes_on_without_a_silo_and_says_so(world, tmp_path, aggregation):
    built = experiment(aggregation={"name": aggregation}, **DROPS)
    plan = parties(built)[0].plan
    made = world(built, away("silo-2", [2], plan))
    result = made.serving("exclude").run()
    assert [report.missing for report in result.reports] == [(), ("silo-2",), ()]
    events = [entry.event for entry in RunDirectory.open(tmp_path / "run").log.ledger_entries()]
    full, fewer = plan.release.event(3), plan.release.event(2)
    assert events == [full, fewer, full]
    check_nothing_left_twice(made)
    caveats = {caveat.code: caveat.text for caveat in result.statement.caveats}
    assert "Silos were missing in 1 of 3 rounds" in caveats["silos-missing"]
    assert ("A server that lies about who is missing" in caveats.get("repeated-rounds", "")) == (
        aggregation == "masked"
    )
    again = made.serving("exclude").run()  # a finished run is only read
    assert [report.missing for report in again.reports] == [(), ("silo-2",), ()]


def test_a_silo_that_stays_away_is_not_waited_for_as_long_in_every_round(world):
    """Patience is 60 seconds, a twentieth of it the second time; once back, a silo is waited for as any other."""
    away, reports = set(), []

    def fault(made, name, request):
        return FailedResponse("gone") if name in away else made.ask(name, request)

    made = world(experiment(method={"rounds": 6}, **DROPS), fault)

    def after(report):
        reports.append((report.missing, made.time.time))
        away.clear()
        if report.round != 3:
            away.add("silo-3")

    made.serving("exclude", on_round=after).run()
    gone = ("silo-3",)
    assert [missing for missing, _ in reports] == [(), gone, gone, (), gone, gone]
    took = [round(later - before) for before, later in pairwise([0.0, *(time for _, time in reports)])]
    assert took[0] == took[3] == 0
    assert took[1] >= 60 and took[4] >= 60
    assert 0 < took[2] < 15 and 0 < took[5] < 15


def test_a_slow_silo_that_was_left_out_once_comes_back(world):
    """It needs less than the patience, and more than a twentieth of it: others' rounds have shown how long it takes."""
    began, reports = {}, []

    def fault(made, name, request):
        if name != "silo-3":
            return made.ask(name, request)
        busy = made.time.time - began.setdefault(request, made.time.time) < 25
        return FailedResponse("not yet", late=True) if busy or len(reports) == 1 else made.ask(name, request)

    made = world(experiment(method={"rounds": 4}, **DROPS), fault)
    made.serving("exclude", on_round=lambda report: reports.append(report.missing)).run()
    assert reports == [(), ("silo-3",), (), ()]


def test_a_repeated_round_counts_as_plain_towards_the_server(world):
    built = experiment(**DROPS)
    plan = parties(built)[0].plan
    usual = world(built).serving().run().statement
    made = world(built, away("silo-2", [1, 2, 3], plan))
    made.folder = made.folder / "second"
    made.folder.mkdir()
    repeated = made.serving("exclude").run().statement
    by_plain = simulated(experiment(aggregation={"name": "plain"}, **DROPS)).statement
    of, plainly, usually = ({row.who: row.epsilon for row in one.exposures} for one in (repeated, by_plain, usual))
    assert of["the server"] == plainly["the server"]
    assert of[PUBLIC] > usually[PUBLIC]


def test_the_model_of_a_repeated_round_is_that_of_the_others(world, tmp_path):
    """Plain and masked agree bit by bit, also with a silo missing."""
    models = []
    for aggregation in ("plain", "masked"):
        built = experiment(aggregation={"name": aggregation}, **DROPS)
        made = world(built, away("silo-3", [1, 3], parties(built)[0].plan))
        made.folder = tmp_path / aggregation
        made.folder.mkdir()
        models.append(made.serving("exclude").run().model.tobytes())
    assert models[0] == models[1]


def test_the_missing_silo_answered_and_its_answer_was_lost(world):
    """It has released its vector already; in the next round it goes on as if nothing had happened."""
    built = experiment(**DROPS)
    plan = parties(built)[0].plan

    def fault(made, name, request):
        body = decode(request, experiment=plan.digest, silo=name, limit=plan.message_limit)
        answer = made.ask(name, request)
        lost = name == "silo-1" and isinstance(body, m.UpdateRequest) and body.round == 2
        return FailedResponse("lost") if lost else answer

    made = world(built, fault)
    result = made.serving("exclude").run()
    assert [report.missing for report in result.reports] == [(), ("silo-1",), ()]
    check_nothing_left_twice(made)


def test_a_server_killed_between_the_attempts_goes_on_with_the_second(world):
    built = experiment(**DROPS)
    plan = parties(built)[0].plan
    made = world(built, away("silo-2", [2], plan))
    sleep = made.time.pass_by

    def dies(seconds):
        sleep(seconds)
        checkpoint = RunDirectory.open(made.folder / "run").state.load_checkpoint()
        if msgspec.msgpack.decode(checkpoint.server)["absent"]:
            raise KeyboardInterrupt

    made.time.pass_by = dies
    with pytest.raises(KeyboardInterrupt):
        made.serving("exclude").run()
    made.time.pass_by = sleep
    made.fault = None  # the silo is back, but the round is being repeated without it
    result = made.serving("exclude").run()
    assert [report.missing for report in result.reports] == [(), ("silo-2",), ()]
    check_nothing_left_twice(made)


@pytest.mark.parametrize(("case", "sections"), [("masked", {}), ("paillier", {}), ("masked", DROPS)])
def test_a_silo_that_never_comes_back_stops_the_run_which_can_be_resumed(world, case, sections):
    built = experiment(**{**CASES[case], **sections})
    made = world(built, away("silo-2", [2], parties(built)[0].plan))
    with pytest.raises(RunError, match=r"stopped without silo-2 \(silo-2: no response\); nothing is lost"):
        made.serving("stop").run()
    assert made.time.time >= 60  # it was asked again until patience ended
    made.fault = None
    check_same(made.serving().run(), simulated(built))
    check_nothing_left_twice(made)


@pytest.mark.parametrize(
    ("case", "reason"),
    [("masked", r"2 silos are left, and a round needs 3 \(aggregation.min_silos\)"), ("paillier", "under paillier")],
)
def test_where_nobody_may_be_missing_the_run_stops_with_one_sentence(world, case, reason):
    built = experiment(**CASES[case])
    made = world(built, away("silo-2", [2], parties(built)[0].plan))
    with pytest.raises(RunError, match=reason):
        made.serving("exclude").run()
    made.fault = None
    check_same(made.serving().run(), simulated(built))


def test_a_silo_that_is_slow_is_waited_for(world):
    built = experiment()
    late = {"silo-3": 5}

    def fault(made, name, request):
        if late.get(name, 0) > 0:
            late[name] -= 1
            return FailedResponse("beyond the time limit")
        return made.ask(name, request)

    made, seen = world(built, fault), []
    check_same(made.serving("wait", on_trouble=seen.append).run(), simulated(built))
    assert [list(trouble) for trouble in seen] == [["silo-3"]] * 5


def test_a_missing_response_to_close_does_not_hold_up_the_result(world):
    built = experiment()
    plan = parties(built)[0].plan

    def fault(made, name, request):
        body = decode(request, experiment=plan.digest, silo=name, limit=plan.message_limit)
        return FailedResponse("gone home") if isinstance(body, m.Close) else made.ask(name, request)

    check_same(world(built, fault).serving("stop").run(), simulated(built))


def is_finish(made, name, request):
    plan = parties(made.built)[0].plan
    return isinstance(decode(request, experiment=plan.digest, silo=name, limit=plan.message_limit), m.Close)


@pytest.mark.parametrize("on_missing", ["wait", "stop", "exclude"])
def test_responses_to_close_are_asked_for_when_all_is_written_and_waited_for_half_a_minute(world, on_missing):
    seen = []

    def fault(made, name, request):
        if not is_finish(made, name, request):
            return made.ask(name, request)
        seen.append((made.folder / "run" / "result.json").exists() and (made.folder / "run" / "model.npz").exists())
        return FailedResponse("lost", late=True) if name == "silo-2" else made.ask(name, request)

    made = world(experiment(), fault)
    patience = Patience(seconds=3600, attempt=60, pause=1, on_missing=on_missing)
    check_same(made.serving(patience=patience).run(), simulated(made.built))
    assert seen and all(seen)
    assert 30 <= made.time.time <= 35
    before = made.exchanges
    check_same(made.serving().run(), simulated(made.built))  # and nobody is asked again
    assert made.exchanges == before


def test_a_server_that_dies_while_it_waits_for_responses_to_close_asks_for_them_again(world, tmp_path):
    dying = [True]

    def fault(made, name, request):
        if is_finish(made, name, request) and name == "silo-2" and dying:
            dying.pop()
            raise KeyboardInterrupt
        return made.ask(name, request)

    built = with_identities(tmp_path)
    made = world(built, fault, keys=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        made.serving().run()
    key = tmp_path / "run" / "private" / "secrets.key"
    assert (tmp_path / "run" / "result.json").exists() and key.exists()
    written = (tmp_path / "run" / "result.json").read_bytes()
    made.serving().run()
    assert (tmp_path / "run" / "result.json").read_bytes() == written
    assert all(made.silo(name).closed for name in parties(built)[1]) and not key.exists()


# --- silos that say something else -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [b"", b"garbage", bytes(10**6), m.encode("f" * 64, "silo-2", m.Closed())],
    ids=["", "x", "long", "foreign"],
)
def test_garbage_is_no_answer(world, garbage):
    built = experiment()
    made = world(built, lambda made, name, request: garbage if name == "silo-2" else made.ask(name, request))
    with pytest.raises(RunError, match="stopped without silo-2"):
        made.serving().run()
    made.fault = None
    check_same(made.serving().run(), simulated(built))


def test_a_vector_that_leaves_the_range_stops_the_run_before_anything_is_charged(world, tmp_path):
    built = experiment()
    plan = parties(built)[0].plan

    def fault(made, name, request):
        answer = made.ask(name, request)
        body = update_of(answer, plan, name)
        if name == "silo-2" and body is not None:
            noise = m.pack(np.full(plan.facts.dimension, 2**62, dtype=np.uint64))
            return m.encode(plan.digest, name, m.Update(body.round, noise, 0))
        return answer

    made = world(built, fault)
    with pytest.raises(Exception, match="deviated from the protocol"):
        made.serving().run()
    assert RunDirectory.open(tmp_path / "run").log.ledger_entries() == ()
    made.fault = None
    check_same(made.serving().run(), simulated(built))


@pytest.mark.parametrize(
    "other",
    [
        {"method": {"local_epochs": 2}},
        {"model": {"name": "mlp"}},
        {"privacy": {"noise_multiplier": 1.0}},
        {"aggregation": {"name": "plain"}},
        {"run": {"threads": 1, "seed": 1}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_silo_with_another_experiment_is_told_so(world, other):
    built, odd = experiment(), World(world(experiment()).folder / "odd", experiment(**other))
    made = world(built, lambda made, name, request: (odd if name == "silo-2" else made).ask(name, request))
    reason = r"dimension = \d+, here it is \d+; compare the files" if "model" in other else "belongs to experiment"
    with pytest.raises(RunError, match=reason):
        made.serving().run()
    odd.close()


def test_a_silo_with_another_roster_is_told_so(world):
    built = experiment()
    made = world(built)
    prepared = parties(built)[1]["silo-2"]
    prepared = dataclasses.replace(prepared, federation=dataclasses.replace(prepared.federation, roster="another"))
    made.running["silo-2"] = SiloProcess(prepared, made.folder / "odd", "unix:/unused")
    with pytest.raises(RunError, match="has another roster"):
        made.serving().run()


@pytest.mark.parametrize("case", ["masked", "paillier"])
def test_two_silos_with_one_identity_do_not_come_together(world, case):
    """silo-3 answers for silo-2 too: it cannot sign for it."""
    built = experiment(**CASES[case])
    made = world(built)
    server, silos = parties(built)
    stranger = signing_key(Secrets.simulated_from_seed(0), 2)
    with pytest.raises(Exception, match="not the one whose public half stands in the experiment"):
        SiloProcess(silos["silo-2"], made.folder / "odd", "unix:/unused", identity=stranger)

    def fault(made, name, request):
        if name != "silo-2":
            return made.ask(name, request)
        body = decode(request, experiment=server.plan.digest, silo=name, limit=server.plan.message_limit)
        answer = made.ask("silo-3", m.encode(server.plan.digest, "silo-3", body))
        if isinstance(answer, FailedResponse):
            return answer
        said = decode(answer, experiment=server.plan.digest, silo="silo-3", limit=server.plan.message_limit)
        return m.encode(server.plan.digest, "silo-2", said)

    made.fault = fault
    with pytest.raises(RunError, match="silo-2: the signature of its key"):
        made.serving().run()


# --- disks -----------------------------------------------------------------------------------------------------------


def full_disk(monkeypatch, matches):
    """Writes to files whose path contains ``matches`` fail as on a full disk."""
    original = files.replace_file

    def write(file, data, mode=0o600):
        if matches in str(file):
            with files.report_disk_errors(file):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(file, data, mode)

    for module in ("uldp.runtimes.silo_state", "uldp.runs.directory", "uldp.runs.records"):
        monkeypatch.setattr(f"{module}.replace_file", write)


def test_a_silo_whose_disk_is_full_sends_nothing_and_loses_nothing(world, monkeypatch):
    built = experiment()
    made = world(built, away("silo-2", [2], parties(built)[0].plan))
    with pytest.raises(RunError):
        made.serving().run()
    made.fault, left = None, len(made.sent)
    with monkeypatch.context() as patch:
        full_disk(patch, "silo-2")
        with pytest.raises(RunError, match="silo-2: trouble with its files, so nothing was sent"):
            made.serving().run()
    assert all(name != "silo-2" for name, _, _ in made.sent[left:])
    check_same(made.serving().run(), simulated(built))
    check_nothing_left_twice(made)


def test_a_silo_whose_disk_was_full_and_which_then_died_computes_it_anew_and_only_once(world, monkeypatch):
    built = experiment()
    made = world(built, away("silo-2", [2], parties(built)[0].plan))
    with pytest.raises(RunError):
        made.serving().run()
    made.fault = None
    with monkeypatch.context() as patch:
        full_disk(patch, "silo-2")
        with pytest.raises(RunError):
            made.serving().run()
    made.kill("silo-2")
    check_same(made.serving().run(), simulated(built))
    check_nothing_left_twice(made)


def test_a_server_whose_disk_is_full_stops_and_goes_on_later(world, monkeypatch):
    built = experiment()
    made = world(built, away("silo-2", [2], parties(built)[0].plan))
    with pytest.raises(RunError):
        made.serving().run()
    made.fault = None
    with monkeypatch.context() as patch:
        full_disk(patch, "checkpoint.bin")
        with pytest.raises(RunError, match="No space left on device"):
            made.serving().run()
    check_same(made.serving().run(), simulated(built))
    check_nothing_left_twice(made)


def test_two_servers_do_not_work_on_one_run(world):
    built = experiment()
    made = world(built)

    def fault(made, name, request):
        with pytest.raises(RunError, match="another process is working on this run"):
            made.serving().run()
        return made.ask(name, request)

    made.fault = fault
    made.serving().run()


def test_a_second_run_of_the_same_experiment_is_told_how_to_go_on(world, tmp_path):
    """Another run has other samples and other noise: silos do not mistake it for the one that they know."""
    made = world(experiment())
    made.serving().run()
    (tmp_path / "run").rename(tmp_path / "finished")
    with pytest.raises(RunError, match=r"round 3 was the last; resume its run, or .* another run\.seed"):
        made.serving().run()


def test_impatience_is_checked():
    with pytest.raises(Exception, match="one of wait, exclude, stop"):
        Patience(on_missing="ignore")
    with pytest.raises(Exception, match="0 or more seconds"):
        Patience(seconds=-1)
