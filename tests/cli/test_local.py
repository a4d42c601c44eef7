"""``uldp local`` and ``ldp-fedavg`` on the command line."""

import json

import pytest
from typer.testing import CliRunner

from uldp.cli.app import app
from uldp.experiment.config import Experiment

runner = CliRunner()
SMALL = ["--dataset", "digits", "--set", "data.silos=8", "--set", "data.users=8", "--set", "method.rounds=1"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def document(*arguments):
    result = runner.invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_clients_weights_and_rounds_add_up():
    found = document("local", "--epsilon-weight", 5, "--weights", 100, "--rounds", 2)
    assert (found["per_weight_round"], found["per_client_round"]) == (5.0, 500.0)
    assert found["epsilon"] == found["per_run"] <= 1000
    assert found["shuffled"] is None


@pytest.mark.parametrize(
    ("epsilon", "clients", "mechanism", "expected"),
    [
        (1, 100, "two-point", 0.444),
        (1, 1000, "grr", 0.125),
        (3, 1000, "two-point", 0.704),
        (5, 10_000, "grr", 0.635),
        (1, 1000, "srr", 0.154),
        (3, 10_000, "piecewise", 0.273),
    ],
)
def test_shuffling_amplifies_one_weight(epsilon, clients, mechanism, expected):
    found = document("local", "--epsilon-weight", epsilon, "--clients", clients, "--mechanism", mechanism)
    assert found["shuffled"]["per_weight_round"] == pytest.approx(expected, abs=0.005)


def test_the_formula_is_given_inside_its_region_only():
    assert document("local", "--epsilon-weight", 0.3, "--clients", 10_000)["erlingsson_per_weight"] is not None
    assert document("local", "--epsilon-weight", 5, "--clients", 10_000)["erlingsson_per_weight"] is None
    assert "epsilon < 1/2" in runner.invoke(app, ["local", "--epsilon-weight", "5", "--clients", "100"]).stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--epsilon-weight", "0"], "--epsilon-weight: from 1e-06 to 20, not 0.0"),
        (["--epsilon-weight", "nan"], "--epsilon-weight: a finite number, not nan"),
        (["--epsilon-weight", "1", "--weights", "0"], "--weights: "),
        (["--epsilon-weight", "1", "--rounds", "-1"], "--rounds: "),
        (["--epsilon-weight", "1", "--clients", "0"], "--clients: "),
        (["--epsilon-weight", "1", "--mechanism", "magic"], "--mechanism: unknown local mechanism 'magic'"),
        (["--epsilon-weight", "1", "--delta", "2"], "--delta: "),
        (["--epsilon-weight", "1", "--weights", str(10**21)], "--weights: "),
        (["--epsilon-weight", "1", "--rounds", str(10**21)], "--rounds: "),
        (["--epsilon-weight", "1", "--weights", str(10**8), "--rounds", "10000"], "more than 1,000,000,000 values"),
        (["--epsilon-weight", "0.3", "--clients", str(10**12)], "what holds among 10,000,000 holds among more"),
    ],
)
def test_bad_input_is_one_sentence(arguments, says):
    result = runner.invoke(app, ["local", *arguments])
    assert result.exit_code == 2
    assert says in result.stderr and len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("method", ["ldp-fedavg", "srr-fl", "ldp-fl"])
@pytest.mark.parametrize("aggregation", ["masked", "shuffled"])
def test_the_statement_leads_with_the_clients_number(method, aggregation):
    found = document("run", *SMALL, "--method", method, "--set", f"aggregation.name={aggregation}")
    assert found["statement"]["unit"] == "client"
    assert found["statement"]["epsilon"] == pytest.approx(5 * 650, rel=0.02)
    assert "Client-level local DP" in found["statement"]["guarantee"]
    who = [row["who"] for row in found["statement"]["exposures"]]
    assert who == (["anybody, the server included"] if aggregation == "masked" else ["the shuffler", "the server"])
    assert any("Per weight and round: epsilon 5" in caveat["text"] for caveat in found["statement"]["caveats"])


