"""Files are replaced as a whole, for their owner from the first byte on, and nobody else's are touched."""

import os
import stat

import pytest

from uldp.errors import RunError
from uldp.runs import files
from uldp.runs.directory import RunDirectory


def mode(file):
    return stat.S_IMODE(file.stat().st_mode)


def test_what_lies_in_the_way_is_neither_followed_nor_used(tmp_path, monkeypatch):
    """Somebody who guesses the partial file's name puts a link there."""
    (tmp_path / "target").write_text("important")
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "guessed")
    (tmp_path / ".key.guessed.partial").symlink_to(tmp_path / "target")
    with pytest.raises(RunError, match="File exists"):
        files.replace_file(tmp_path / "key", b"secret")
    assert (tmp_path / "target").read_text() == "important" and not (tmp_path / "key").exists()


def test_a_partial_file_is_for_its_owner_from_the_first_byte_and_goes_when_writing_fails(tmp_path, monkeypatch):
    seen = []

    def full(number):
        seen.extend(mode(file) for file in tmp_path.iterdir())
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match="No space left"):
            files.replace_file(tmp_path / "key", b"secret")
    assert seen == [0o600] and list(tmp_path.iterdir()) == []
    (tmp_path / "key").touch(mode=0o666)
    files.replace_file(tmp_path / "key", b"secret")
    assert mode(tmp_path / "key") == 0o600 and len(list(tmp_path.iterdir())) == 1


def test_a_private_folder_is_made_so_and_one_that_is_open_is_refused(tmp_path):
    files.private_folder(tmp_path / "a" / "b")
    files.private_folder(tmp_path / "a" / "b")
    assert mode(tmp_path / "a" / "b") == 0o700
    for number in (0o755, 0o750, 0o701):
        (tmp_path / "a" / "b").chmod(number)
        with pytest.raises(RunError, match="chmod 700"):
            files.private_folder(tmp_path / "a" / "b")
        assert mode(tmp_path / "a" / "b") == number
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="exists"):
        files.private_folder(tmp_path / "file")


def test_who_has_a_run_locked_may_lock_it_again_and_nobody_else(tmp_path):
    (tmp_path / "private").mkdir()
    ours, theirs = RunDirectory(tmp_path), RunDirectory(tmp_path)
    with ours.locked():
        with ours.locked():
            pass
        with pytest.raises(RunError, match="another process"), theirs.locked():
            pass
    with theirs.locked():
        pass
