"""Keys, certificates and what `uldp doctor` finds wrong with them."""

import json
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from uldp.cli.app import app
from uldp.crypto.keys import verify
from uldp.errors import ConfigError, RunError
from uldp.experiment.config import Experiment
from uldp.runtimes.flower import checks, credentials
from uldp.runtimes.flower.processes import Address, connection_problem

TREE = {
    "data": {"dataset": "synthetic", "users": 20, "silos": 2, "options": {"records": 200}},
    "method": {"name": "uldp-avg", "rounds": 2, "local_epochs": 1},
    "privacy": {"noise_multiplier": 5.0},
    "run": {"secrets": "os"},
}


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def mode(file):
    return stat.S_IMODE(file.stat().st_mode)


def test_a_silos_keys_are_private_and_its_lines_fit_into_an_experiment(tmp_path):
    public = credentials.make_silo_keys("St. Mary's", tmp_path / "k")
    assert mode(tmp_path / "k") == 0o700
    assert {mode(tmp_path / "k" / name) for name in (credentials.IDENTITY, credentials.NODE_KEY)} == {0o600}
    import tomllib

    tree = tomllib.loads(public.lines())
    experiment = Experiment.from_tree({**TREE, **tree})
    assert experiment.deployment.nodes["St. Mary's"] == (tmp_path / "k" / "node.pub").read_text().strip()
    key = credentials.identity_of(tmp_path / "k")
    verify(bytes.fromhex(experiment.aggregation.identities["St. Mary's"]), key.sign("a"), ("a",), "test")


def test_the_nodes_are_part_of_an_experiment_only_where_there_are_some(tmp_path):
    plain = Experiment.from_tree(TREE)
    node = credentials.make_silo_keys("a", tmp_path / "k").node
    named = Experiment.from_tree({**TREE, "deployment": {"nodes": {"a": node}}})
    assert "deployment" not in plain.to_tree() and named.digest() != plain.digest()
    assert Experiment.from_tree(named.to_tree()) == named
    for wrong in ("ssh-rsa AAAA", 3):
        with pytest.raises(ConfigError, match="ECDSA"):
            Experiment.from_tree({**TREE, "deployment": {"nodes": {"a": wrong}}})
    with pytest.raises(ConfigError, match="same key"):
        Experiment.from_tree({**TREE, "deployment": {"nodes": {"a": node, "b": node}}})


def test_nothing_is_overwritten(tmp_path):
    assert invoke("keys", "silo", "a", "--out", tmp_path / "k").exit_code == 0
    before = (tmp_path / "k" / credentials.IDENTITY).read_bytes()
    again = invoke("keys", "silo", "a", "--out", tmp_path / "k")
    assert again.exit_code == 2 and "never overwritten" in again.output and "Traceback" not in again.output
    assert (tmp_path / "k" / credentials.IDENTITY).read_bytes() == before
    assert invoke("keys", "certificates", "--out", tmp_path / "c", "--host", "127.0.0.1").exit_code == 0
    assert invoke("keys", "certificates", "--out", tmp_path / "c", "--host", "127.0.0.1").exit_code == 2


def test_both_keys_or_none(tmp_path, monkeypatch):
    def full(file, data, mode=0o600):
        raise RunError("No space left on device", location=str(file))

    with monkeypatch.context() as patch:
        patch.setattr(credentials, "replace_file", full)
        with pytest.raises(RunError, match="No space"):
            credentials.make_silo_keys("a", tmp_path / "k")
    assert list((tmp_path / "k").iterdir()) == []
    left = credentials.stored_key(tmp_path / "k" / credentials.IDENTITY)  # killed in between
    public = credentials.make_silo_keys("a", tmp_path / "k")
    assert (tmp_path / "k" / credentials.IDENTITY).read_bytes() == left
    assert public == credentials.public_keys("a", tmp_path / "k")


def test_a_folder_that_others_may_read_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "k").mkdir()
    (tmp_path / "k").chmod(0o775)
    done = invoke("keys", "silo", "a", "--out", tmp_path / "k")
    assert done.exit_code == 2 and "chmod 700" in done.output and mode(tmp_path / "k") == 0o775
    assert list((tmp_path / "k").iterdir()) == []


def test_hosts_are_checked_before_a_folder_is_made(tmp_path):
    assert invoke("keys", "certificates", "--out", tmp_path / "c", "--host", "\u00e4.example").exit_code == 2
    assert not (tmp_path / "c").exists()


