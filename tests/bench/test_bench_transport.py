"""The benchmark of the transport: both sides in one run, in mirrored order."""

import pytest

from uldp.bench import transport
from uldp.errors import ConfigError


def test_every_way_is_measured_twice_in_mirrored_order(monkeypatch):
    seen = []
    seconds = {"stays": 2.0, "shim": 3.0, "pytorch": 8.0}
    monkeypatch.setattr(transport.p, "check_installed", lambda: None)
    monkeypatch.setattr(transport, "series", lambda folder, way, count: seen.append(way) or [seconds[way]] * count)
    cases = {case["name"]: case for case in transport.run_cases(3)}
    assert seen == [*transport.WAYS, *reversed(transport.WAYS)]
    assert cases["pytorch"]["ratio"] == 4.0 and cases["stays"]["ratio"] == 1.0
    assert "median of 6 exchanges" in cases["shim"]["note"]


def test_no_exchange_is_no_measurement(monkeypatch):
    monkeypatch.setattr(transport.p, "check_installed", lambda: None)
    with pytest.raises(ConfigError, match="--exchanges: a whole number from 1 to 1,000, not 0"):
        transport.run_cases(0)


@pytest.mark.slow
def test_it_measures_real_programs(tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
    assert len(transport.series(tmp_path, "shim", 1)) == 1
