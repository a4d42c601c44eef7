"""The commands, in the order in which people meet them. Each is imported here, PyTorch only when one trains."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import click
import typer
from typer.core import TyperGroup

from uldp._version import __version__
from uldp.cli.attack import attack
from uldp.cli.audit import audit
from uldp.cli.bench import bench
from uldp.cli.calculators import epsilon, sigma
from uldp.cli.catalog import datasets, methods
from uldp.cli.coefficients import coefficients
from uldp.cli.compare import compare
from uldp.cli.data import data
from uldp.cli.demo import demo
from uldp.cli.describe import describe
from uldp.cli.doctor import doctor
from uldp.cli.join import join, leave
from uldp.cli.keys import keys
from uldp.cli.link import link
from uldp.cli.local_dp import local
from uldp.cli.models import export, predict, statement
from uldp.cli.new import new
from uldp.cli.operations import backup, restore, status, trail
from uldp.cli.output import report as show_error
from uldp.cli.plan import plan
from uldp.cli.published import published
from uldp.cli.rehearse import rehearse
from uldp.cli.report import report
from uldp.cli.reproduce import reproduce
from uldp.cli.run import resume, run
from uldp.cli.serve import serve
from uldp.cli.total import total
from uldp.cli.tune import tune
from uldp.errors import ConfigError


class OneSentence(TyperGroup):
    """The commands; an error of usage looks like all others: one sentence, and with ``--json`` a document."""

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> Any:  # type: ignore[override]
        if not extra.pop("standalone_mode", True):
            return super().main(args, standalone_mode=False, **extra)
        try:
            code = super().main(args, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = error.exit_code
        except click.ClickException as error:
            given = sys.argv[1:] if args is None else args
            show_error(_in_one_sentence(error), as_json="--json" in given)
            code = error.exit_code
        sys.exit(code if isinstance(code, int) else 0)


def _in_one_sentence(error: click.ClickException) -> ConfigError:
    context = getattr(error, "ctx", None)
    wanted = error.format_message().rstrip(".")
    helpful = f"; `{context.command_path} --help` shows what there is" if context else ""
    return ConfigError(f"{wanted}{helpful}", location="command line")


app = typer.Typer(
    cls=OneSentence,
    help="Train one model across silos so that no person can be singled out, wherever their records sit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
GROUPS: Final = {
    "Start": (demo, new, methods, datasets),
    "Train": (describe, plan, tune, run, resume, compare, report, predict, coefficients, export),
    "Check": (statement, epsilon, sigma, total, audit),
    "Deploy": (doctor, serve, join, leave, rehearse, status, trail, backup, restore),
    "Research": (reproduce, local, published),
}
for group, commands in GROUPS.items():
    for command in commands:
        app.command(rich_help_panel=group)(command)
for name, commands_below, group in (
    ("data", data, "Start"),
    ("link", link, "Start"),
    ("attack", attack, "Check"),
    ("keys", keys, "Deploy"),
    ("bench", bench, "Research"),
):
    app.add_typer(commands_below, name=name, rich_help_panel=group)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"uldp {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
