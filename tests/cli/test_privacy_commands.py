"""``uldp epsilon``, ``sigma``, ``plan --budget`` and ``total``: the numbers of the errata, and for whom they hold."""

import json

import pytest
from typer.testing import CliRunner

from uldp.cli.app import app

runner = CliRunner()


def document(*arguments):
    result = runner.invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def epsilon(*arguments):
    return document("epsilon", "--noise-multiplier", 5, *arguments)["epsilon"]


def settings(**values):
    """``--set method.key=value`` for each."""
    return tuple(part for key, value in values.items() for part in ("--set", f"method.{key}={value}"))


SAMPLED = settings(sample_rate=0.1)
PRIVATE = ("--aggregation", "paillier", *settings(sampling="private"))
TOLERANT = ("--set", "privacy.dropout_tolerance=1")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--rounds", 10), 2.594),
        (("--rounds", 100), 9.997),
        (("--rounds", 100, "--accountant", "rdp"), 10.725),
        (("--rounds", 100, *SAMPLED), 0.758),
        (("--rounds", 100, *settings(sample_rate=0.5)), 4.488),
        (("--rounds", 100, *SAMPLED, "--adversary", "server"), 9.997),
        (("--rounds", 100, "--adversary", "silo"), 11.48),
        (("--rounds", 100, "--adversary", "silo", "--colluding", 2), 13.76),
        (("--rounds", 100, "--dropped", 1), 11.48),
        (("--rounds", 100, "--dropped", 1, *TOLERANT), 9.997),
        (("--rounds", 100, "--method", "uldp-avg-w", "--adversary", "server", "--aggregation", "plain"), 28.37),
        (("--rounds", 100, "--method", "uldp-avg-w", "--adversary", "server"), 9.997),
        (("--rounds", 100, "--method", "uldp-avg-w", "--adversary", "server", "--aggregation", "paillier"), 9.997),
        (("--rounds", 100, *SAMPLED, "--adversary", "silo"), 11.48),
        (("--rounds", 100, *SAMPLED, "--adversary", "silo", "--aggregation", "paillier"), 0.863),
        (("--rounds", 100, *SAMPLED, "--adversary", "server", *PRIVATE), 0.758),
        (("--rounds", 100, *SAMPLED, "--adversary", "silo", *PRIVATE), 0.863),
        (("--rounds", 100, "--method", "uldp-naive"), 24.38),
        (("--rounds", 100, "--method", "uldp-naive", "--adversary", "server"), 24.38),
    ],
)
def test_epsilon_of_rounds(arguments, expected):
    assert epsilon(*arguments) == pytest.approx(expected, abs=6e-3)


STEPS = ("--method", "uldp-group", "--rounds", 1, *settings(record_rate=0.01, local_steps=100_000))


@pytest.mark.parametrize(
    ("size", "accountant", "expected"),
    [
        (32, "auto", 295.8),
        (64, "auto", 1012.0),
        (32, "lemma6", 3267),
        (64, "lemma6", 20107),
        (8, "lemma5", 58.07),
        (64, "lemma5", 3508),
    ],
)
def test_epsilon_of_groups(size, accountant, expected):
    assert epsilon(*STEPS, *settings(group_size=size), "--accountant", accountant) == pytest.approx(expected, rel=5e-3)


def test_replaced_records_are_shown_beside():
    found = document("epsilon", "--noise-multiplier", 5, "--rounds", 100)
    assert found["epsilon_replace_one"] == pytest.approx(24.38, abs=6e-3)
    naive = document("epsilon", "--noise-multiplier", 5, "--rounds", 100, "--method", "uldp-naive")
    assert naive["epsilon_replace_one"] == naive["epsilon"]


def test_figure_2_side_by_side(tmp_path):
    picture = ("--table", "--out", tmp_path / "figure2.png")
    found = document("epsilon", "--noise-multiplier", 5, *STEPS, *settings(group_size=64), *picture)
    rows = {row["k"]: row for row in found["table"]}
    assert list(rows) == [1, 2, 4, 8, 16, 32, 64]
    assert rows[32]["published"] < rows[32]["Lemma 6, valid orders"]  # so it was no bound
    for row in rows.values():
        assert row["tight"] <= row["Lemma 5"] * (1 + 1e-6) <= row["Lemma 6, valid orders"] * (1 + 1e-3)
    assert (tmp_path / "figure2.png").stat().st_size > 10_000


def test_naive_side_by_side():
    table = document("epsilon", "--noise-multiplier", 5, "--rounds", 100, "--method", "uldp-naive", "--table")["table"]
    assert table[-1]["rounds"] == 100
    assert table[-1]["published"] == pytest.approx(10.725, abs=1e-2)
    assert table[-1]["tight"] == pytest.approx(24.38, abs=1e-2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--rounds", 100),
        ("--rounds", 100, "--adversary", "silo", "--silos", 3),
        ("--method", "uldp-naive", "--rounds", 10),
        ("--method", "uldp-group", "--rounds", 1, *settings(group_size=4, record_rate=0.01, local_steps=500)),
        ("--method", "record-dp", "--rounds", 10, *settings(record_rate=0.05, local_steps=20)),
    ],
)
def test_sigma_is_what_epsilon_gives_back(arguments):
    sigma = document("sigma", "--epsilon", 2, *arguments)["noise_multiplier"]
    assert document("epsilon", "--noise-multiplier", sigma, *arguments)["epsilon"] == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--rounds", 10, "--delta", 0), "delta"),
        (("--rounds", 10, "--delta", 1.5), "delta"),
        (("--rounds", 10, "--adversary", "everybody"), "--adversary"),
        (("--rounds", 10, "--adversary", "outside"), "--adversary"),
        (("--rounds", 10, *SAMPLED, *settings(sampling="private")), "paillier"),
        (("--rounds", 10, *settings(sample_rate=0.123456789), *PRIVATE), "10 / 81"),
        (("--rounds", 10, "--colluding", 2), "--colluding"),
        (("--rounds", 10, *settings(group_size=3)), "group_size"),
        (("--rounds", 10, *settings(local_steps=3)), "local_steps"),
        (("--rounds", 10, *SAMPLED, "--accountant", "analytic-gaussian"), "--accountant: analytic-gaussian cannot"),
        (("--rounds", 10, "--method", "uldp-group", "--accountant", "rdp"), "--accountant: rdp cannot"),
        (
            ("--rounds", 10, "--accountant", "magic"),
            "--accountant: unknown accountant 'magic'. Known accountants: auto",
        ),
        (("--rounds", 10, "--accountant", "lemma55"), "Did you mean 'lemma5'?"),
        (("--rounds", 10, "--set", "privacy.dropout_tolerance=5"), "privacy.dropout_tolerance: at most 4 with 5 silos"),
        (("--rounds", 10, "--set", "privacy.dropout_tolerance=-1"), "privacy.dropout_tolerance"),
        (("--rounds", 10, "--set", "privacy.dropout_tolerance=two"), "privacy.dropout_tolerance"),
        (("--rounds", 10, "--set", "privacy.noise_multiplier=5"), "--set"),
        (("--rounds", 10, "--set", "data.users=5"), "not 'data'"),
        (("--rounds", 10, *settings(clipp=1)), "Did you mean 'clip'?"),
        (("--rounds", 10, "--set", "sample_rate=0.1"), "section.key=value"),
        (("--rounds", 10, "--out", "x.png"), "--out"),
        ((), "--rounds"),
        (("--method", "uldp-group", *settings(group_size=3)), "--rounds"),
        (("--rounds", 0), "--rounds: "),
        (settings(rounds=0), "method.rounds: "),
        (("--rounds", 10, *settings(sample_rate=1e-300)), "method.sample_rate"),
        (("--rounds", 1, "--method", "uldp-group", *settings(group_size=0)), "method.group_size"),
        (
            ("--rounds", 1, "--method", "uldp-group-8", *settings(group_size=4)),
            "uldp-group-8 means group_size = 8, not 4",
        ),
        (("--rounds", 1, "--method", "uldp-group-max"), "group_size"),
        (("--rounds", 1, "--method", "uldp-group", *settings(group_size="median")), "group_size"),
    ],
)
def test_bad_input_of_epsilon(arguments, says):
    result = runner.invoke(app, ["epsilon", "--noise-multiplier", "5", *map(str, arguments)])
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr


