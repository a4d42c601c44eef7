"""Every party comes to the same plan from the experiment file alone, and reads nobody else's data."""

import pytest
import torch
from tests.federation.federation_support import SILOS, experiment, parties, with_identities
from torch import nn

from uldp.aggregation.paillier import PaillierWeighting
from uldp.errors import ConfigError, DataError, MessageRefused
from uldp.experiment.build import prepare
from uldp.experiment.config import AggregationConfig, Experiment
from uldp.experiment.parties import prepare_server, prepare_silo
from uldp.protocol import messages as m
from uldp.rng import Secrets
from uldp.sessions.silo import SiloSession, signing_key

SCHEMA = {
    "label": {"kind": "class", "classes": [0, 1]},
    "columns": {"age": {"kind": "number", "range": [0, 100]}, "sex": {"kind": "category", "categories": ["f", "m"]}},
}
ROWS = {
    "a": ["u1,30,f,0", "u2,40,m,1", "u2,41,m,1"],
    "b": ["u1,31,f,0", "u3,50,m,1"],
    "test": ["u4,20,f,0", "u5,60,m,1"],
}
KEY = "ab" * 32


SETTINGS = {}


class Activation(nn.Module):
    """Which function it is shows in no name and no shape."""

    def __init__(self, function):
        super().__init__()
        self._function = function

    def forward(self, x):
        return self._function(x)


def factory(shape, task):
    """Somebody's own model, as it is on this machine: ``SETTINGS`` are what differs elsewhere."""
    hidden, act, shift = SETTINGS.get("hidden", 4), SETTINGS.get("act", nn.ReLU), SETTINGS.get("shift", 0.0)
    model = nn.Sequential(nn.Linear(shape[0], hidden), act(), nn.Linear(hidden, 1))
    with torch.no_grad():
        model[0].bias += shift
    return model


def session(prepared):
    secrets = Secrets.simulated_from_seed(0)
    return SiloSession(prepared.plan, prepared.data(prepared.silo), prepared.learner, prepared.streams, secrets)


def tables(folder, names=("a", "b", "test"), rehearsal=False, **data):
    """An experiment on two tables, of which only some lie here."""
    for name in names:
        (folder / f"{name}.csv").write_text("\n".join(["pid,age,sex,sick", *ROWS[name]]) + "\n")
    (folder / "roster.txt").write_text("u1\nu2\nu3\n")
    (folder / "ids.key").write_text(KEY)
    users = {} if "roster" in data else {"users": 20, "id_key": "ids.key"}
    tree = {
        "data": {
            "silos": ["a.csv", "b.csv"],
            "user": "pid",
            "label": "sick",
            "test": "test.csv",
            "schema": SCHEMA,
            **users,
            **data,
        },
        "method": {"name": "uldp-avg", "rounds": 2, "local_epochs": 1},
        "privacy": {"noise_multiplier": 5.0},
        "aggregation": {"name": "plain"},
        "run": {"secrets": "simulated" if rehearsal else "os"},
    }
    return Experiment.from_tree(tree, folder, "tables")


def test_all_parties_agree_on_the_digest_of_the_simulation(tmp_path):
    built = tables(tmp_path)
    expected = prepare(built).plan.digest
    server = prepare_server(built)
    assert server.plan.digest == expected
    assert {prepare_silo(built, name).plan.digest for name in ("a", "b")} == {expected}
    assert server.test is not None and len(server.test) == 2


def test_a_silo_is_told_whom_the_cap_of_paillier_touches_in_its_own_table(tmp_path):
    settings = {"aggregation": {"name": "paillier", "max_records": 3, "key_bits": 512}}
    built = experiment(**settings)
    for name in SILOS:
        silo = prepare_silo(built, name, rehearsal=True)
        more, having = (int((silo.data(name).counts(8) > least).sum()) for least in (1, 0))
        said = f"{more} of the {having} people with records have more here."
        assert any(said in note for note in silo.federation.notes)
    uncapped = prepare_silo(experiment(), SILOS[0], rehearsal=True)
    assert not any("have more here" in note for note in uncapped.federation.notes)


def test_a_default_of_the_aggregation_is_part_of_what_is_agreed_on(monkeypatch):
    built = experiment(aggregation={"name": "paillier", "key_bits": 1024, "pseudo_count": 1})
    before = prepare_server(built, rehearsal=True).plan.digest
    monkeypatch.setattr(AggregationConfig, "build", lambda self, workers: PaillierWeighting(1024, None, 60, 1, workers))
    assert prepare_server(built, rehearsal=True).plan.digest != before


def test_the_server_needs_no_silo_s_data_no_key_and_no_test_set(tmp_path):
    built = tables(tmp_path)
    expected = prepare(built).plan
    for path in tmp_path.glob("*"):
        path.unlink()
    server = prepare_server(built)
    assert server.plan == expected
    assert server.test is None
    assert server.federation.feature_shape == (3,)
    assert not any(len(silo) for silo in server.federation)


