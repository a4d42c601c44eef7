"""Compiled code is kept under a name that says what it is for; without a folder it is compiled in memory."""

from __future__ import annotations

from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core.caching import IndexDataCacheFile

from uldp.learners import kernels
from uldp.native import cache
from uldp.native.sources import Sources

SOURCES = Sources("kernels", [])


def fresh():
    @numba.njit
    def add(x):
        return x + 1

    return add


def test_code_is_compiled_once_and_loaded_then(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path))
    assert cache.keep_on_disk(fresh(), SOURCES)(np.float32(1)) == 2
    assert capsys.readouterr().err.count("compiling kernels (once)") == 1
    assert list(tmp_path.glob("kernels-*/*.nbi"))
    assert cache.keep_on_disk(fresh(), SOURCES)(np.float32(1)) == 2
    assert capsys.readouterr().err == ""


def test_other_sources_versions_and_processors_have_other_folders(tmp_path, monkeypatch):
    (tmp_path / "kernel.py").write_text("other")
    names = {cache.folder(sources).name for sources in (SOURCES, Sources("ring", []))}
    names.add(cache.folder(Sources("kernels", [tmp_path / "kernel.py"])).name)
    monkeypatch.setattr(cache.numba, "__version__", "0")
    names.add(cache.folder(SOURCES).name)
    assert len(names) == 4


def test_only_files_without_compiled_functions_are_left_out_of_the_name():
    """A kernel in such a file would change, and the code that was compiled before would still be taken."""
    known = {path.name for path in kernels.SOURCES.files}
    for folder in (Path(kernels.__file__).parent, Path(cache.__file__).parent):
        others = {path.name for path in folder.glob("*.py")} - known
        for name in others:
            text = (folder / name).read_text()
            for maker in ("@kernel", "@inlined", "@entry", "@intrinsic", "_elementwise("):
                assert maker not in text, (name, maker)
        for source in known & {path.name for path in folder.glob("*.py")}:
            text = (folder / source).read_text()
            for name in others:
                module = name.removesuffix(".py")
                assert f"kernels.{module} import" not in text, (source, name)
                assert f"native.{module} import" not in text, (source, name)


def test_code_of_sources_that_changed_since_they_were_imported_is_not_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path))
    sources = Sources("kernels", [])
    function = cache.keep_on_disk(fresh(), sources)
    monkeypatch.setattr(sources, "digest", lambda: "another")
    assert function(np.float32(1)) == 2
    assert not list(tmp_path.glob("kernels-*/*.nbi"))


def test_without_a_folder_kernels_are_compiled_in_memory_and_it_is_said_once(tmp_path, monkeypatch, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(blocked))
    function = cache.keep_on_disk(fresh(), SOURCES)
    assert function(np.float32(1)) == 2
    assert function(np.float64(1)) == 2
    assert capsys.readouterr().err.count("no folder for compiled kernels") == 1


def test_a_full_disk_costs_time_only(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path))

    def full(self, signature, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.FunctionCache, "save_overload", full)
    assert cache.keep_on_disk(fresh(), SOURCES)(np.float32(1)) == 2
    assert "No space left on device" in capsys.readouterr().err


def test_a_damaged_file_is_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path))
    cache.keep_on_disk(fresh(), SOURCES)(np.float32(1))
    for file in tmp_path.glob("kernels-*/*"):
        file.write_bytes(b"junk")
    assert cache.keep_on_disk(fresh(), SOURCES)(np.float32(1)) == pytest.approx(2)


def test_a_file_with_the_code_of_another_signature_is_not_taken(tmp_path, monkeypatch):
    """Two processes that save at the same time may write both under one name."""
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path))
    both = cache.keep_on_disk(fresh(), SOURCES)
    both(np.ones(2, np.float32)), both(np.ones(2, np.float64))
    first, second = sorted(tmp_path.glob("kernels-*/*.nbc"))
    first.write_bytes(second.read_bytes())
    for dtype in (np.float32, np.float64, np.float32):
        again = cache.keep_on_disk(fresh(), SOURCES)(np.ones(2, dtype))
        np.testing.assert_array_equal(again, np.full(2, 2, dtype))
        assert again.dtype == dtype


def test_a_damaged_file_in_a_folder_that_became_read_only_costs_time_only(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path))
    cache.keep_on_disk(fresh(), SOURCES)(np.float32(1))
    for file in tmp_path.glob("kernels-*/*.nbi"):
        file.write_bytes(b"junk")

    def refuse(self):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(IndexDataCacheFile, "flush", refuse)  # so that the damaged index stays
    assert cache.keep_on_disk(fresh(), SOURCES)(np.float32(1)) == 2