# --- plan and total -------------------------------------------------------------------------------------------

SMALL = ["--dataset", "breast-cancer", "--set", "data.users=20", "--set", "method.rounds=20"]


def test_plan_says_where_a_budget_ends_and_what_would_fit():
    found = document("plan", *SMALL, "--method", "uldp-avg", "--budget", 2)
    assert found["rounds_within_budget"] == 6
    assert found["epsilon_after_round"]["5"] < 2 < found["epsilon_after_round"]["10"]
    changes = found["changes"]
    for key, value in changes.items():
        other = document("plan", *SMALL, "--method", "uldp-avg", "--set", f"{key}={value}")
        assert other["epsilon"] <= 2
    assert set(changes) == {"method.rounds", "privacy.noise_multiplier", "method.sample_rate"}
    assert document("plan", *SMALL, "--method", "uldp-avg", "--budget", 4)["rounds_within_budget"] == 20
    refused = runner.invoke(app, ["plan", *SMALL, "--method", "fedavg", "--budget", "2"])
    assert refused.exit_code == 2


def test_plan_of_a_group_method_says_what_it_drops_and_reads():
    result = runner.invoke(app, ["plan", *SMALL, "--method", "uldp-group-median"])
    assert result.exit_code == 0
    assert "read from the data" in result.stdout
    assert "records" in result.stderr and "drops" in result.stderr
    result = runner.invoke(app, ["plan", *SMALL, "--method", "uldp-group", "--set", "method.group_size=999"])
    assert "nothing is dropped" in result.stderr


def test_targets_are_reached_by_every_private_method():
    for method in ("uldp-naive", "uldp-group-2", "record-dp", "uldp-sgd-w"):
        arguments = ["plan", *SMALL, "--method", method, "--set", "privacy.epsilon=3", "--set", "method.rounds=3"]
        assert document(*arguments)["epsilon"] == pytest.approx(3.0, rel=2e-3)


def test_total_adds_up_the_runs_below_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["--dataset", "breast-cancer", "--set", "data.users=20", "--set", "method.rounds=2"]
    for seed, method in enumerate(("uldp-avg", "uldp-naive")):
        out = ["--set", f"run.seed={seed}", "--out", f"runs/{seed}"]
        document("run", *arguments, "--method", method, *out)
    (group,) = document("total", "runs")["totals"]
    assert group["data"] == "breast-cancer"
    alone = [run["epsilon"] for run in group["runs"]]
    # two rounds at sigma 5 and two at 2.5 are ten at 5
    assert group["epsilon"] == pytest.approx(document("epsilon", "--noise-multiplier", 5, "--rounds", 10)["epsilon"])
    assert max(alone) < group["epsilon"] < sum(alone)
    # named twice, counted once
    (again,) = document("total", "runs", "runs/../runs/0")["totals"]
    assert again["epsilon"] == group["epsilon"]
    # what was trained was spent, whatever the ledger still holds
    (tmp_path / "runs" / "0" / "ledger.jsonl").unlink()
    lost = runner.invoke(app, ["total", "runs"])
    assert lost.exit_code == 2 and "ledger.jsonl" in lost.stderr
    empty = runner.invoke(app, ["total", str(tmp_path / "nothing")])
    assert empty.exit_code == 2
    assert "no run directory" in empty.stderr


TABLES = """
[data]
silos = {silos}
user = "patient"
label = "outcome"
users = 40
test_fraction = 0.3
[data.schema.label]
kind = "class"
classes = [0, 1]
[data.schema.columns.age]
kind = "number"
range = [0, 110]
[method]
name = "uldp-avg"
rounds = 1
[privacy]
noise_multiplier = 5.0
"""


