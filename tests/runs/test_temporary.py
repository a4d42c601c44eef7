"""Temporary folders go with their processes, at the latest when the next one starts; those of living ones stay."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from uldp.runtimes import temporary
from uldp.runtimes.flower.transport import FlowerTransport
from uldp.runtimes.temporary import TemporaryFolder

HOLDS = """
import sys, time
from uldp.runtimes.temporary import TemporaryFolder
folder = TemporaryFolder("transport")
(folder.path / "transport").touch()
print(folder.path, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def system_folder(short_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(short_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return short_path


def holder():
    process = subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def test_the_folder_of_a_killed_process_goes_and_that_of_a_living_one_stays(system_folder):
    process, path = holder()
    try:
        with TemporaryFolder("transport") as mine, TemporaryFolder("silo") as other:
            assert os.path.isdir(path) and mine.path.is_dir() and other.path.is_dir()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert [str(one) for one in system_folder.iterdir()] == [path]
    with TemporaryFolder("silo"):
        assert os.path.isdir(path)  # of another kind
    with FlowerTransport():
        assert not os.path.exists(path)
    assert list(system_folder.iterdir()) == []


def test_folders_of_older_versions_go_if_they_are_empty(system_folder):
    empty, used = system_folder / "uldp-transport-1s4p6ceb", system_folder / "uldp-transport-g2n8ytq3"
    empty.mkdir()
    used.mkdir()
    (used / "transport").touch()
    with TemporaryFolder("transport"):
        assert not empty.exists() and (used / "transport").exists()


def test_neither_links_nor_what_is_somebody_elses(system_folder, monkeypatch):
    target = system_folder / "target"
    target.mkdir()
    (target / "file").touch()
    (system_folder / "uldp-transport-link.held").symlink_to(target)
    abandoned = system_folder / "uldp-transport-abandoned.held"
    abandoned.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: abandoned.stat().st_uid + 1)
        temporary.remove_abandoned("transport")
    assert abandoned.exists()
    temporary.remove_abandoned("transport")
    assert not abandoned.exists() and (target / "file").exists()


def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(system_folder, monkeypatch):
    flock, made = temporary.fcntl.flock, []

    def late(handle, how):
        if not made:
            made.extend(system_folder.iterdir())
            made[0].rmdir()
        flock(handle, how)

    monkeypatch.setattr(temporary.fcntl, "flock", late)
    with TemporaryFolder("sim") as folder:
        assert folder.path.is_dir() and folder.path not in made
        folder.close()
        assert list(system_folder.iterdir()) == []
