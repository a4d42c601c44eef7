"""A federation of real processes over Flower and TLS in the everyday tests; its other faults are in ``test_real_*``."""

import pytest
from tests.flower.flower_support import Parties, copied_keys, with_option

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")


def test_a_silo_with_another_file_is_refused_and_with_the_right_one_the_model_is_the_simulations(tmp_path):
    """Masks, TLS, authenticated silos; the run stops with a sentence, and is resumed to its end."""
    with Parties(tmp_path, {"method": {"rounds": 1}}) as parties:
        odd = copied_keys(with_option(parties.commands["silo-2"], "--state", tmp_path / "odd"), tmp_path / "copy")
        parties.start("server")
        parties.start("silo-1")
        parties.start("silo-2", "--set", "method.local_epochs=2", command=odd)
        assert parties.ended() == 2
        assert "stopped without silo-2" in parties.last_line() and "belongs to experiment" in parties.last_line()
        assert parties.directory.ledger_entries() == ()
        parties.stop("silo-2")
        parties.start("silo-2")
        parties.resume()
        assert parties.ended() == 0
        parties.check_simulated()
        parties.check_released_once(0, 1)
