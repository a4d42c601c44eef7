"""``uldp run`` with each aggregation: the statement, the transcript, and what is refused."""

import base64
import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from uldp.cli.app import app

runner = CliRunner()
SMALL = ["--dataset", "breast-cancer", "--method", "uldp-avg-w", "--set", "data.users=10", "--set", "method.rounds=2"]
SMALL_KEY = [
    "--set",
    "aggregation.name=paillier",
    "--set",
    "aggregation.key_bits=640",
    "--set",
    "aggregation.max_records=40",
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def document(*arguments):
    result = runner.invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_transcript_holds_every_message_that_a_party_received(folder):
    document("run", *SMALL, *SMALL_KEY, "--transcript", "--out", "r")
    server = lines(folder / "r" / "private" / "transcript-server.jsonl")
    silo = lines(folder / "r" / "private" / "transcript-of-silo-1.jsonl")
    setup = ["Hello", "KeyRequest", "SiloKeys", "SealedSeed", "EncryptedWeights"]
    assert [line["type"] for line in silo] == [*setup, "UpdateRequest", "UpdateRequest", "Close"]
    answers = ["Welcome", "SiloKey", "SealedSeeds", "BlindedShares", "Accepted", "Update", "Update", "Closed"]
    assert [line["type"] for line in server if line["from"] == server[0]["from"]] == answers
    model = base64.b64decode(silo[-2]["body"]["model"])
    assert np.frombuffer(model, dtype="<f8").shape == (31,)
    assert (folder / "r" / "private" / "transcript-server.jsonl").stat().st_mode & 0o077 == 0
    # nobody's counts are in it
    assert not {line["type"] for line in (*server, *silo)} & {"Counts", "UserTotals", "CountsRequest"}


def test_behind_a_shuffler_the_server_hears_from_nobody_by_name(folder):
    arguments = ["--dataset", "breast-cancer", "--method", "srr-fl", "--set", "method.rounds=1"]
    document("run", *arguments, "--set", "aggregation.name=shuffled", "--transcript", "--out", "r")
    server = lines(folder / "r" / "private" / "transcript-server.jsonl")
    mixer = lines(folder / "r" / "private" / "transcript-shuffler.jsonl")
    assert {line["from"] for line in server if line["type"] == "Update"} == {"shuffler"}
    assert len({line["from"] for line in mixer}) == len(mixer) == 5
    heard = [line["body"]["vector"] for line in server if line["type"] == "Update"]
    assert not set(heard) & {line["body"]["vector"] for line in mixer}


def test_without_the_option_there_is_no_transcript(folder):
    document("run", *SMALL, "--out", "r")
    assert not list((folder / "r" / "private").glob("transcript*"))


def test_plain_and_masked_give_the_same_model_and_paillier_nearly():
    found = [
        document("run", *SMALL, "--set", f"aggregation.name={name}", *more)["metrics"]
        for name, more in (("plain", ()), ("masked", ()), ("paillier", SMALL_KEY))
    ]
    assert found[0] == found[1]
    assert found[2] == pytest.approx(found[0], rel=0.05)  # the pseudo-count and the cap change the weights


def test_paillier_alone_says_whom_its_cap_on_records_touches(folder):
    few = [*SMALL_KEY[:-1], "aggregation.max_records=10"]
    for command in (["plan"], ["run", "--out", "r"]):
        said = runner.invoke(app, [*command, *SMALL, *few]).stderr
        assert re.search(
            r"at most 2 records of a person in a silo .*: \d+ of the \d+ people with records have more", said
        )
    assert "at most" not in runner.invoke(app, ["plan", *SMALL]).stderr


@pytest.mark.parametrize("experiment", [SMALL, ["--dataset", "breast-cancer"]], ids=["uldp-avg-w", "the default"])
def test_under_lattice_no_party_alone_sees_counts_and_the_plan_says_who_does_together(experiment):
    """The default of weighting by records: stars are for coalitions only."""
    shown = {row["who"]: row["sees_counts"] for row in document("plan", *experiment)["statement"]["exposures"]}
    together = ("two colluding silos", "the server and one silo")
    assert set(together) < set(shown) and {who for who, counts in shown.items() if counts} == set(together)
    printed = runner.invoke(app, ["plan", *experiment]).stdout
    starred = {line.split("  ")[0] for line in printed.splitlines() if re.search(r"\d \*", line)}
    assert starred == set(together)
    words = " ".join(printed.split())
    assert "auto: weights depend on record counts, and lattice shows them to no single party" in words
    assert "ring-LWE" in words and "128 bits of security against classical computers" in words
    assert "records of a person count in each silo at most" in words


def test_lattice_says_whom_its_cap_on_records_touches():
    few = ["--set", "aggregation.name=lattice", "--set", "aggregation.max_records=10"]
    for command in (["plan"], ["run", "--out", "r"]):
        said = runner.invoke(app, [*command, *SMALL, *few]).stderr
        assert re.search(
            r"at most 2 records of a person in a silo .*: \d+ of the \d+ people with records have more", said
        )
    units = [*few[:-1], "aggregation.max_records=5000", "--set", "aggregation.count_unit=500"]
    words = " ".join(runner.invoke(app, ["plan", *SMALL, *units]).stdout.split())
    assert "1,000 records of a person count in each silo at most" in words and "in units of 500, rounded up" in words


def test_a_small_key_is_called_insecure_and_a_full_one_is_not():
    small = " ".join(runner.invoke(app, ["plan", *SMALL, *SMALL_KEY]).stdout.split())
    full = " ".join(runner.invoke(app, ["plan", *SMALL, "--set", "aggregation.name=paillier"]).stdout.split())
    assert "INSECURE KEY: aggregation.key_bits = 640" in small
    assert "INSECURE" not in full


def test_silos_that_do_not_know_the_sample_face_an_amplified_epsilon():
    sampled = [*SMALL, "--set", "method.sample_rate=0.1", "--set", "method.rounds=20"]
    masked = document("plan", *sampled, "--set", "aggregation.name=masked")["statement"]["exposures"]
    hidden = document("plan", *sampled, "--set", "aggregation.name=paillier")["statement"]["exposures"]
    assert [row["who"] for row in hidden[:3]] == ["anyone who sees the released models", "the server", "one silo"]
    assert hidden[1]["epsilon"] == pytest.approx(masked[1]["epsilon"], rel=1e-4)
    assert hidden[2]["epsilon"] < masked[2]["epsilon"] / 4
    assert "sample" not in hidden[2]["sees"] and "sample" in masked[2]["sees"]


def test_plan_says_what_is_sent_and_what_would_let_parameters_share_a_ciphertext():
    arguments = [*SMALL, "--set", "aggregation.name=paillier"]
    found = document("plan", *arguments)["aggregation"]
    assert found == {
        "name": "paillier",
        "update_bytes": 31 * 768,
        "request_bytes": 31 * 8,
        "setup_bytes": 10 * (768 + 384),
        "ciphertexts": 31,
        "slots": 1,
    }
    text = runner.invoke(app, ["plan", *arguments]).stdout
    advised = int(re.search(r"aggregation.max_records = (\d+) would let (\d+) parameters", text).group(1))
    packed = document("plan", *arguments, "--set", f"aggregation.max_records={advised}")["aggregation"]
    assert packed["slots"] > 1 and packed["update_bytes"] * packed["slots"] >= found["update_bytes"]
    beyond = document("plan", *arguments, "--set", f"aggregation.max_records={advised + 5}")["aggregation"]
    assert beyond["slots"] == 1
    assert "aggregation.pseudo_count = 1 would let 4 parameters" in text
    sizes = {"update_bytes": 31 * 8, "request_bytes": 31 * 8}
    assert document("plan", *SMALL, "--set", "aggregation.name=masked")["aggregation"] == {"name": "masked", **sizes}
    sampled = [*arguments, "--set", "method.sample_rate=0.1", "--set", "method.sampling=private"]
    offered = 10 * (10 * 49 + 2 * (768 + 16))
    assert document("plan", *sampled)["aggregation"]["request_bytes"] == 31 * 8 + offered


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "aggregation.name=maskd"], "Did you mean 'masked'?"),
        (["--set", "aggregation.key_bits=1024"], "key_bits goes with name = 'paillier', not with 'auto'"),
        (["--set", "aggregation.name=paillier", "--set", "aggregation.key_bits=100"], "a multiple of 16"),
        (
            ["--set", "aggregation.name=paillier", "--set", "aggregation.max_records=2000"],
            "aggregation.pseudo_count = 1",
        ),
        (["--set", "aggregation.max_records=20"], "goes with name = 'lattice' or 'paillier', not with 'auto'"),
        (["--set", "method.max_records=20"], "method.max_records: is called aggregation.max_records now"),
        (["--set", "method.ghost=1"], "method.ghost: is called aggregation.pseudo_count now"),
        (["--set", 'aggregation.identities={a="xyz"}'], "64 hexadecimal digits"),
        (["--set", f'aggregation.identities={{a="{"0" * 64}"}}'], "one key for each silo"),
    ],
)
def test_contradictions_are_one_sentence(arguments, says):
    result = runner.invoke(app, ["plan", *SMALL, *arguments])
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_methods_that_send_one_vector_per_silo_do_not_go_with_paillier():
    arguments = ["--dataset", "breast-cancer", "--method", "uldp-naive", "--set", "aggregation.name=paillier"]
    result = runner.invoke(app, ["plan", *arguments])
    assert result.exit_code == 2
    assert "take name = 'masked'" in result.stderr
