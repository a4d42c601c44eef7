"""The commands, in the order in which people meet them. Each is imported here, PyTorch only when one trains."""

from __future__ import annotations

from typing import Annotated

import typer

from uldp._version import __version__
from uldp.cli.attack import attack
from uldp.cli.bench import bench
from uldp.cli.calculators import epsilon, sigma
from uldp.cli.catalog import datasets, methods
from uldp.cli.compare import compare
from uldp.cli.data import data
from uldp.cli.demo import demo
from uldp.cli.doctor import doctor
from uldp.cli.join import join
from uldp.cli.keys import keys
from uldp.cli.leave import leave
from uldp.cli.local import local
from uldp.cli.models import export, predict
from uldp.cli.new import new
from uldp.cli.plan import plan
from uldp.cli.rehearse import rehearse
from uldp.cli.run import resume, run
from uldp.cli.serve import serve
from uldp.cli.total import total
from uldp.cli.usage import OneSentence

app = typer.Typer(
    cls=OneSentence,
    help="Train one model across silos so that no person can be singled out, wherever their records sit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    demo,
    new,
    methods,
    datasets,
    plan,
    run,
    resume,
    compare,
    predict,
    export,
    serve,
    join,
    leave,
    rehearse,
    doctor,
    epsilon,
    sigma,
    local,
    total,
):
    app.command()(command)
app.add_typer(data, name="data")
app.add_typer(keys, name="keys")
app.add_typer(attack, name="attack")
app.add_typer(bench, name="bench")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"uldp {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass
