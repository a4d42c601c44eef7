"""``lattice`` over Flower and TLS, between real processes: the model is the simulation's. Minutes, not seconds."""

import pytest
from tests.flower.flower_support import tree_of

from uldp.experiment.config import Experiment
from uldp.runtimes.flower import rehearsal

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("method", "exchanges"), [({}, 2), ({"sample_rate": 0.5, "sampling": "private"}, 8)], ids=["default", "private"]
)
def test_a_rehearsal_ends_with_the_simulations_model(tmp_path, method, exchanges):
    """Where nobody knows the sample, it follows from the setup and so from all keys: both use the same."""
    tree = tree_of({"method": {"rounds": 2, **method}, "aggregation": {"name": "auto"}})
    experiment = Experiment.from_tree(tree, tmp_path)
    found = rehearsal.rehearse(experiment, tmp_path / "r", lambda said: None, timeout=1200)
    assert found.identical
    assert found.setup.exchanges >= 5 and found.rounds.exchanges == exchanges
