"""Where files are looked for, how they are fetched (here: from this machine), and what is said when they are not."""

import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from uldp.data import store
from uldp.data.builtin import datasets, load_builtin
from uldp.data.store import DataFile, DataFiles
from uldp.errors import ConfigError, DataError
from uldp.rng import Streams

NAMES = [name for name, dataset in datasets().items() if dataset.files is not None]
BODY = b"some records\n" * 1000
SUM = hashlib.sha256(BODY).hexdigest()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/loop":
            self.send_response(302)
            self.send_header("Location", "/loop")
            self.end_headers()
            return
        if self.path == "/absent":
            self.send_error(404, "Not Found")
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY[:50] if self.path == "/short" else BODY)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def server():
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def files(url, *checksums, by_hand=""):
    return DataFiles("some", "some_set", ((DataFile("a.csv", url, checksums),),), by_hand=by_hand)


def test_lookup_order(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert store.roots() == (tmp_path / "cache" / "uldp",)
    monkeypatch.setenv("ULDP_DATA", str(tmp_path / "mine"))
    assert store.roots() == (tmp_path / "mine", tmp_path / "cache" / "uldp")
    assert store.roots(tmp_path / "named") == (tmp_path / "named",)
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert store.roots()[-1] == Path.home() / ".cache" / "uldp"


def test_the_first_complete_form_is_found(tmp_path, monkeypatch):
    wanted = DataFiles("some", "s", ((DataFile("a"), DataFile("b")), (DataFile("c"),)), (DataFile("more"),))
    monkeypatch.setenv("ULDP_DATA", str(tmp_path / "one"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "two"))
    one, two = tmp_path / "one" / "s", tmp_path / "two" / "uldp" / "s"
    for folder, names in ((one, "a"), (two, "ab")):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_text(name)
    assert store.locate(wanted) == {"a": two / "a", "b": two / "b"}
    (one / "c").write_text("c")
    (one / "more").write_text("more")
    assert store.locate(wanted) == {"c": one / "c", "more": one / "more"}
    with pytest.raises(DataError, match=r"no b or c in .*one"):
        (one / "c").unlink()
        store.locate(wanted, tmp_path / "one")


@pytest.mark.parametrize("name", NAMES)
def test_absent_data_is_one_sentence_that_helps(name, tmp_path):
    with pytest.raises(DataError) as error:
        load_builtin(name, None, None, None, Streams.from_seed(0), tmp_path)
    text, found = str(error.value), datasets()[name].files
    assert text.startswith(f"data.dataset: {name} is not here: no {found.ways[0][0].name}")
    assert str(tmp_path / found.folder) in text
    assert f"`uldp data fetch {name} --data-dir {tmp_path}`" in text if found.downloads else "by hand" in text
    assert "set ULDP_DATA (or --data-dir) to the folder that holds" in text
    assert "\n" not in text


def test_fetch_and_check(server, tmp_path):
    wanted = files(f"{server}/a.csv", SUM)
    said = []
    (report,) = store.fetch(wanted, tmp_path, said.append)
    assert (report.state, report.fetched, report.bytes) == (store.OK, True, len(BODY))
    assert said == [f"fetching {server}/a.csv"]
    assert [path.name for path in (tmp_path / "some_set").iterdir()] == ["a.csv"]
    assert report.path.read_bytes() == BODY
    (again,) = store.fetch(wanted, tmp_path)
    assert not again.fetched
    report.path.write_bytes(b"spoilt")
    assert [found.state for found in store.check(wanted, tmp_path)] == [store.DIFFERENT]
    assert store.fetch(wanted, tmp_path, said.append)[0].fetched
    assert [found.state for found in store.check(wanted, tmp_path)] == [store.OK]
    # what was there is never lost
    assert said[-1] == f"the file that was there is now {report.path}.old"
    assert Path(f"{report.path}.old").read_bytes() == b"spoilt"
    report.path.write_bytes(b"spoilt again")
    store.fetch(wanted, tmp_path)
    assert Path(f"{report.path}.old-2").read_bytes() == b"spoilt again"


def test_data_that_are_there_in_another_form_are_not_fetched(tmp_path):
    nowhere = DataFile("a.csv", "http://127.0.0.1:9/a.csv", (SUM,))
    wanted = DataFiles("some", "some_set", ((nowhere,), (DataFile("b.npz", "", (SUM,)),)))
    (tmp_path / "some_set").mkdir()
    (tmp_path / "some_set" / "b.npz").write_bytes(BODY)
    (report,) = store.fetch(wanted, tmp_path)
    assert (report.name, report.state, report.fetched) == ("b.npz", store.OK, False)
    by_hand = DataFiles("some", "some_set", ((DataFile("b.npz"),),), by_hand="download it by hand")
    assert store.fetch(by_hand, tmp_path)[0].state == store.UNKNOWN
    (tmp_path / "some_set" / "b.npz").write_bytes(b"spoilt")
    with pytest.raises(DataError, match="no download from"):
        store.fetch(wanted, tmp_path)


def test_parts_of_killed_downloads_are_cleared(server, tmp_path):
    folder = tmp_path / "some_set"
    folder.mkdir()
    old, young = folder / ".a.csv.part-old", folder / ".a.csv.part-young"
    for part in (old, young):
        part.write_bytes(b"half")
    os.utime(old, (0, 0))
    store.fetch(files(f"{server}/a.csv", SUM), tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == [young.name, "a.csv"]


def test_a_folder_in_a_files_place_is_not_the_file(server, tmp_path):
    wanted = files(f"{server}/a.csv")
    (tmp_path / "some_set" / "a.csv").mkdir(parents=True)
    with pytest.raises(DataError, match=r"no a\.csv in"):
        store.locate(wanted, tmp_path)
    with pytest.raises(DataError, match=r"a\.csv: a folder lies in its place, .*a\.csv; take it away"):
        store.fetch(wanted, tmp_path)


@pytest.mark.parametrize("path", ["~nosuchuser/x", "~nosuchuser"])
def test_a_home_that_nobody_has(path, monkeypatch):
    with pytest.raises(ConfigError, match=r"--data-dir: no home folder is known for '~nosuchuser"):
        store.roots(Path(path))
    monkeypatch.setenv("ULDP_DATA", path)
    with pytest.raises(ConfigError, match=r"ULDP_DATA: no home folder is known for '~nosuchuser"):
        store.roots()


def test_places_that_cannot_be_looked_at(tmp_path, monkeypatch):
    wanted = files("")
    with pytest.raises(DataError, match=r"a\.csv: cannot be looked at \(File name too long\)"):
        store.locate(wanted, tmp_path / ("x" * 300))

    def locked(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", locked)
    with pytest.raises(DataError, match=r"a\.csv: cannot be looked at \(Permission denied\)"):
        store.locate(wanted, tmp_path)


def test_fetch_into_the_place_that_is_looked_at_first(server, tmp_path, monkeypatch):
    monkeypatch.setenv("ULDP_DATA", str(tmp_path))
    (report,) = store.fetch(files(f"{server}/a.csv"))
    assert report.path == tmp_path / "some_set" / "a.csv"
    assert report.state == "no checksum known"


@pytest.mark.parametrize(
    ("path", "checksum", "text"),
    [
        ("/a.csv", "0" * 64, f"is not the known file (its sha256 is {SUM}); it was discarded"),
        ("/absent", SUM, "/absent responds 404 Not Found"),
        ("/loop", SUM, "/loop responds 302 The HTTP server returned a redirect error"),
        ("/short", SUM, "the connection ended after 50 of 13000 bytes"),
    ],
)
def test_a_failed_download_leaves_nothing(server, tmp_path, path, checksum, text):
    with pytest.raises(DataError) as error:
        store.fetch(files(server + path, checksum), tmp_path)
    assert text in str(error.value)
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "some_set").iterdir())


def test_no_network(tmp_path):
    with pytest.raises(DataError) as error:
        store.fetch(files("http://127.0.0.1:9/a.csv", by_hand="download a.csv by hand from the page"), tmp_path)
    assert "a.csv: no download from http://127.0.0.1:9/a.csv (" in str(error.value)
    assert f"; or download a.csv by hand from the page into {tmp_path / 'some_set'}" in str(error.value)


def test_only_http(tmp_path):
    with pytest.raises(DataError, match="not an http address"):
        store.fetch(files(f"file://{tmp_path}/a.csv"), tmp_path)


def test_no_direct_download(tmp_path):
    with pytest.raises(DataError, match="no direct download: download Medical MNIST by hand from the Kaggle page"):
        store.fetch(datasets()["medical-mnist"].files, tmp_path)


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "some_set").write_text("a file, not a folder")
    with pytest.raises(DataError, match=r"a\.csv: cannot write to .*some_set"):
        store.fetch(files(f"{server}/a.csv"), tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_sources_are_https_and_checksums_are_sha256(name):
    found = datasets()[name].files
    everything = [file for way in found.ways for file in way] + list(found.extras)
    assert all(file.url.startswith("https://") for file in everything if file.url)
    assert all(file.sha256 for file in everything if file.url)
    assert all(len(bytes.fromhex(checksum)) == 32 for file in everything for checksum in file.sha256)
    assert found.downloads or found.by_hand
