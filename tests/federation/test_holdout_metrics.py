"""Metrics of hold-out people, from the experiment file to result.json: simulated, and by silos on their own."""

import json

import numpy as np
import pytest
from tests.federation.federation_support import SILOS, World, experiment, parties
from tests.federation.test_parties import tables
from tests.support import decode

import uldp
from uldp.data.federation import Records
from uldp.errors import ConfigError, RunError
from uldp.experiment.build import prepare
from uldp.experiment.config import Experiment
from uldp.experiment.parties import prepare_server, prepare_silo
from uldp.protocol import messages as m
from uldp.reports.statement import text
from uldp.runs.directory import RunDirectory
from uldp.runtimes.policy import Policy
from uldp.runtimes.serving import FailedResponse
from uldp.runtimes.simulation import run

ALLOWED = Policy(allow_metrics=True)
NAMES = ["holdout_accuracy", "holdout_loss", "holdout_records"]


def measured(aggregation="masked", **sections):
    data = {"users": 120, "holdout": 0.4, "options": {"records": 600}, **sections.pop("data", {})}
    run_section = {"threads": 1, "evaluate_silos": True, **sections.pop("run", {})}
    method = {"rounds": 2, **sections.pop("method", {})}
    return experiment(aggregation={"name": aggregation}, data=data, run=run_section, method=method, **sections)


def is_metrics(request):
    return b"MetricsRequest" in request[:400]


def holdout_of(result):
    return {name: value for name, value in result.metrics.items() if name.startswith("holdout_")}


# --- in one place


def test_a_simulation_writes_the_metrics_with_the_last_round(tmp_path):
    ready = prepare(measured())
    result = run(ready, str(tmp_path / "run"))
    features = np.concatenate([silo.features for silo in ready.federation.holdout])
    labels = np.concatenate([silo.labels for silo in ready.federation.holdout])
    expected = ready.learner.evaluate(result.model, Records(features, labels))
    assert result.metrics["holdout_records"] == len(labels)
    assert result.metrics["holdout_accuracy"] == pytest.approx(expected["accuracy"], abs=1e-12)
    assert result.metrics["holdout_loss"] == pytest.approx(expected["loss"], abs=1e-5)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    assert not set(NAMES) & set(lines[0]["metrics"])
    assert lines[1]["metrics"] == dict(result.metrics)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["metrics"] == dict(result.metrics)


def test_masked_gives_the_metrics_of_plain_bit_by_bit():
    plain, masked = (run(measured(name)) for name in ("plain", "masked"))
    assert sorted(holdout_of(plain)) == NAMES
    assert holdout_of(plain) == holdout_of(masked)


def test_paillier_masks_them_too():
    aggregation = {"name": "paillier", "key_bits": 1024, "max_records": 12}
    built = Experiment.from_tree({**measured(method={"rounds": 1}).to_tree(), "aggregation": aggregation})
    assert sorted(holdout_of(run(built))) == NAMES


def test_a_finished_run_that_is_read_again_has_them_still(tmp_path):
    first = run(measured(), str(tmp_path / "run"))
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again = uldp.resume(str(tmp_path / "run"))
    assert again.metrics == first.metrics
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_run_that_stops_in_its_last_round_is_resumed_to_the_same_metrics(tmp_path):
    expected = run(measured())

    def stop(report):
        if report.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(measured(), str(tmp_path / "run"), stop)
    result = uldp.resume(str(tmp_path / "run"))
    assert result.metrics == expected.metrics
    assert len(RunDirectory.open(tmp_path / "run").log.metrics()) == 2


def test_holding_people_out_does_not_ask_for_metrics_by_itself():
    result = run(measured(run={"evaluate_silos": False}))
    assert holdout_of(result) == {}
    assert "hold-out" not in "\n".join(text(result.statement))


# --- what is said and what is refused


@pytest.mark.parametrize(
    ("aggregation", "seen"),
    [("masked", "the totals over all silos (under masks)"), ("plain", "each silo's sums")],
)
def test_the_statement_says_who_sees_what_of_whom(aggregation, seen):
    ready = prepare(measured(aggregation))
    result = run(ready)
    for statement in (result.statement, ready.planned_statement()):
        # right below the headline
        (caveat,) = [caveat for caveat in statement.weakening_caveats() if caveat.code == "holdout-metrics"]
        assert caveat.text.startswith("Metrics of hold-out people")
        for words in ("outside the guarantee", "without noise", f"The server sees {seen}", "fewer than 10 people"):
            assert words in caveat.text