def test_the_table_gives_the_pure_sums_and_the_numbers_at_delta():
    result = runner.invoke(app, ["local", "--epsilon-weight", "0.5", "--weights", "650", "--delta", "1e-6"])
    assert "delta 0" in result.stdout and "delta 1e-06" in result.stdout and "325" in result.stdout
    found = document("local", "--epsilon-weight", 0.5, "--weights", 650)
    assert found["per_client_round"] < found["pure"]["per_client_round"] == 325


def test_shuffling_shows_no_gain_where_there_is_none():
    found = document("local", "--epsilon-weight", 5, "--weights", 650, "--rounds", 2, "--clients", 100)
    for key in ("per_weight_round", "per_client_round", "per_run"):
        assert found["shuffled"][key] == found[key]


PLAN = ["plan", "--dataset", "digits", "--method", "ldp-fedavg", "--set", "data.silos=8", "--set", "method.rounds=10"]


def test_plan_says_where_a_budget_ends_and_advises_what_this_method_has():
    found = document(*PLAN, "--budget", 100)
    assert found["rounds_within_budget"] == 0 and list(found["changes"]) == ["method.epsilon_weight"]
    weaker = ["--set", f"method.epsilon_weight={found['changes']['method.epsilon_weight']}"]
    assert 99 < document(*PLAN, *weaker)["epsilon"] <= 100
    assert document(*PLAN, *weaker, "--budget", 100)["rounds_within_budget"] == 10
    found = document(*PLAN, "--budget", 7000)
    assert found["rounds_within_budget"] == found["changes"]["method.rounds"] == 2
    assert document(*PLAN, "--budget", 10**6)["rounds_within_budget"] == 10


def test_a_budget_behind_a_shuffler_says_which_number_it_counts():
    result = runner.invoke(app, [*PLAN, "--set", "aggregation.name=shuffled", "--budget", "7000"])
    assert "(it counts the local number, not the server's behind the shuffler) ends after round 2" in result.stdout


def test_a_budget_of_the_whole_run_is_a_hard_stop():
    one_round = document("plan", *SMALL, "--method", "ldp-fedavg")["epsilon"]
    more = ["--set", "method.rounds=5", "--set", f"privacy.epsilon={one_round * 2.5}"]
    assert document("run", *SMALL, "--method", "ldp-fedavg", *more)["rounds"] == 2


def test_a_budget_below_one_round_is_an_error_that_says_what_a_round_costs():
    result = runner.invoke(app, ["run", *SMALL, "--method", "ldp-fl", "--set", "privacy.epsilon=4"])
    assert result.exit_code == 2 and "one round costs epsilon 3250 locally, the budget is 4" in result.stderr


DRAFT = """
[data]
dataset = "digits"
users = 8
silos = 8
[model]
name = "logistic"
[method]
name = "uldp-avg-w"
rounds = 2
[privacy]
delta = 1e-5
epsilon = 4.0
"""


def test_a_files_budget_of_another_kind_is_left_out_with_a_warning(folder):
    (folder / "t1.toml").write_text(DRAFT)
    result = runner.invoke(app, ["plan", "t1.toml", "--method", "ldp-fedavg", "--json"])
    assert result.exit_code == 0 and json.loads(result.stdout)["epsilon"] == 6500
    assert "privacy.epsilon = 4.0 of the file is for another kind of noise than ldp-fedavg's" in result.stderr
    kept = document("plan", "t1.toml", "--method", "ldp-fedavg", "--set", "privacy.epsilon=5000")
    assert kept["epsilon"] == 6500
    assert document("plan", "t1.toml", "--method", "uldp-avg")["epsilon"] == pytest.approx(4, rel=1e-3)