def test_keys_as_json(tmp_path):
    found = json.loads(invoke("keys", "silo", "a", "--out", tmp_path / "k", "--json").stdout)
    assert found["identity"] == credentials.public_keys("a", tmp_path / "k").identity
    assert json.loads(
        invoke("keys", "certificates", "--out", tmp_path / "c", "--host", "server.example", "--json").stdout
    )["hosts"] == ["server.example"]


@pytest.mark.parametrize(("hosts", "days"), [(["a b"], 3), (["https://x"], 3), (["x"], 0), (["x"], 9999)])
def test_certificates_that_cannot_be_are_refused(tmp_path, hosts, days):
    with pytest.raises(ConfigError):
        credentials.make_certificates(tmp_path, hosts, days)


def test_damaged_keys_are_one_sentence(tmp_path):
    credentials.make_silo_keys("a", tmp_path)
    (tmp_path / credentials.NODE_KEY).write_text("no key")
    with pytest.raises(RunError, match="uldp keys silo"):
        credentials.public_keys("a", tmp_path)
    (tmp_path / credentials.IDENTITY).write_bytes(b"short")
    with pytest.raises(RunError, match="32 bytes"):
        credentials.identity_of(tmp_path)


def problems(findings):
    return {one.what: one.detail for one in findings if not one.ok}


def test_good_certificates_have_no_problems(tmp_path):
    credentials.make_certificates(tmp_path, ["127.0.0.1", "server.example"], 30)
    for host in ("127.0.0.1", "server.example", "0.0.0.0"):
        assert problems(checks.certificate_findings(tmp_path, host)) == {}


def test_bad_certificates_are_told_apart(tmp_path):
    credentials.make_certificates(tmp_path / "a", ["127.0.0.1"], 30)
    credentials.make_certificates(tmp_path / "b", ["127.0.0.1"], 30)
    assert list(problems(checks.certificate_findings(tmp_path / "a", "elsewhere"))) == ["its names"]
    (tmp_path / "a" / "ca.crt").write_bytes((tmp_path / "b" / "ca.crt").read_bytes())
    (tmp_path / "a" / "server.key").chmod(0o644)
    assert list(problems(checks.certificate_findings(tmp_path / "a", "127.0.0.1"))) == ["its authority", "server.key"]
    (tmp_path / "b" / "server.key").write_bytes((tmp_path / "a" / "server.key").read_bytes())
    assert list(problems(checks.certificate_findings(tmp_path / "b", "127.0.0.1"))) == ["its key"]
    assert "uldp keys certificates" in problems(checks.certificate_findings(tmp_path, "x"))["certificates"]


def test_an_expired_certificate_is_a_problem(tmp_path, monkeypatch):
    credentials.make_certificates(tmp_path, ["127.0.0.1"], 30)

    class Later(checks.datetime):
        @classmethod
        def now(cls, zone=None):
            return super().now(zone) + checks.timedelta(days=40)

    monkeypatch.setattr(checks, "datetime", Later)
    assert list(problems(checks.certificate_findings(tmp_path, "127.0.0.1"))) == ["authority", "certificate"]


