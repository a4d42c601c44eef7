"""Code that an experiment file names: said before it runs, not run by `doctor` unless told, forbidden by a policy."""

import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from uldp.cli.app import app
from uldp.errors import ConfigError
from uldp.experiment.config import Experiment
from uldp.experiment.foreign import foreign_code
from uldp.experiment.parties import prepare_server
from uldp.runs.directory import RunDirectory
from uldp.runtimes.policy import Policy

MODULE = """
import pathlib
pathlib.Path({marker!r}).write_text("ran")
{then}
from uldp.learners.models import build_model
from uldp.methods.uldp_avg import UldpAvg as Method

def factory(shape, task):
    return build_model("logistic", shape, task)
"""
FILE = """
[data]
dataset = "synthetic"
users = 8
silos = 3
options = {{ records = 90 }}
[model]
name = "{model}"
[method]
name = "{method}"
rounds = 2
[privacy]
noise_multiplier = 5.0
[run]
threads = 1
"""
SAID = "runs code that is not uldp's: "


class Received:
    """A file from elsewhere, and whether what it names has run."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.marker = folder, folder / "marker"
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.chdir(folder)
        self._patch = monkeypatch

    def write(self, section, then=""):
        self._patch.delitem(sys.modules, "from_elsewhere", raising=False)
        (self.folder / "from_elsewhere.py").write_text(MODULE.format(marker=str(self.marker), then=then))
        names = {"model": "logistic", "method": "uldp-avg"}
        names[section] = "from_elsewhere:factory" if section == "model" else "from_elsewhere:Method"
        (self.folder / "e.toml").write_text(FILE.format(**names))
        return f"{section}.name = '{names[section]}'"

    @property
    def ran(self):
        return self.marker.exists()

    def invoke(self, *arguments):
        return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def received(tmp_path, monkeypatch):
    yield Received(tmp_path, monkeypatch)
    sys.modules.pop("from_elsewhere", None)


SECTIONS = pytest.mark.parametrize("section", ["model", "method"])


@SECTIONS
def test_doctor_names_foreign_code_and_does_not_run_it(received, section):
    named = received.write(section)
    done = received.invoke("doctor", "e.toml", "--rehearse", "--json")
    assert done.exit_code == 2 and not received.ran
    [code] = [one for one in json.loads(done.stdout)["findings"] if one["what"] == "code"]
    assert not code["ok"] and named in code["detail"] and "--run-code" in code["detail"]
    done = received.invoke("doctor", "e.toml", "--rehearse", "--run-code", "--json")
    [code] = [one for one in json.loads(done.stdout)["findings"] if one["what"] == "code"]
    assert code["ok"] and named in code["detail"] and received.ran


@SECTIONS
@pytest.mark.parametrize("how", ["listed", "forbidden", "other methods"])
def test_doctor_runs_what_the_owner_has_named_and_never_what_the_owner_forbids(received, section, how):
    named = received.write(section)
    name = named.split("'")[1]
    lines = {"listed": f'["{name}"]', "forbidden": "[]", "other methods": f'["{name}"]\nallowed_methods = ["uldp-avg"]'}
    (received.folder / "p.toml").write_text(f"allowed_code = {lines[how]}\n")
    told = [] if how == "listed" else ["--run-code"]
    silo = ("--silo", "silo-1", "--state", received.folder / "state", "--policy", received.folder / "p.toml")
    done = received.invoke("doctor", "e.toml", "--rehearse", *silo, *told, "--json")
    [code] = [one for one in json.loads(done.stdout)["findings"] if one["what"] == "code"]
    allowed = how == "listed" or (how == "other methods" and section == "model")
    assert code["ok"] == received.ran == allowed
    if not allowed:
        assert done.exit_code == 2 and "policy.allowed_" in code["detail"]


@SECTIONS
@pytest.mark.parametrize("policy", ["allowed_code = []", 'allowed_code = ["another:one"]', 'allowed_methods = ["x"]'])
def test_join_refuses_what_the_policy_does_not_allow_before_it_imports_anything(received, section, policy):
    received.write(section)
    state = received.folder / "state"
    state.mkdir(mode=0o700)
    (state / "policy.toml").write_text(policy + "\n")
    arguments = ("--silo", "silo-1", "--superlink", "127.0.0.1:9", "--insecure", "--rehearse", "--state", state)
    done = received.invoke("join", "e.toml", *arguments)
    assert done.exit_code == 2 and "policy.allowed_" in done.stderr
    assert not received.ran


@SECTIONS
@pytest.mark.parametrize(
    "command",
    [
        "run e.toml",
        "plan e.toml",
        "plan e.toml --method uldp-sgd",
        "compare e.toml --methods uldp-avg,uldp-sgd",
        "serve e.toml --insecure --rehearse",
        "join e.toml --silo silo-1 --superlink 127.0.0.1:9 --insecure --rehearse",
        "rehearse e.toml",
    ],
)
def test_every_command_that_reads_a_file_says_what_it_runs_before_it_does(received, section, command):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
    named = received.write(section, then='raise RuntimeError("it has run")')
    done = received.invoke(*command.split())
    assert done.exit_code == 2 and received.ran
    assert done.stderr.index(SAID + named) < done.stderr.index("it has run")
    assert done.stderr.count(SAID) == 1


def test_what_was_just_typed_is_not_announced(received):
    received.write("model")
    named = "--set", "model.name=from_elsewhere:factory", "--set", "method.name=uldp-sgd"
    done = received.invoke("plan", "e.toml", *named)
    assert done.exit_code == 0 and received.ran and SAID not in done.stderr


@pytest.mark.parametrize("command", ["resume R", "serve --resume R --insecure --rehearse", "total R", "export R"])
def test_commands_that_read_a_run_of_somebody_else_say_it_too(received, command):
    received.write("method")
    directory = RunDirectory.create(received.folder / "R", Experiment.from_file(received.folder / "e.toml"))
    directory.save_model(np.zeros(3), None)
    kept = ("epsilon", "delta", "unit", "noise", "guarantee")  # without a statement nothing is exported
    directory.write_json("statement.json", dict.fromkeys(kept, ""))
    received.marker.unlink()
    named = received.write("method", then='raise RuntimeError("it has run")')
    done = received.invoke(*command.split())
    assert done.exit_code == 2 and received.ran
    assert done.stderr.index(SAID + named) < done.stderr.index("it has run")


@pytest.mark.parametrize("tree", [None, [], {}, {"method": 3}, {"model": {"name": 7}}, {"method": {"name": "a"}}])
def test_whatever_is_wrong_with_a_tree_is_said_where_it_is_read(tree):
    assert foreign_code(tree) == ()


def test_a_policy_without_the_key_allows_any_code_and_a_silo_s_process_checks_it_too(received):
    tree = {"method": {"name": "a:B"}, "model": {"name": "c:d"}}
    Policy().check_names(tree)
    Policy(allowed_code=("a:B", "c:d")).check_names(tree)
    with pytest.raises(
        ConfigError, match=r"policy\.allowed_code: this silo's owner allows a:B, the experiment has c:d"
    ):
        Policy(allowed_code=("a:B",)).check_names(tree)
    assert "foreign code none" in str(Policy(allowed_code=()))
    received.write("model")
    experiment = Experiment.from_file(received.folder / "e.toml")
    with pytest.raises(ConfigError, match=r"policy\.allowed_code"):
        Policy(allowed_code=()).check(experiment, prepare_server(experiment, rehearsal=True).plan)


OWN = """
from dataclasses import dataclass
from uldp.methods.uldp_avg import UldpAvg
from uldp.privacy.releases import NoisedModel