def test_a_key_of_the_privacy_section_can_be_left_out(folder):
    (folder / "local.toml").write_text(DRAFT.replace("uldp-avg-w", "ldp-fedavg"))
    assert runner.invoke(app, ["plan", "local.toml"]).exit_code == 2
    assert document("plan", "local.toml", "--set", "privacy.epsilon=none")["epsilon"] == 6500
    (folder / "local.toml").write_text(DRAFT.replace("uldp-avg-w", "ldp-fedavg").replace("epsilon", "noise_multiplier"))
    refused = runner.invoke(app, ["plan", "local.toml"])
    assert refused.exit_code == 2 and "--set privacy.noise_multiplier=none" in refused.stderr
    assert document("plan", "local.toml", "--set", "privacy.noise_multiplier=none")["epsilon"] == 6500


def test_shares_of_noise_do_not_go_with_local_dp_and_settings_without_effect_are_said():
    refused = runner.invoke(app, ["plan", *SMALL, "--method", "srr-fl", "--set", "privacy.dropout_tolerance=1"])
    assert refused.exit_code == 2 and "privacy.dropout_tolerance: this method's clients perturb" in refused.stderr
    told = runner.invoke(app, ["plan", *SMALL, "--method", "ldp-fedavg", "--set", "method.precision=2"])
    assert told.exit_code == 0 and "method.precision has no effect" in told.stderr


def test_total_adds_up_clients_of_the_same_data():
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        more = ["--set", f"run.seed={seed}", "--set", "method.rounds=2", "--out", f"runs/{name}"]
        document("run", *SMALL, "--method", "ldp-fedavg", *more)
    (group,) = document("total", "runs")["totals"]
    assert group["epsilon"] is None
    assert [run["unit"] for run in group["runs"]] == ["client"] * 3
    assert len(group["clients"]["runs"]) == 3  # another seed deals the same records out to other clients
    together = document("local", "--epsilon-weight", 5, "--weights", 650, "--rounds", 6)["epsilon"]
    assert group["clients"]["epsilon"] == together
    shown = " ".join(runner.invoke(app, ["total", "runs"]).stdout.split())
    assert "3 client-level runs: epsilon 1.942e+04 at delta 1e-05, towards everybody" in shown
    assert "records at s clients" in shown and "infinite" not in shown
    document("run", *SMALL, "--method", "uldp-avg", "--out", "runs/d")
    (group,) = document("total", "runs")["totals"]
    assert group["epsilon"] is None and len(group["clients"]["runs"]) == 3
    assert "some runs protect clients" in runner.invoke(app, ["total", "runs"]).stdout


def test_published_settings_are_given_where_there_are_some():
    from uldp.experiment.presets import preset

    tree = preset("mnist", "srr-fl", "paper")
    assert tree["data"] == {"dataset": "mnist", "silos": 100, "users": 100, "allocation": "stratified"}
    assert tree["model"] == {"name": "mnist-two-layer"}
    assert {key: tree["method"][key] for key in ("radius", "precision", "groups")} == {
        "radius": 0.075, "precision": 4, "groups": 10,
    }  # fmt: skip
    assert Experiment.from_tree(tree).method.mechanism == "srr"
    for dataset, method, where in (
        ("mnist", "ldp-fedavg", "leave --preset out"),
        ("digits", "srr-fl", "there are some for: mnist"),
        ("mnist", "central-sub-dp", "leave --preset out"),
        ("breast-cancer", "uldp-avg-w", "creditcard"),
    ):
        refused = runner.invoke(app, ["plan", "--dataset", dataset, "--method", method, "--preset", "paper"])
        assert refused.exit_code == 2
        assert f"--preset: no published settings for {method} on {dataset}; " in refused.stderr
        assert where in refused.stderr and len(refused.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("command", [["epsilon", "--noise-multiplier", "5"], ["sigma", "--epsilon", "2"]])
def test_the_other_calculators_point_here(command):
    result = runner.invoke(app, [*command, "--method", "srr-fl", "--rounds", "3"])
    assert result.exit_code == 2 and "uldp local" in result.stderr


def test_noise_of_the_privacy_section_does_not_go_with_local_dp():
    result = runner.invoke(app, ["plan", *SMALL, "--method", "srr-fl", "--set", "privacy.noise_multiplier=5"])
    assert result.exit_code == 2 and "perturb by themselves" in result.stderr
