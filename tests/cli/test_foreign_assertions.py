"""Code that is not uldp's: wherever an epsilon rests on it, it is named; and an owner's policy sees it first."""

import json

import pytest
from typer.testing import CliRunner

from uldp.cli.app import app
from uldp.errors import ConfigError
from uldp.experiment.config import Experiment, in_current_terms, is_published_variant
from uldp.privacy.accountants import account
from uldp.privacy.events import Gaussian, NonPrivate
from uldp.runtimes.policy import Policy
from uldp.sessions.silo import SiloSession

CODE = """
from uldp.aggregation.masked import Masked
from uldp.data.sets.breast_cancer import DATASET

print("RUNS {name}")


class Agg(Masked):
    pass


class Accountant:
    name = "own"

    def accepts(self, event):
        return True

    def epsilon(self, composition, delta):
        return 0.001
"""
SMALL = {
    "data": {"dataset": "breast-cancer", "users": 20, "silos": 3},
    "method": {"name": "uldp-avg", "rounds": 2, "local_epochs": 1},
    "privacy": {"noise_multiplier": 5.0},
    "run": {"secrets": "os", "threads": 1},
}
runner = CliRunner()


@pytest.fixture(autouse=True)
def foreign(tmp_path, monkeypatch):
    """Two modules with the same code, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("foreign_one", "foreign_two"):
        (tmp_path / f"{name}.py").write_text(CODE.replace("{name}", name))
    return tmp_path


def toml(name, **sections):
    tree = {key: {**value, **sections.get(key, {})} for key, value in SMALL.items()}
    tree |= {key: value for key, value in sections.items() if key not in tree}
    lines = []
    for section, values in tree.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    with open(name, "w") as out:
        out.write("\n".join(lines))
    return name


def document(*arguments):
    result = runner.invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout[result.stdout.index("{") :])


AGGREGATION = {"aggregation": {"name": "foreign_one:Agg"}}
DATASET = {"data": {"dataset": "foreign_one:DATASET"}}


@pytest.mark.parametrize(("sections", "name"), [(AGGREGATION, "foreign_one:Agg"), (DATASET, "foreign_one:DATASET")])
def test_plan_run_statement_total_and_compare_name_it(sections, name):
    file = toml("e.toml", **sections)
    assert name in document("plan", file)["statement"]["asserted_by"]
    made = document("run", file, "--out", "r")
    assert name in made["statement"]["asserted_by"] and made["statement"]["guarantee"].startswith("ASSERTED BY")
    total = document("total", "r")["totals"][0]
    assert name in total["asserted_by"] and name in total["guarantee"]
    compared = document("compare", file, "--methods", "uldp-avg,uldp-sgd", "--repeats", "1", "--out", "c")
    assert name in compared["total"]["asserted_by"] and name in compared["total"]["guarantee"]


def test_the_statement_does_not_call_a_foreign_aggregation_by_the_name_that_it_inherits():
    stated = document("plan", toml("e.toml", **AGGREGATION))["statement"]
    assert any("foreign_one:Agg aggregation" in exposure["sees"] for exposure in stated["exposures"])


def test_an_owner_who_allows_masked_does_not_allow_what_inherits_from_it():
    policy = Policy(allowed_aggregations=("masked",))
    tree = {**SMALL, **AGGREGATION}
    with pytest.raises(ConfigError, match="foreign_one:Agg"):
        policy.check_names(tree)  # before anything is imported
    policy.check_names(SMALL)
    Policy(allowed_aggregations=("foreign_one:Agg",)).check_names(tree)


def test_a_foreign_data_set_may_hold_anybody_s_records():
    for number, name in enumerate(("foreign_one:DATASET", "foreign_two:DATASET")):
        document("run", toml("e.toml", data={"dataset": name}), "--out", f"r{number}")
    (total,) = document("total", ".")["totals"]
    assert len(total["runs"]) == 2 and total["doubts"]


def test_a_folder_of_comparisons_runs_nothing_that_it_names(foreign):
    file = toml("e.toml")
    document("compare", file, "--methods", "uldp-avg,uldp-sgd", "--repeats", "1", "--out", "c")
    (made,) = (file for file in foreign.glob("c/**/experiment.json") if "uldp-sgd" in str(file))
    tree = json.loads(made.read_text())
    tree["aggregation"] = {"name": "foreign_two:Agg"}
    made.write_text(json.dumps(tree))
    result = runner.invoke(app, ["compare", file, "--methods", "uldp-avg", "--repeats", "1", "--out", "c"])
    assert "RUNS foreign_two" not in result.output


@pytest.mark.parametrize(
    "command",
    [
        [
            "epsilon",
            "--noise-multiplier",
            "5",
            "--rounds",
            "3",
            "--aggregation",
            "foreign_one:Agg",
            "--adversary",
            "server",
        ],
        ["epsilon", "--noise-multiplier", "5", "--rounds", "3", "--aggregation", "foreign_one:Agg", "--table"],
        ["epsilon", "--noise-multiplier", "5", "--rounds", "3", "--accountant", "foreign_one:Accountant"],
        ["sigma", "--epsilon", "2", "--rounds", "3", "--aggregation", "foreign_one:Agg"],
    ],
)
def test_calculators_name_it(command):
    assert document(*command)["asserted_by"][0].startswith("foreign_one:")
    assert "not proven by uldp" in runner.invoke(app, command).output


def test_a_foreign_accountant_is_not_asked_about_what_has_no_bound():
    assert account({Gaussian(5.0): 1}, 1e-5, "foreign_one:Accountant").value == 0.001
    assert account({Gaussian(5.0): 1, NonPrivate(): 1}, 1e-5, "foreign_one:Accountant").value == float("inf")
    with pytest.raises(ConfigError, match="failed"):
        account({Gaussian(5.0): 1}, 1e-5, "math:pi")


@pytest.mark.parametrize(
    "method", [{"name": "central-sub-dp-published"}, {"name": "local-sub-dp", "mode": "published"}]
)
def test_an_old_run_of_a_published_variant_counts_as_unbounded(method, foreign):
    document("run", "--dataset", "breast-cancer", "--method", "uldp-avg", "--rounds", "2", "--out", "r")
    file = foreign / "r" / "experiment.json"
    tree = json.loads(file.read_text())
    tree["method"] = {**method, "rounds": 2, "batch_size": 32, "clip": 0.3}
    assert is_published_variant(tree) and not is_published_variant(SMALL)
    file.write_text(json.dumps(tree))
    (foreign / "r" / "statement.json").unlink()
    assert document("total", "r")["totals"][0]["epsilon"] is None


def test_an_old_run_of_central_sub_dp_is_read_whatever_its_batch_size_was():
    tree = {**SMALL, "method": {"name": "central-sub-dp", "mode": "sound", "batch_size": 32, "rounds": 2}}
    assert Experiment.from_tree(in_current_terms(tree)).method.rounds == 2


def test_a_silo_s_state_of_another_version_still_says_which_round_was_answered():
    import msgspec

    state = msgspec.msgpack.encode({"phase": "ready", "round": 7, "answered": {"remark": 0}, "new": 1})
    assert SiloSession.last_round(state) == 7 and not SiloSession.is_closed(state)
    assert SiloSession.is_closed(SiloSession.close_state(state))


METHOD = """
from dataclasses import dataclass
from uldp import UserSum


