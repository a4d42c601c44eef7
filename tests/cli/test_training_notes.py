"""A model whose layers have no kernel: plan, run and the parties of a federation say which layer, once, in one line."""

import sys
import warnings

import pytest
from typer.testing import CliRunner

from uldp.cli.app import app
from uldp.errors import ConfigError
from uldp.experiment.config import Experiment
from uldp.experiment.parties import prepare_server, prepare_silo
from uldp.learners.base import LocalTraining
from uldp.learners.torch import SlowTrainingWarning

MODULE = """
from torch import nn

def with_kernels(shape, task):
    return nn.Sequential(nn.Linear(shape[0], 4), nn.ReLU(), nn.Linear(4, task.classes))

def without(shape, task):
    return nn.Sequential(nn.Linear(shape[0], 4), nn.Softplus(), nn.Linear(4, task.classes))
"""
FILE = """
[data]
dataset = "synthetic"
users = 8
silos = 3
options = {{ records = 60 }}
[model]
name = "slow_and_fast:{factory}"
[method]
name = "uldp-avg"
rounds = 1
local_epochs = 1
[privacy]
noise_multiplier = 5.0
[run]
threads = 1
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow_and_fast.py").write_text(MODULE)

    def file(factory):
        (tmp_path / "e.toml").write_text(FILE.format(factory=factory))
        return tmp_path / "e.toml"

    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowTrainingWarning)  # a line of the program's own, not one of Python's
        yield file
    sys.modules.pop("slow_and_fast", None)


@pytest.mark.parametrize("command", [["plan"], ["plan", "--json"], ["run", "--out", "r"]])
def test_plan_and_run_say_which_layer_has_no_kernel(write, command):
    for factory, times in (("without", 1), ("with_kernels", 0)):
        options = [*command[:-1], factory] if "--out" in command else command
        done = CliRunner().invoke(app, [options[0], str(write(factory)), *options[1:]])
        assert done.exit_code == 0, done.output
        said = [line for line in done.stderr.splitlines() if "no kernel for Softplus" in line]
        assert len(said) == times
        assert all(line.startswith("warning: ") and "one user after the other by autograd" in line for line in said)


def test_every_party_of_a_federation_is_told(write):
    experiment = Experiment.from_file(write("without"))
    for notes in (
        prepare_server(experiment, rehearsal=True).federation.notes,
        prepare_silo(experiment, "silo-1", rehearsal=True).federation.notes,
    ):
        assert sum("no kernel for Softplus" in note for note in notes) == 1


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_momentum_is_for_sgd_alone(optimizer):
    with pytest.raises(ConfigError, match=rf"method\.momentum: only for optimizer 'sgd', not '{optimizer}'"):
        LocalTraining(optimizer=optimizer, momentum=0.5)