@dataclass(frozen=True, kw_only=True)
class Needy(UldpAvg):
    strength: float

@dataclass(frozen=True, kw_only=True)
class Turned(UldpAvg):
    people: bool = True

    def release(self, facts):
        if self.people:
            return super().release(facts)
        noise = self.noise_multiplier
        return NoisedModel(facts=facts, clip=1, noise_multiplier=noise, steps=1, rate=0.5, batch_size=8.0, lr=0.1)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with methods of one's own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    yield tmp_path
    sys.modules.pop("mine", None)


def document(*arguments):
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


SMALL = ["--set", "data.users=8", "--set", "data.options.records=90", "--set", "method.rounds=1"]


def test_a_method_that_needs_settings_is_used_like_any_other(mine):
    text = FILE.format(model="logistic", method="mine:Needy").replace("rounds = 2", "rounds = 2\nstrength = 1.0")
    (mine / "e.toml").write_text(text)
    needs = ["--set", "method.strength=2"]
    own = document("plan", "e.toml")
    assert own["epsilon"] == document("plan", "e.toml", "--method", "uldp-avg")["epsilon"]
    assert own["epsilon"] == document("plan", "e.toml", "--method", "mine:Needy")["epsilon"]
    document("plan", "--dataset", "synthetic", *SMALL, "--method", "mine:Needy", *needs)
    compared = ["compare", "--dataset", "synthetic", *SMALL, "--methods", "mine:Needy,uldp-avg", "--repeats", "1"]
    assert document(*compared, *needs, "--out", "c")["total"]["private_runs"] == 2
    calculated = ["epsilon", "--noise-multiplier", "5", "--rounds", "2", "--method", "mine:Needy"]
    assert document(*calculated, *needs)["epsilon"] == own["epsilon"]
    for lacking in (["plan", "--dataset", "synthetic", "--method", "mine:Needy"], calculated):
        done = CliRunner().invoke(app, lacking)
        assert done.exit_code == 2 and "strength" in done.stderr and len(done.stderr.splitlines()) == 1