@dataclass(frozen=True, kw_only=True)
class Mine(UserSum):
    mu: float = 0.1
    summary = "mine"

    def silo(self, x, data, learner, streams):
        for users, rows in learner.user_gradients(x, data, streams):
            yield users, -rows


class Undecorated(UserSum):
    mu: float = 0.1
    summary = "mine"


class Stateless(Mine):
    def server(self, state, total, facts):
        return state.x
"""


def test_a_run_does_not_go_on_with_changed_code(foreign):
    import subprocess
    import sys

    (foreign / "own_method.py").write_text(METHOD)
    base = ["--dataset", "breast-cancer", "--method", "own_method:Mine", "--rounds", "2", "--out", "r"]
    assert runner.invoke(app, ["run", *base]).exit_code == 0
    (foreign / "own_method.py").write_text(METHOD.replace("-rows", "0 * rows"))
    done = subprocess.run([sys.executable, "-m", "uldp", "resume", "r"], capture_output=True, text=True)
    assert done.returncode == 2 and "code that they name" in done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own_second:Undecorated", "put @dataclass(frozen=True, kw_only=True)"),
        ("own_second:Stateless", "must return a uldp.State, not a ndarray"),
        ("own_second:Mines", "Did you mean 'Mine'?"),
        ("nowhere_at_all:Mine", "is neither in the current folder nor on PYTHONPATH"),
    ],
)
def test_mistakes_of_a_first_method_get_one_sentence(foreign, name, said):
    (foreign / "own_second.py").write_text(METHOD)
    result = runner.invoke(app, ["run", "--dataset", "breast-cancer", "--method", name, "--rounds", "1", "--out", "r"])
    assert result.exit_code == 2 and said in result.output, result.output


def test_an_event_that_no_accountant_knows_is_refused_before_anything_is_trained():
    from uldp.experiment.build import check_event

    check_event(Gaussian(5.0), int)
    with pytest.raises(ConfigError, match="return one of"):
        check_event(0.5, int)


@pytest.mark.parametrize("name", [":x", "x:", "a..b:C", "a\x01:b", "..:x"])
@pytest.mark.parametrize("setting", ["method.name", "aggregation.name", "data.dataset"])
def test_a_name_that_cannot_be_one_gets_one_sentence(setting, name):
    result = runner.invoke(app, ["run", toml("e.toml"), "--set", f"{setting}={name}", "--out", "r"])
    assert result.exit_code == 2 and result.output.count("error:") == 1


MODELS = """
from torch import nn