def test_a_silo_reads_only_its_own_table(tmp_path):
    built = tables(tmp_path)
    whole = prepare(built)
    (tmp_path / "b.csv").unlink()
    silo = prepare_silo(built, "a")
    assert silo.data("a").digest() == whole.federation.silos[0].digest()
    assert len(silo.data("a")) and not len(silo.data("b"))
    assert silo.federation.roster == whole.federation.roster
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / "a.csv").rename(tmp_path / "elsewhere" / "mine.csv")
    assert prepare_silo(built, "a", moved).data("a").digest() == silo.data("a").digest()
    with pytest.raises(DataError, match=r"b\.csv"):
        prepare_silo(built, "b")


@pytest.mark.parametrize("users", [None, 3])
def test_a_roster_says_how_many_users_there_are(tmp_path, users):
    built = tables(tmp_path, roster="roster.txt", **({"users": users} if users else {}))
    assert prepare_server(built).plan.facts.users == 3
    (tmp_path / "roster.txt").unlink()
    if users:
        assert prepare_server(built).plan.facts.users == 3
    else:
        with pytest.raises(ConfigError, match=r"data\.roster: the roster is not here"):
            prepare_server(built)


def test_a_roster_of_another_length_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="the roster has 3 ids, not 4"):
        prepare_silo(tables(tmp_path, roster="roster.txt", users=4), "a")


def test_an_unknown_silo_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match=r"no silo 'c'. Its silos: a, b"):
        prepare_silo(tables(tmp_path), "c")
    with pytest.raises(ConfigError, match="built in"):
        prepare_silo(experiment(), "silo-1", "mine.csv", rehearsal=True)


@pytest.mark.parametrize(
    ("elsewhere", "reason"),
    [
        ({"act": nn.Tanh}, "layers are others"),
        ({"act": lambda: Activation(torch.tanh)}, "layers are others"),
        ({"shift": 0.5}, "other outputs before training"),
        ({"hidden": 5}, "dimension = "),
    ],
)
def test_another_factory_behind_the_same_name_is_noticed_in_the_greeting(monkeypatch, elsewhere, reason):
    """The experiment file is the same; what the name stands for is the business of each machine."""
    built = experiment(model={"name": f"{__name__}:factory"})
    server = prepare_server(built, rehearsal=True)
    same = session(prepare_silo(built, "silo-1", rehearsal=True))
    same.reply(m.encode(server.plan.digest, "silo-1", server.plan.hello))
    monkeypatch.setattr(f"{__name__}.SETTINGS", elsewhere)
    other = session(prepare_silo(built, "silo-1", rehearsal=True))
    with pytest.raises(MessageRefused, match=reason):
        other.reply(m.encode(server.plan.digest, "silo-1", server.plan.hello))


def test_the_same_layers_with_another_function_answer_otherwise(monkeypatch):
    built = experiment(model={"name": f"{__name__}:factory"})
    monkeypatch.setattr(f"{__name__}.SETTINGS", {"act": lambda: Activation(torch.tanh)})
    server = prepare_server(built, rehearsal=True)
    monkeypatch.setattr(f"{__name__}.SETTINGS", {"act": lambda: Activation(torch.relu)})
    silo = prepare_silo(built, "silo-1", rehearsal=True)
    assert silo.plan.digest == server.plan.digest
    with pytest.raises(MessageRefused, match="other outputs before training"):
        session(silo).reply(m.encode(server.plan.digest, "silo-1", server.plan.hello))


def test_a_rehearsal_has_the_digest_of_the_simulation_s_sessions():
    built = experiment()
    secrets = Secrets.simulated_from_seed(0)
    expected = prepare(built).plan.with_identities([signing_key(secrets, index).public for index in range(3)])
    server, silos = parties(built)
    assert server.plan == expected
    assert all(silos[name].plan == expected for name in SILOS)


def test_identities_of_the_experiment_are_part_of_what_is_agreed_on(tmp_path):
    built = with_identities(tmp_path)
    assert prepare_server(built).plan == prepare(built).plan == prepare_silo(built, "silo-2").plan
    assert len(prepare_server(built).plan.identities) == 3


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({}, "run.secrets: noise and keys from the seed"),
        ({"run": {"secrets": "os"}}, "aggregation.identities: masked needs every silo's public key"),
        ({"method": {"name": "uldp-group-median"}}, "method.group_size: such a setting reads all silos' data"),
        ({"method": {"name": "ldp-fedavg"}, "aggregation": {"name": "shuffled"}}, "no party yet that shuffles"),
    ],
)
def test_what_cannot_be_deployed_is_refused(sections, reason):
    method = sections.get("method", {}).get("name")
    tree = experiment().to_tree()
    if method is not None:
        tree |= {"method": {"name": method, "rounds": 2}}
        tree["privacy"] = {} if method == "ldp-fedavg" else tree["privacy"]
    tree = {key: {**value, **({} if key == "method" else sections.get(key, {}))} for key, value in tree.items()}
    built = Experiment.from_tree(tree)
    with pytest.raises(ConfigError, match=reason):
        prepare_server(built)
    with pytest.raises(ConfigError, match=reason):
        prepare_silo(built, "silo-1")


@pytest.mark.parametrize(
    ("data", "reason"),
    [({"id_key": None}, "data.id_key"), ({"schema": {**SCHEMA, "standardise": "silo"}}, "data.schema.standardise")],
)
def test_tables_that_cannot_be_deployed_are_refused(tmp_path, data, reason):
    with pytest.raises(ConfigError, match=reason):
        prepare_silo(tables(tmp_path, **data), "a")
