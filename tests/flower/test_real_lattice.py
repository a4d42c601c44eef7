"""``lattice`` over Flower and TLS, between real processes: the model is the simulation's. Minutes, not seconds."""

import pytest
from tests.flower.flower_support import tree_of

from uldp.experiment.config import Experiment
from uldp.runtimes.flower import rehearsal

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
pytestmark = pytest.mark.slow

SETTINGS = {
    "everybody, by default": {"aggregation": {"name": "auto"}},
    "users sampled in private": {"method": {"sample_rate": 0.5, "sampling": "private"}},
    "people take turns": {"method": {"participation_groups": 2}},
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_rehearsal_ends_with_the_simulations_model(tmp_path, settings):
    tree = tree_of({"method": {"rounds": 2}, "aggregation": {"name": "lattice"}}, SETTINGS[settings])
    experiment = Experiment.from_tree(tree, tmp_path)
    found = rehearsal.rehearse(experiment, tmp_path / "r", lambda said: None, timeout=1200)
    assert found.identical
    exchanges = 4 if "private" in settings else 1
    assert found.rounds.exchanges == 2 * exchanges
    assert found.setup.exchanges >= 5
