"""Settings for all tests: hypothesis without a clock, so that a slow machine fails nothing; no file of the user's."""

import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "uldp", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("uldp")
# A shell ignores the interrupt in its background jobs, and they inherit that; tests of Ctrl-C must not.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def state(tmp_path_factory):
    """Where the key lies that all runs of a user share."""
    folder = tmp_path_factory.mktemp("state")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ULDP_STATE", str(folder))
        yield folder


@pytest.fixture
def short_path():
    """A folder for sockets, whose paths must be short: pytest's own folders are too deep."""
    with tempfile.TemporaryDirectory(prefix="uldp-") as folder:
        yield Path(folder)


@pytest.fixture
def runs_in_process(monkeypatch):
    """What this process has trained on whom, empty when the test begins: runs of other tests do not add up."""
    runs = {}
    monkeypatch.setattr("uldp.runs.spending._RUNS", runs)
    return runs
