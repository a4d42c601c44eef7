"""Silos that are not what they should be, as real processes over Flower and TLS: twins, strangers, liars."""

import json
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.federation.test_parties import tables
from tests.flower.flower_support import QUICK, Parties, asleep, copied_keys, with_option

from uldp.errors import UldpError
from uldp.experiment.config import Experiment
from uldp.experiment.parties import prepare_silo
from uldp.runtimes import socket_frames as frames
from uldp.runtimes.flower import credentials
from uldp.runtimes.flower import processes as p
from uldp.runtimes.silo_process import SiloProcess

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
pytestmark = pytest.mark.slow


def test_a_second_process_with_the_same_keys_is_not_heard(tmp_path):
    """Flower lets one node in at a time. A twin that gets in after the first has no session, and refuses."""
    with Parties(tmp_path, QUICK, {"method": {"rounds": 6}}) as parties:
        twin = with_option(parties.commands["silo-2"], "--state", tmp_path / "twin")
        copy = copied_keys(twin, tmp_path / "copy")
        parties.start_all()
        parties.until(lambda: parties.exchanges >= 1)
        with asleep(parties, "silo-1"):  # so that the run does not end meanwhile
            parties.start("refused", command=twin)
            assert parties.exit_code("refused") == 2
            assert "another process uses these keys" in parties.last_line("refused")
            parties.start("twin", command=copy)
            parties.until_said("twin", "another process is there with this silo's node key")
            parties.stop("silo-2")
            parties.until(lambda: (tmp_path / "twin" / "flower" / "supernode.log").read_text().count("SuperNode ID"))
        assert parties.exit_code() == 2
        assert "stopped without silo-2 (silo-2: " in parties.last_line() and "out of turn" in parties.last_line()
        assert "refused: " in parties.said("twin")
        assert not (tmp_path / "twin" / "rehearsal-ledger.jsonl").exists()  # not one vector left it
        parties.stop("twin")
        parties.start("silo-2")
        parties.resume()
        assert parties.exit_code() == 0
        parties.check_simulated()
        parties.check_released_once(0, 1)


def test_a_silo_that_holds_something_else_is_refused_and_the_server_says_what(tmp_path):
    with Parties(tmp_path, experiment=tables(tmp_path, rehearsal=True)) as parties:
        own = parties.commands["b"]
        parties.start("b", command=with_option(own, "--keys", tmp_path / "keys" / "0"))
        assert parties.exit_code("b") == 2 and "is another than deployment.nodes.b" in parties.last_line("b")
        odd = copied_keys(with_option(own, "--state", tmp_path / "odd"), tmp_path / "copy")
        cases = {
            "belongs to experiment": ["--set", "method.local_epochs=2"],
            "says dimension = ": ["--set", "model.name=mlp"],
            "has another roster (or key for hashing ids)": [],
        }
        for location, (sentence, options) in enumerate(cases.items()):
            if not options:
                (tmp_path / "ids.key").write_text("cd" * 32)
            parties.start("b", *options, command=odd)
            parties.until_said("b", "listens at")
            (tmp_path / "ids.key").write_text("ab" * 32)
            if location == 0:
                parties.start("server")
                parties.start("a")
                assert parties.exit_code() == 2
                assert "stopped without b (" in parties.last_line() and sentence in parties.last_line()
                parties.resume("--on-missing", "wait")
            parties.until_said("server", sentence)
            assert any(line.startswith("silo b: ") and sentence in line for line in parties.said("server").splitlines())
            assert parties.running["b"].exit_code is None and parties.stop("b") == 130
        parties.start("b")
        assert parties.exit_code() == 0
        parties.check_simulated()


class Liar:
    """Sits at a node's socket and hands on what the silo says. Once it was asked for a round it makes something up."""

    LIES = ("nothing", "no frame", "no reply", "garbage")

    def __init__(self, silo, address):
        self._silo, self._listening = silo, frames.listen(address)
        self.told = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                with connection, suppress(UldpError):
                    self._answer(connection, self._silo.respond(*frames.receive(connection, 1 << 30)))

    def _respond(self, connection, honest):
        if self._silo.respond({"kind": "status"}, b"")[0]["round"] == 0:
            frames.send(connection, *honest)
            return
        self.told.append(self.LIES[min(len(self.told), len(self.LIES) - 1)])
        match self.told[-1]:
            case "no frame":
                connection.sendall(b"\xff" * 64)
            case "no reply":
                frames.send(connection, {"kind": "nonsense"}, b"")
            case "garbage":
                frames.send(connection, {"kind": "reply"}, bytes(range(256)))

    def close(self):
        self._listening.close()


@contextmanager
def lying(parties, silo):
    """A node with the silo's own key and session, and a liar between the two."""
    number = str(parties.silos.index(silo))
    keys, state = parties.folder / "keys" / number, parties.folder / "silos" / number
    prepared = prepare_silo(Experiment.from_file(parties.file), silo, rehearsal=True)
    words = parties.commands[silo]
    superlink = p.Address.parse(words[words.index("--superlink") + 1], "")
    with tempfile.TemporaryDirectory(prefix="uldp-liar-") as folder:
        address = f"unix:{folder}/silo"
        with SiloProcess(prepared, state, address, identity=credentials.identity_of(keys)) as process:
            liar = Liar(process, address)
            side = p.NodeSide(
                superlink,
                Path(words[words.index("--ca") + 1]),
                keys / credentials.NODE_KEY,
                {"silo": silo, "socket": address},
            )
            node = p.SuperNode(p.FlowerFolder(parties.folder / "liar"), side)
            try:
                yield liar
            finally:
                node.stop()
                liar.close()


def test_garbage_from_a_known_silo_stops_the_run_before_anything_is_charged(tmp_path):
    with Parties(tmp_path, QUICK) as parties:
        for name in ("server", "silo-1"):
            parties.start(name)
        nodes = tmp_path / "run" / "private" / "flower" / "nodes.json"
        parties.until(lambda: nodes.exists() and len(json.loads(nodes.read_text())) == 2)
        with lying(parties, "silo-2") as liar:
            assert parties.exit_code() == 2
        assert liar.told[:4] == list(Liar.LIES)
        said = parties.said("server")
        assert "silo silo-2: the silo's process did not respond; the silo's own log says why" in said
        assert "silo silo-2: the silo's process responded with something unknown" in said
        assert "stopped without silo-2 (silo-2: " in parties.last_line()
        assert parties.directory.log.ledger_entries() == () and not parties.directory.finished
        parties.start("silo-2")
        parties.resume()
        assert parties.exit_code() == 0
        parties.check_simulated()
        parties.check_released_once(0, 1)