class Own(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.layer = nn.Linear(inputs, 2)

    def forward(self, x):
        return self.layer(x).tanh() * 2


class Chain(Own):
    def forward(self, x):
        return self.layer(x).tanh()


def read_once(feature_shape, task):
    return Chain(*feature_shape)


def run_on_records(feature_shape, task):
    return Own(*feature_shape)


def read_by_kernels(feature_shape, task):
    return nn.Sequential(nn.Linear(*feature_shape, 4), nn.ReLU(), nn.Linear(4, 2))


def torch_alone(feature_shape, task):
    return nn.Sequential(nn.Linear(*feature_shape, 4), nn.Softsign(), nn.Linear(4, 2))


def hooked(feature_shape, task):
    model = torch_alone(feature_shape, task)
    model[0].register_forward_hook(lambda *_: None)
    return model


def hooked_backward(feature_shape, task):
    model = torch_alone(feature_shape, task)
    model[0].register_full_backward_hook(lambda *_: None)
    return model


class CallsItselfTorchs(nn.Linear):
    def forward(self, x):
        return super().forward(x)


CallsItselfTorchs.__module__ = "torch.nn.modules.linear"


def disguised(feature_shape, task):
    return nn.Sequential(CallsItselfTorchs(*feature_shape, 4), nn.Softsign(), nn.Linear(4, 2))


def reparametrized(feature_shape, task):
    model = torch_alone(feature_shape, task)
    nn.utils.parametrizations.weight_norm(model[0])
    return model
"""


@pytest.mark.parametrize(
    ("factory", "named"),
    [
        ("run_on_records", "foreign_nets:Own"),
        ("hooked", "torch.nn.modules.linear:Linear"),
        ("hooked_backward", "torch.nn.modules.linear:Linear"),
        ("disguised", "torch.nn.modules.linear:CallsItselfTorchs"),
        ("reparametrized", ""),
        ("read_by_kernels", ""),
        ("read_once", ""),
        ("torch_alone", ""),
    ],
)
def test_a_model_is_named_where_its_own_code_is_run_on_records(foreign, factory, named):
    """Such code could carry something of one user's records into another's row; kernels read a model and run none."""
    (foreign / "foreign_nets.py").write_text(MODELS)
    file = toml("model.toml", model={"name": f"foreign_nets:{factory}"})
    found = document("plan", file)["statement"]
    assert found["asserted_by"] == ([named] if named else [])
    assert found["guarantee"].startswith(f"ASSERTED BY {named}, NOT PROVEN BY uldp:") == bool(named)
    assert ("foreign-model" in {caveat["code"] for caveat in found["caveats"]}) == bool(named)


def test_an_epsilon_that_a_release_s_own_noise_does_not_reach_says_so(foreign):
    text = "from uldp import GaussianSum, UldpAvg\n\n\nclass Fixed(UldpAvg):\n    def release(self, facts):\n"
    text += "        return GaussianSum(facts=facts, clip=1.0, noise_multiplier=1.0)\n"
    (foreign / "fixed_noise.py").write_text(text)
    file = toml("fixed.toml", method={"name": "fixed_noise:Fixed"}, privacy={"epsilon": 0.5})
    done = runner.invoke(app, ["plan", file, "--set", "privacy.noise_multiplier=none"])
    assert done.exit_code == 2 and "2 rounds cost epsilon " in done.stderr
    assert "whatever the noise multiplier: fixed_noise:Fixed brings noise of its own" in done.stderr
