"""Disks that are full for a while, below real processes over Flower and TLS."""

import subprocess
from contextlib import contextmanager

import pytest
from tests.flower.flower_support import QUICK, Parties

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
pytestmark = pytest.mark.slow

ROUNDS = {"method": {"rounds": 6}}


@contextmanager
def small_disk(folder, megabytes=32):
    """A file system of its own at ``folder``."""
    folder.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", str(folder)]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no command mount here")
    if made.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder):
    """Write until there is no room; the file to remove."""
    file = folder / "filler"
    with pytest.raises(OSError, match="No space left"), file.open("wb", buffering=0) as out:
        while True:
            out.write(bytes(1 << 12))
    return file


def test_a_server_whose_disk_is_full_stops_and_goes_on_when_there_is_room(tmp_path):
    disk = tmp_path / "disk"
    with small_disk(disk), Parties(tmp_path, QUICK, ROUNDS) as parties:
        words = parties.commands["server"]
        words[words.index("--out") + 1] = str(disk / "run")
        parties.start_all()
        parties.until(lambda: parties.exchanges >= 1)
        filler = fill(disk)
        assert parties.exit_code() == 2
        assert "No space left on device" in parties.last_line()
        assert not parties.directory.finished
        filler.unlink()
        parties.resume()
        assert parties.exit_code() == 0
        parties.check_simulated()
        parties.check_released_once(0, 1)


def test_a_silo_whose_disk_is_full_sends_nothing_and_goes_on_when_there_is_room(tmp_path):
    disk = tmp_path / "silos" / "1"
    disk.parent.mkdir(mode=0o700)
    with small_disk(disk), Parties(tmp_path, QUICK, ROUNDS) as parties:
        parties.start_all()
        parties.until(lambda: parties.exchanges >= 1)
        filler = fill(disk)
        answered = parties.released(1)
        assert parties.exit_code() == 2
        assert "silo-2: trouble with its files, so nothing was sent" in parties.last_line()
        assert "No space left on device" in parties.said("silo-2")
        assert parties.released(1) == answered
        filler.unlink()
        parties.resume()
        assert parties.exit_code() == 0
        parties.check_simulated()
        parties.check_released_once(0, 1)
