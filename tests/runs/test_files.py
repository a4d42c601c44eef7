"""Files are replaced as a whole, for their owner from the first byte on, and nobody else's are touched."""

import os
import signal
import stat
import subprocess
import sys

import pytest

from uldp.errors import RunError
from uldp.runs import files
from uldp.runs.directory import RunDirectory
from uldp.runtimes.silo_state import SiloState


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


def killed_while_writing(file, *, lives=False):
    """The partial file of a process that was killed before it could rename it; or that does not get that far."""
    program = f"""
import os, signal, sys, time
from pathlib import Path
from uldp.runs import files
def stop(folder):
    print("written", flush=True)
    {"time.sleep(600)" if lives else "os.kill(os.getpid(), signal.SIGKILL)"}
Path.replace = lambda partial, file: stop(file)
files.replace_file(Path({str(file)!r}), b"secret state")
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "written\n"
    if not lives:
        assert process.wait() == -signal.SIGKILL
    (partial,) = file.parent.glob(f".{file.name}.*.partial")
    assert partial.read_bytes() == b"secret state"
    return partial, process


def test_what_a_killed_process_left_half_written_goes_with_the_next_lock(tmp_path):
    run = RunDirectory(tmp_path / "run")
    (run.path / "private").mkdir(parents=True)
    state = SiloState(tmp_path / "state", "digest")
    owners = {
        run.path / "result.json": run.lock,
        run.state.checkpoint_file: run.lock,
        state.folder / "ledger.jsonl": state.lock,
        state.folder / "experiments" / "digest" / "session.bin": state.lock,
    }
    for file, lock in owners.items():
        partial, _ = killed_while_writing(file)
        with lock():
            assert not partial.exists()


def test_what_a_living_process_writes_stays_and_so_do_the_files_of_others(tmp_path):
    run = RunDirectory(tmp_path)
    (tmp_path / "private").mkdir()
    target = tmp_path / "target"
    target.write_text("important")
    strange = [tmp_path / "notes.partial", tmp_path / ".notes.partial", tmp_path / ".a.0123456789abcdeg.partial"]
    for file in strange:
        file.write_text("mine")
    link = tmp_path / ".b.0123456789abcdef.partial"
    link.symlink_to(target)
    partial, process = killed_while_writing(tmp_path / "result.json", lives=True)
    try:
        with run.lock():
            assert partial.exists()
    finally:
        process.kill()
        process.communicate()
    with run.lock():
        assert not partial.exists()
    assert all(file.read_text() == "mine" for file in strange) and target.read_text() == "important"


def test_a_partial_file_that_is_removed_before_it_is_locked_is_written_again(tmp_path, monkeypatch):
    flock, removed = files.fcntl.flock, []

    def late(handle, how):
        if not removed:
            removed.extend(tmp_path.glob(".*"))
            removed[0].unlink()
        flock(handle, how)

    monkeypatch.setattr(files.fcntl, "flock", late)
    files.replace_file(tmp_path / "result.json", b"all of it")
    assert removed and [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [
        ("result.json", b"all of it")
    ]


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
    with ours.lock():
        with ours.lock():
            pass
        with pytest.raises(RunError, match="another process"), theirs.lock():
            pass
    with theirs.lock():
        pass
