"""Real processes over Flower and TLS, as many as fit into the everyday tests; the others are in ``test_real_*``."""

import pytest
from tests.flower.flower_support import QUICK, Parties, asleep, tree_of

from uldp.experiment.config import Experiment
from uldp.runtimes.flower import rehearsal

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")


def test_a_federation_over_tls_ends_with_the_simulations_model(tmp_path):
    experiment = Experiment.from_tree(tree_of({"method": {"rounds": 1}}), tmp_path)
    said = []
    found = rehearsal.rehearse(experiment, tmp_path / "r", said.append, timeout=600)
    assert found.identical and found.setup.exchanges >= 4 and found.rounds.exchanges == 1
    assert 0 < found.rounds.flower_share < 1 and found.rounds.sent > 0 and found.rounds.received > 0
    assert any(line.startswith("round 1/1") for line in said)
    assert oct((tmp_path / "r" / "run" / "private" / "flower").stat().st_mode)[-3:] == "700"


def test_a_silo_that_is_killed_within_a_round_comes_back_with_the_same_vector(tmp_path):
    with Parties(tmp_path, QUICK) as parties:
        parties.start_all()
        parties.until(lambda: parties.exchanges >= 1)
        with asleep(parties, "silo-1"):  # the round stays open
            parties.until(lambda: parties.released(1))
            parties.kill("silo-2")
            parties.start("silo-2")
            parties.until_said("silo-2", "listens at")
        assert parties.ended() == 0
        parties.check_simulated()
        parties.check_released_once(0, 1)