def test_a_method_without_a_guarantee_says_it_too():
    built = measured(method={"name": "fedavg", "rounds": 1}, privacy={"noise_multiplier": None})
    assert "holdout-metrics" in [caveat.code for caveat in run(built).statement.weakening_caveats()]


@pytest.mark.parametrize(
    ("sections", "location", "reason"),
    [
        ({"data": {"holdout": 0.0}}, "run.evaluate_silos", "set data.holdout"),
        ({"data": {"holdout": 1.0}}, "data.holdout", "below 1"),
        ({"data": {"holdout": -0.1}}, "data.holdout", "from 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(sections, location, reason):
    with pytest.raises(ConfigError, match=reason) as refused:
        measured(**sections)
    assert refused.value.location == location


def test_a_task_whose_loss_is_no_sum_over_records_is_refused(monkeypatch):
    from uldp.learners.torch import TorchLearner

    monkeypatch.setattr(TorchLearner, "mean_metrics", ())
    with pytest.raises(ConfigError, match="survival times compares records") as refused:
        prepare(measured())
    assert refused.value.location == "run.evaluate_silos"


def test_tables_of_a_simulation_need_a_share_of_their_people(tmp_path):
    built = tables(tmp_path)
    built = Experiment.from_tree({**built.to_tree(), "run": {"evaluate_silos": True}}, tmp_path)
    with pytest.raises(ConfigError, match="nobody is held out") as refused:
        prepare(built)
    assert refused.value.location == "run.evaluate_silos"


# --- each silo on its own


def test_a_federation_ends_with_the_metrics_of_the_simulation(tmp_path):
    world = World(tmp_path, measured(), policy=ALLOWED)
    result = world.serving().run()
    assert sorted(holdout_of(result)) == NAMES
    assert result.metrics == run(measured()).metrics
    assert sum(is_metrics(request) for _, request, _ in world.sent) == len(SILOS)
    world.close()


def test_an_owner_who_did_not_allow_it_refuses_and_the_run_ends_without(tmp_path):
    world, heard = World(tmp_path, measured(), policy=Policy()), []
    result = world.serving(on_trouble=heard.append).run()
    assert holdout_of(result) == {}
    assert result.reports[-1].round == 2
    assert list(heard[0]) == list(SILOS)
    for name, failed in heard[0].items():
        assert failed.refused
        assert failed.reason == (
            f"{name}: its owner does not allow metrics of hold-out people, which carry no noise (policy.allow_metrics)"
        )
    assert heard == heard[:1] * 2  # a refusal counts when it was said twice
    assert all(world.silo(name).closed for name in SILOS)
    world.close()


def test_one_owner_is_enough(tmp_path):
    asked = []

    def fault(world, name, request):
        if is_metrics(request):
            asked.append(name)
            if name == "silo-2":
                return FailedResponse("silo-2: its owner does not allow it", refused=True)
        return world.ask(name, request)

    world = World(tmp_path, measured("plain"), fault=fault, policy=ALLOWED)
    result = world.serving().run()
    assert holdout_of(result) == {}
    assert sorted(asked) == ["silo-1", "silo-2", "silo-2", "silo-3"]  # who has answered is not asked a second time
    world.close()


@pytest.mark.parametrize("on_missing", ["stop", "wait", "exclude"])
def test_a_silo_that_does_not_answer_costs_the_metrics_and_not_the_model(tmp_path, on_missing):
    def fault(world, name, request):
        return FailedResponse("no response") if is_metrics(request) and name == "silo-3" else world.ask(name, request)

    world = World(tmp_path, measured(), fault=fault, policy=ALLOWED)
    result = world.serving(on_missing).run()
    assert holdout_of(result) == {}
    assert result.model.tobytes() == run(measured()).model.tobytes()
    world.close()


def test_a_silo_that_missed_the_last_round_is_measured_like_the_others(tmp_path):
    def fault(world, name, request):
        body = decode(request, experiment=parties(world.built)[0].plan.digest, silo=name, limit=10**7)
        late = name == "silo-3" and isinstance(body, m.UpdateRequest) and body.round == 2
        return FailedResponse("no response") if late else world.ask(name, request)

    built = measured(privacy={"noise_multiplier": 5.0, "dropout_tolerance": 1})
    world = World(tmp_path, built, fault=fault, policy=ALLOWED)
    result = world.serving("exclude").run()
    assert result.reports[-1].missing == ("silo-3",)
    held = parties(built)[1]
    assert result.metrics["holdout_records"] == sum(len(held[name].holdout(name)) for name in SILOS)
    world.close()


class Died(BaseException):
    pass


@pytest.mark.parametrize("after", [False, True])
def test_a_server_and_silos_that_die_while_measuring_go_on(tmp_path, after):
    """The request comes again, byte for byte, and is answered with the bytes of before."""
    trouble = {"left": True}

    def fault(world, name, request):
        if is_metrics(request) and name == "silo-2" and trouble["left"]:
            trouble["left"] = False
            if after:
                world.ask(name, request)
            world.kill("silo-1")
            world.kill("silo-2")
            raise Died
        return world.ask(name, request)

    world = World(tmp_path, measured(), fault=fault, policy=ALLOWED)
    with pytest.raises(Died):
        world.serving().run()
    result = world.serving().run()
    assert result.metrics == run(measured()).metrics
    answers = {}
    for name, request, reply in world.sent:
        if is_metrics(request):
            assert answers.setdefault(name, (request, reply)) == (request, reply)
    assert sorted(answers) == list(SILOS)
    world.close()


def test_a_silo_does_not_go_on_with_other_hold_out_records(tmp_path):
    import dataclasses

    world = World(tmp_path, measured(), policy=ALLOWED)
    server, silos = parties(world.built)
    request = m.encode(server.plan.digest, "silo-1", server.plan.hello)
    world.ask("silo-1", request)
    world.kill("silo-1")
    from uldp.runtimes.silo_process import SiloProcess

    prepared = silos["silo-1"]
    held = tuple(part.take(slice(1, None)) if part.name == "silo-1" else part for part in prepared.federation.holdout)
    fewer = dataclasses.replace(prepared, federation=dataclasses.replace(prepared.federation, holdout=held))
    assert len(fewer.holdout("silo-1")) == len(prepared.holdout("silo-1")) - 1
    with pytest.raises(RunError, match="not those it began with"):
        SiloProcess(fewer, tmp_path / "silo-1", "unix:/unused", policy=ALLOWED)
    world.close()


# --- a silo's own file


def with_file(folder, **data):
    built = tables(folder, **data)
    rows = ["pid,age,sex,sick", *(f"h{n},{20 + n},f,{n % 2}" for n in range(12)), "u1,33,f,0"]
    (folder / "held.csv").write_text("\n".join(rows) + "\n")
    run_section = {**built.to_tree()["run"], "evaluate_silos": True}
    return Experiment.from_tree({**built.to_tree(), "run": run_section}, folder)


def test_a_silo_may_bring_a_table_of_its_own(tmp_path):
    built = with_file(tmp_path, users=100_000)
    prepared = prepare_silo(built, "a", holdout_file=tmp_path / "held.csv", rehearsal=True)
    assert prepared.plan.digest == prepare_server(built, rehearsal=True).plan.digest
    assert len(prepared.data("a")) == 3
    assert len(prepared.holdout("a")) == 12  # u1 is trained on here
    assert any("1 people" in note and "left out of the hold-out" in note for note in prepared.federation.notes)
    assert prepare_silo(built, "b", rehearsal=True).holdout("b") is None


def test_a_file_where_nobody_wants_one_is_refused(tmp_path):
    built = with_file(tmp_path)
    tree, file = built.to_tree(), tmp_path / "held.csv"
    cases = [
        ({**tree, "data": {**tree["data"], "holdout": 0.5}}, "holds people out by itself"),
        ({**tree, "run": {**tree["run"], "evaluate_silos": False}}, "run.evaluate_silos is false"),
    ]
    for changed, reason in cases:
        with pytest.raises(ConfigError, match=reason) as refused:
            prepare_silo(Experiment.from_tree(changed, tmp_path), "a", holdout_file=file, rehearsal=True)
        assert refused.value.location == "--holdout"
    with pytest.raises(ConfigError, match="is built in"):
        prepare_silo(measured(), "silo-1", holdout_file=file, rehearsal=True)