def signed(folder, name, host):
    """A chain of three as an authority of a house issues it: a root, one between, and a server's for ``host``."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(3)]
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, part)]) for part in ("root", "between", name)]
    made = []
    for location, issuer in enumerate((0, 0, 1)):
        builder = credentials.certificate_builder(names[location], names[issuer], keys[location].public_key(), 30)
        builder = builder.add_extension(x509.BasicConstraints(location < 2, None), critical=True)
        if location == 2:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        made.append(builder.sign(keys[issuer], hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    (folder / "ca.crt").write_bytes(made[0])
    (folder / "server.pem").write_bytes(made[2] + made[1])
    secret = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.key").write_bytes(keys[2].private_bytes(*secret))
    (folder / "server.key").chmod(0o600)
    return made


def test_a_chain_and_a_wildcard_are_fine(tmp_path):
    made = signed(tmp_path, "server", "*.example")
    assert problems(checks.certificate_findings(tmp_path, "server.example")) == {}
    for host in ("example", "a.server.example", "server.elsewhere"):
        assert list(problems(checks.certificate_findings(tmp_path, host))) == ["its names"]
    (tmp_path / "server.pem").write_bytes(made[2])
    assert list(problems(checks.certificate_findings(tmp_path, "server.example"))) == ["its authority"]


def test_plain_needs_no_identities(tmp_path):
    experiment = Experiment.from_tree({**TREE, "aggregation": {"name": "plain"}})
    found = checks.examine(experiment, None, [checks.SiloOptions("silo-1")], rehearsal=False)
    assert "aggregation.identities" not in problems(found)
    experiment = Experiment.from_tree({**TREE, "aggregation": {"name": "masked"}})
    found = checks.examine(experiment, None, [], rehearsal=True)
    assert "aggregation.identities" in problems(found)["experiment"]


def test_the_doctor_reads_the_policy_that_join_would_read(federation, tmp_path, monkeypatch):
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "policy.toml").write_text("max_epsilon = 0.0001")
    done = invoke("doctor", federation, "--silo", "silo-1", "--state", tmp_path / "state")
    assert done.exit_code == 2 and "allows epsilon" in done.output
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state").rename(tmp_path / "uldp-silo-1")
    assert "allows epsilon" in invoke("doctor", federation, "--silo", "silo-1").output


def test_the_doctor_tries_the_port(tmp_path):
    assert "cannot listen" in checks.port_finding(Address("192.0.2.1", 8000)).detail  # of another machine
    assert "cannot listen" in checks.port_finding(Address("999.1.1.1", 8000)).detail


@pytest.fixture
def federation(tmp_path):
    """An experiment file of two silos with their keys."""
    from uldp.runtimes.flower.rehearsal import write_experiment

    tree = {**TREE, "run": {"secrets": "os"}}
    experiment = Experiment.from_tree(tree, tmp_path, "pair")
    return write_experiment(experiment, ("silo-1", "silo-2"), tmp_path)


def test_the_doctor_finds_nothing_wrong_with_a_good_silo(federation, tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
    folder = tmp_path
    ca = folder / "certificates" / "ca.crt"
    done = invoke(
        "doctor", federation, "--silo", "silo-1", "--keys", folder / "keys" / "0", "--ca", ca, "--json",
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and found["ok"], found


def test_the_doctor_finds_foreign_keys_unknown_silos_and_simulated_secrets(federation, tmp_path):
    done = invoke("doctor", federation, "--silo", "silo-1", "--keys", tmp_path / "keys" / "1", "--set",
                  "run.secrets=simulated", "--json")  # fmt: skip
    wrong = {one["what"]: one["detail"] for one in json.loads(done.stdout)["findings"] if not one["ok"]}
    assert done.exit_code == 2
    assert {"experiment", "aggregation.identities.silo-1", "deployment.nodes.silo-1", "authority"} <= set(wrong)
    assert "protect nobody" in wrong["experiment"]
    done = invoke("doctor", federation, "--silo", "nobody")
    assert done.exit_code == 2 and "PROBLEM" in done.output


def test_the_doctor_sees_a_taken_port(federation, tmp_path):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = Address("127.0.0.1", taken.getsockname()[1])
        assert not connection_problem(address, None)
        side = checks.ServerOptions(address, tmp_path / "certificates")
        found = checks.examine(Experiment.from_file(federation), side, [], rehearsal=False)
        assert "port" in problems(found)


def test_a_missing_node_key_is_found_before_a_run_directory_is_made(federation, tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")
    text = federation.read_text()
    federation.write_text(text[: text.index("[deployment")])
    done = invoke("serve", federation, "--out", tmp_path / "run", "--certificates", tmp_path / "certificates")
    assert done.exit_code == 2 and "deployment.nodes.silo-1" in done.output and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("serve", "--resume", "run", "--insecure", "--set", "run.seed=3"), "leave --set out"),
        (("serve", "FILE"), "--certificates"),
        (("serve", "FILE", "--insecure", "--address", "0.0.0.0:8000"), "loopback"),
        (("serve", "FILE", "--insecure", "--address", "nowhere"), "HOST:PORT"),
        (("serve", "--insecure"), "experiment file"),
        (("serve", "FILE", "--certificates", "none"), "uldp keys certificates"),
        (("join", "FILE", "--silo", "silo-1", "--superlink", "127.0.0.1:8000"), "--keys"),
        (("join", "FILE", "--silo", "silo-1", "--superlink", "far.example:8000", "--insecure"), "loopback"),
        (("join", "FILE", "--silo", "silo-1", "--superlink", "127.0.0.1:8000", "--keys", "K"), "ca.crt"),
        (("join", "FILE", "--silo", "x", "--superlink", "127.0.0.1:8000", "--insecure"), "no silo 'x'"),
    ],
)
def test_wrong_options_are_one_sentence_and_exit_code_2(federation, tmp_path, command, said, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke(*(federation if part == "FILE" else part for part in command))
    assert done.exit_code == 2, done.output
    assert said in done.output and "Traceback" not in done.output
