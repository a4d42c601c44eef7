"""The rehearsal of ``deploy/compose.yaml``, its own commands, with a read-only root and everything on the volumes.

No container is run: the same mounts, environment and user are made by a namespace (``confined.py``).
"""

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.deploy import confined

from uldp.runtimes.flower.processes import free_port

yaml = pytest.importorskip("yaml")
pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not confined.available(), reason="no mount namespaces here"),
]

ROOT = Path(__file__).parents[2]
WARDS = {"ward-a": "north", "ward-b": "harbour"}
SECONDS = 600


class Rehearsal:
    """The folder beside compose.yaml, and a volume for every service."""

    def __init__(self, folder):
        self.folder, self.user = folder, confined.USER if os.geteuid() == 0 else 0
        self.services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
        self.ports = {name: free_port() for name in self.services}
        self.address = f"127.0.0.1:{free_port()}"
        self.processes = {}
        for name in self.services:
            volume = self.volume(name)
            volume.mkdir(parents=True, mode=0o700)
            if self.user:
                os.chown(volume, self.user, self.user)
        for place in (folder, folder / "volumes"):
            place.chmod(0o755)

    def volume(self, name):
        return self.folder / "volumes" / name

    def files(self, name):
        """What the service mounts, by the name that it has there."""
        mounts = [mount.split(":") for mount in self.services[name]["volumes"] if mount.endswith(":ro")]
        found = {Path(target).name: self.folder / Path(source).name for source, target, _ in mounts}
        return {target: file for target, file in found.items() if file.exists()}

    def once(self, name, *words):
        """As ``podman compose run --rm NAME WORDS``."""
        return confined.run(list(words), self.volume(name), self.files(name), self.user)

    def command(self, name):
        own = {"9464": str(self.ports[name]), "0.0.0.0:8000": self.address, "server:8000": self.address}
        return [own.get(word, word) for word in self.services[name]["command"]]

    def up(self, name):
        log = self.folder / f"{name}.log"
        self.processes[name] = confined.start(self.command(name), self.volume(name), self.files(name), log, self.user)

    def said(self, name):
        return (self.folder / f"{name}.log").read_text()

    def stop(self, name):
        process = self.processes.pop(name)
        process.terminate()
        return process.wait(60)

    def until(self, condition):
        end = time.monotonic() + SECONDS
        while not condition():
            for name in [name for name, process in self.processes.items() if process.poll()]:
                self.up(name)  # restart: on-failure
            assert time.monotonic() < end, {name: self.said(name)[-1500:] for name in self.processes}
            time.sleep(0.2)

    def down(self):
        for name in list(self.processes):
            self.stop(name)


@pytest.fixture
def rehearsal(tmp_path):
    for parent in tmp_path.parents:  # the user must be able to get there
        if parent != Path("/") and parent.stat().st_uid == os.getuid() and parent.name.startswith("pytest"):
            parent.chmod(0o755)
    made = Rehearsal(tmp_path)
    yield made
    made.down()


def test_the_rehearsal_of_the_compose_file(rehearsal):
    folder = rehearsal.folder
    subprocess.run([sys.executable, ROOT / "examples/hospitals/make_data.py", "--out", folder / "made"], check=True)
    for ward, made in WARDS.items():
        shutil.copy(folder / "made" / f"{made}.csv", folder / f"{ward}.csv")
    (folder / "id.key").write_text("ab" * 32)
    lines = [rehearsal.once(ward, "keys", "silo", ward, "--out", "/var/lib/uldp/keys") for ward in WARDS]
    hosts = ("--host", "server", "--host", "127.0.0.1")
    rehearsal.once("server", "keys", "certificates", "--out", "/var/lib/uldp/certificates", *hosts)
    shutil.copy(rehearsal.volume("server") / "certificates" / "ca.crt", folder / "ca.crt")
    (folder / "experiment.toml").write_text(experiment(lines))
    for name in rehearsal.services:
        rehearsal.up(name)
    rehearsal.until(lambda: '"event": "round"' in rehearsal.said("server"))
    assert rehearsal.stop("server") == 130
    rehearsal.up("server")  # as a supervisor does: the same command goes on
    rehearsal.until(lambda: all(process.poll() is not None for process in rehearsal.processes.values()))
    assert {name: process.poll() for name, process in rehearsal.processes.items()} == dict.fromkeys(
        rehearsal.services, 0
    )
    check_what_is_left(rehearsal)


def check_what_is_left(rehearsal):
    assert (rehearsal.volume("server") / "run" / "result.json").exists()
    for name in rehearsal.services:
        volume = rehearsal.volume(name)
        assert (volume / "cache").is_dir()  # compiled kernels; nowhere else could they be
        assert "cannot be kept" not in rehearsal.said(name) and "no folder for compiled" not in rehearsal.said(name)
        for folder in {"keys", "state", "certificates"} & {path.name for path in volume.iterdir()}:
            assert stat.S_IMODE((volume / folder).stat().st_mode) == 0o700
        writable = [path for path in volume.rglob("*") if not path.is_symlink() and path.lstat().st_mode & 0o022]
        assert writable == []
        assert all(path.lstat().st_uid == (rehearsal.user or os.getuid()) for path in volume.rglob("*"))
    for ward in WARDS:
        said = rehearsal.once(ward, "trail", "/var/lib/uldp/state", "--keys", "/var/lib/uldp/keys")
        assert "It ends where, or after, its head says." in said
        assert "over, round 3 was the last" in rehearsal.once(ward, "status", "/var/lib/uldp/state")


def experiment(lines):
    """The hospitals' experiment for two wards, with their keys, for real secrets."""
    text = (ROOT / "examples/hospitals/experiment.toml").read_text()
    silos = ", ".join(f'"{ward}.csv"' for ward in WARDS)
    text = text.replace('silos = ["data/north.csv", "data/harbour.csv", "data/university.csv"]', f"silos = [{silos}]")
    text = text.replace('test = "data/holdout.csv"', 'id_key = "id.key"').replace('"simulated"', '"os"')
    text = text.replace('name = "auto" ', 'name = "uldp-avg"\nrounds = 3 ')
    identities = [line.splitlines()[1] for line in lines]
    nodes = [line.splitlines()[4] for line in lines]
    parts = [text, "[aggregation.identities]", *identities, "[deployment.nodes]", *nodes]
    return "\n".join(parts) + "\n"
