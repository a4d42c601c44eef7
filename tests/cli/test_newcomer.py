"""What people try in their first hour."""

import pytest
import typer

import uldp
from uldp.cli import output


@pytest.mark.parametrize("call", [uldp.train, uldp.plan])
def test_a_file_is_an_experiment_and_no_data_set(call):
    with pytest.raises(uldp.ConfigError, match=r"uldp.Experiment.from_file\(path\) reads an experiment file"):
        call("study.toml")


@pytest.mark.parametrize("given", [[1, 2], None, 3])
def test_other_things_are_no_data(given):
    with pytest.raises(uldp.ConfigError, match="silos: a table for each silo, by its name, not"):
        uldp.train(given, user="id", label="y")


def test_a_reader_that_goes_away_is_nobody_s_code(capsys, monkeypatch):
    """As in `uldp plan | head -1`: rich leaves by SystemExit when its output is not read any more."""

    @output.reporting
    def command():
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            raise SystemExit(1)  # noqa: B904

    monkeypatch.setattr(output.sys.stderr, "close", lambda: None)
    with pytest.raises(typer.Exit) as left:
        command()
    assert left.value.exit_code == 1 and capsys.readouterr().err == ""