def test_what_a_method_protects_is_asked_with_the_settings_of_the_run(mine):
    compared = ["compare", "--dataset", "synthetic", *SMALL, "--methods", "mine:Turned", "--repeats", "1"]
    assert document(*compared, "--out", "people")["total"]["private_runs"] == 1
    records = document(*compared, "--set", "method.people=false", "--out", "records")
    assert records["results"][0]["statement"]["unit"] == "record"
    assert records["total"]["private_runs"] == 0 and records["total"]["private_epsilon"] is None
    # also where another method is asked for, beside it
    compared[compared.index("mine:Turned")] = "uldp-avg"
    assert document(*compared, "--out", "records")["total"]["private_runs"] == 1
    assert [group["epsilon"] for group in document("total", "records")["totals"]] == [None]


def test_an_epsilon_that_rests_on_foreign_code_says_so_everywhere(mine):
    asked = ["--dataset", "synthetic", *SMALL, "--set", "run.secrets=os"]
    own = [*asked, "--method", "mine:Turned"]
    said = "ASSERTED BY mine:Turned, NOT PROVEN BY uldp: User-level DP with epsilon"
    assert document("plan", *own)["statement"]["guarantee"].startswith(said)
    ran = document("run", *own, "--out", "runs/a")
    assert ran["statement"]["asserted_by"] == ["mine:Turned"] and ran["statement"]["guarantee"].startswith(said)
    (group,) = document("total", "runs")["totals"]
    assert group["guarantee"].startswith(said) and group["runs"][0]["guarantee"].startswith(said)
    compared = ["compare", *asked, "--methods", "mine:Turned,uldp-avg", "--repeats", "1", "--out", "c"]
    found = document(*compared)
    assert found["total"]["guarantee"].startswith(said)
    assert found["results"][0]["privacy"]["guarantee"].startswith(said)
    assert found["results"][1]["privacy"]["guarantee"].startswith("User-level DP with epsilon")
    asked_for = ["--rounds", "2", "--method", "mine:Turned"]
    calculators = [["epsilon", "--noise-multiplier", "5", *asked_for], ["sigma", "--epsilon", "2", *asked_for]]
    assert document(*calculators[0])["asserted_by"] == ["mine:Turned"]
    for command in (["plan", *own], ["resume", "runs/a"], ["total", "runs"], compared, *calculators):
        shown = " ".join(CliRunner().invoke(app, command).stdout.split())
        assert "mine:turned, not proven by uldp" in shown.lower() or said in shown, command
    document("run", *asked, "--method", "uldp-avg", "--out", "ours/a")
    assert "sserted" not in json.dumps(document("total", "ours")["totals"][0]["guarantee"])


SHORT = '[data]\ndataset = "synthetic"\n[method]\nname = "{}"\n[privacy]\nepsilon = 3\n'


def test_a_file_that_is_called_like_a_package_of_ours_does_not_run(tmp_path):
    """A folder that somebody sent may hold more than the experiment file."""
    (tmp_path / "cryptography.py").write_text("open('it-has-run', 'w')\n")
    (tmp_path / "e.toml").write_text(
        '[data]\ndataset = "synthetic"\n[method]\nname = "uldp-avg"\n[privacy]\nepsilon = 3\n'
    )
    started = ([sys.executable, "-m", "uldp"], [sys.executable, "-P", "-c", "from uldp.cli import main; main()"])
    for command in started:
        done = subprocess.run([*command, "plan", "e.toml"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert not (tmp_path / "it-has-run").exists()


def test_code_of_ones_own_is_found_in_the_current_folder(tmp_path):
    (tmp_path / "mine.py").write_text("from uldp.methods.uldp_avg import UldpAvg as Mine\n")
    (tmp_path / "e.toml").write_text(
        '[data]\ndataset = "synthetic"\n[method]\nname = "mine:Mine"\n[privacy]\nepsilon = 3\n'
    )
    command = [sys.executable, "-P", "-c", "from uldp.cli import main; main()", "plan", "e.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
