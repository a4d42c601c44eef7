"""A federation of real processes over Flower and TLS in the everyday tests; with faults it is in ``test_real_*``."""

import math

import pytest
from tests.flower.flower_support import tree_of

from uldp.experiment.config import Experiment
from uldp.runtimes.flower import rehearsal

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")


def test_a_federation_over_tls_ends_with_the_simulations_model(tmp_path):
    experiment = Experiment.from_tree(tree_of({"method": {"rounds": 1}}), tmp_path)
    said = []
    found = rehearsal.rehearse(experiment, tmp_path / "r", said.append, timeout=600)
    assert found.identical and found.setup.exchanges >= 4 and found.rounds.exchanges == 1
    assert found.rounds.sent > 0 and found.rounds.received > 0
    share = found.rounds.flower_share  # NaN where a request was sent twice, as on a busy machine
    assert 0 < share < 1 or math.isnan(share)
    assert any(line.startswith("round 1/1") for line in said)
    shown = [file for file in (tmp_path / "r" / "run").iterdir() if file.suffix in (".json", ".jsonl", ".txt")]
    assert len(shown) >= 6 and not any("second" in file.read_text() for file in shown)  # times are for the owner
    assert oct((tmp_path / "r" / "run" / "private" / "flower").stat().st_mode)[-3:] == "700"
