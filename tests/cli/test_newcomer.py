"""What people try in their first hour."""

import pytest
import typer

import uldp
from uldp.cli import output


@pytest.mark.parametrize("given", ["study.toml", {"data": {}}, [1, 2], None])
def test_run_wants_an_experiment_and_says_where_they_come_from(given):
    with pytest.raises(uldp.ConfigError, match=r"an Experiment, not a .*Experiment.from_file\(path\)"):
        uldp.run(given)


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
