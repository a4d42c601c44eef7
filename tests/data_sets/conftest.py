"""A data directory of small files, and no way to find real ones by accident."""

from pathlib import Path

import pytest
from tests.data_sets.small_files import write_all


@pytest.fixture(autouse=True)
def nothing_to_be_found(monkeypatch, tmp_path_factory):
    monkeypatch.delenv("ULDP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Path:
    """A data directory with small files for every data set."""
    root = tmp_path_factory.mktemp("data")
    write_all(root)
    return root
