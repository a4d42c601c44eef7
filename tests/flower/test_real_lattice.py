"""``lattice`` over Flower and TLS, between real processes: the model is the simulation's. Minutes, not seconds."""

import pytest
from tests.flower.flower_support import tree_of

from uldp.experiment.config import Experiment
from uldp.runtimes.flower import rehearsal

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
pytestmark = pytest.mark.slow


def test_a_rehearsal_of_the_default_ends_with_the_simulations_model(tmp_path):
    """With private sampling it does not: the slots are bound to the setup, and so to the parties' keys."""
    tree = tree_of({"method": {"rounds": 2}, "aggregation": {"name": "auto"}})
    experiment = Experiment.from_tree(tree, tmp_path)
    found = rehearsal.rehearse(experiment, tmp_path / "r", lambda said: None, timeout=1200)
    assert found.identical
    assert found.setup.exchanges >= 5 and found.rounds.exchanges == 2