def test_total_joins_runs_that_share_a_file_and_knows_no_finite_sum_of_what_protects_nobody(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = "patient,age,outcome\n" + "".join(f"p{i},{20 + i},{i % 2}\n" for i in range(30))
    for name in ("a.csv", "b.csv", "c.csv"):
        (tmp_path / name).write_text(table)
    made = []
    for name, silos in (("one", ["a.csv", "b.csv"]), ("two", ["b.csv", "c.csv"])):
        (tmp_path / f"{name}.toml").write_text(TABLES.format(silos=silos))
        made.append(document("run", f"{name}.toml", "--out", f"runs/{name}"))
    (group,) = document("total", "runs")["totals"]
    assert len(group["runs"]) == 2 and group["epsilon"] > max(run["statement"]["epsilon"] for run in made)
    voided = ["--set", 'data.schema.standardise="silo"']
    document("run", "one.toml", *voided, "--out", "runs/void")
    (group,) = document("total", "runs")["totals"]
    assert group["epsilon"] is None
    refused = runner.invoke(app, ["plan", "one.toml", *voided, "--budget", "5"])
    assert refused.exit_code == 2 and "--budget" in refused.stderr


def test_sigma_reserves_what_is_tolerated():
    arguments = ("--rounds", 100, "--silos", 5, "--set", "privacy.dropout_tolerance=2")
    sigma = document("sigma", "--epsilon", 4, *arguments)["noise_multiplier"]
    colluding = ("--adversary", "silo", "--colluding", 2)
    found = document("epsilon", "--noise-multiplier", sigma, *arguments, *colluding)
    assert found["epsilon"] == pytest.approx(4.0, rel=1e-3)
    assert document("epsilon", "--noise-multiplier", sigma, *arguments)["epsilon"] < 4.0  # nobody is missing


def test_the_statement_is_kept_as_a_page(tmp_path):
    document(
        "run",
        "--dataset",
        "breast-cancer",
        "--set",
        "method.rounds=1",
        "--method",
        "uldp-naive",
        "--out",
        tmp_path / "r",
    )
    page = (tmp_path / "r" / "statement.html").read_text()
    assert "anyone who sees the released models" in page and "2 C |S|" in page and "<table>" in page
    assert json.loads((tmp_path / "r" / "statement.json").read_text())["corrections"]


def test_what_a_newcomer_trips_over():
    """One clear sentence each, that names the place and what would do."""
    small = ["--dataset", "breast-cancer", "--set", "data.users=20"]
    cases = {
        ("plan", *small, "--method", "uldp-avg", "--epsilon", "1e-9", "--delta", "1e-9"): "privacy.epsilon",
        ("plan", *small, "--method", "uldp-group-max", "--set", 'run.secrets="os"'): "method.group_size",
        ("compare", *small, "--methods", "uldp-avg,nix"): "'nix'",
        ("compare", *small, "--methods", "uldp-sgd,uldp-avg", "--set", "method.local_epoch=2"): "local_epochs",
        ("epsilon", "--noise-multiplier", "5", "--rounds", "9", "--table", "--out", "x.xyz"): "--out",
        ("epsilon", "--noise-multiplier", "5", "--rounds", "9", "--adversary", "silo", "--colluding", "9"): "--silos",
    }
    for arguments, says in cases.items():
        result = runner.invoke(app, list(arguments))
        assert result.exit_code == 2, result.output
        assert says in result.stderr
        assert isinstance(result.exception, SystemExit)


def test_numbers_that_do_not_cover_the_counts_are_marked():
    plain = " ".join(runner.invoke(app, ["plan", *SMALL, "--method", "uldp-avg"]).stdout.split())
    shown = [*SMALL, "--method", "uldp-avg-w", "--set", "aggregation.name=masked"]
    counted = " ".join(runner.invoke(app, ["plan", *shown]).stdout.split())
    assert "the server 3.849 * 8.721" in counted
    assert "no epsilon covers those" in counted and " * " not in plain
    arguments = [*SMALL, "--method", "uldp-avg-w", "--set", "aggregation.name=paillier"]
    hidden = " ".join(runner.invoke(app, ["plan", *arguments]).stdout.split())
    assert "the server 3.849 8.721" in hidden
    assert hidden.count(" * ") == 1 + 1 and "the server and one silo 4.377 *" in hidden  # and what the star means
    assert "in the clear" not in hidden
