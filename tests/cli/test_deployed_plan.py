"""Commands for parties that hold only their own part of an experiment."""

import json

from tests.federation.test_parties import tables
from typer.testing import CliRunner

from uldp.cli.app import app
from uldp.runtimes.flower import rehearsal


def written(tmp_path):
    """An experiment file for two tables, which lie beside it."""
    (tmp_path / "made").mkdir(mode=0o700)
    return rehearsal.write_experiment(tables(tmp_path, rehearsal=True), ("a", "b"), tmp_path / "made")


def test_a_party_without_the_tables_plans_from_the_file_alone(tmp_path):
    file = written(tmp_path)
    whole = CliRunner().invoke(app, ["plan", str(file), "--json"])
    for table in tmp_path.glob("*.csv"):
        table.unlink()
    alone = CliRunner().invoke(app, ["plan", str(file), "--json"])
    assert whole.exit_code == alone.exit_code == 0, alone.output
    assert "nobody's records were read" in alone.stderr
    with_data, without = json.loads(whole.stdout), json.loads(alone.stdout)
    assert with_data["epsilon"] == without["epsilon"]
    assert with_data["statement"]["exposures"] == without["statement"]["exposures"]


def test_a_served_run_is_resumed_by_serve(tmp_path):
    ran = tmp_path / "run"
    command = ["run", "--dataset", "synthetic", "--set", "method.rounds=1", "--out", str(ran)]
    assert CliRunner().invoke(app, command).exit_code == 0
    (ran / "private" / "flower").mkdir()
    found = CliRunner().invoke(app, ["resume", str(ran)])
    assert found.exit_code == 2 and f"`uldp serve --resume {ran}` continues it" in found.stderr


def test_public_lines_can_be_printed_again(tmp_path):
    first = CliRunner().invoke(app, ["keys", "silo", "north", "--out", str(tmp_path / "k")])
    again = CliRunner().invoke(app, ["keys", "silo", "north", "--out", str(tmp_path / "k")])
    assert again.exit_code == 2 and "`uldp keys show`" in again.stderr
    shown = CliRunner().invoke(app, ["keys", "show", "north", "--keys", str(tmp_path / "k")])
    assert shown.stdout == first.stdout


def test_serve_names_its_options(tmp_path):
    for option, value in (("--on-missing", "ignore"), ("--patience", "-3")):
        command = ["serve", "x.toml", "--insecure", option, value]
        found = CliRunner().invoke(app, command)
        assert found.exit_code == 2 and f"error: {option}: " in found.stderr
