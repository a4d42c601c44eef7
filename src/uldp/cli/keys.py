"""``uldp keys``: what the parties of a real federation know each other by."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import print_json, report_errors

keys = typer.Typer(help="Create keys of a silo, and certificates for trials.", no_args_is_help=True)


@keys.command()
@report_errors
def silo(
    name: Annotated[str, typer.Argument(help="The silo's name, as in the experiment.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Create this folder; it stays with the silo.")],
    as_json: opt.Json = False,
) -> None:
    """Create a silo's two private keys, and print the public lines for the experiment file."""
    from uldp.runtimes.flower.credentials import make_silo_keys

    public = make_silo_keys(name, out)
    if as_json:
        print_json({"silo": name, "identity": public.identity, "node": public.node, "folder": str(out)})
        return
    typer.echo(public.lines())
    typer.echo(f"The private keys are in {out}; they never leave this silo. The lines above may go to all.", err=True)


@keys.command()
@report_errors
def show(
    name: Annotated[str, typer.Argument(help="The silo's name, as in the experiment.", show_default=False)],
    folder: Annotated[Path, typer.Option("--keys", help="Folder of `uldp keys silo`.")],
) -> None:
    """Print the public lines of existing keys."""
    from uldp.runtimes.flower.credentials import public_keys

    typer.echo(public_keys(name, folder).lines())


@keys.command()
@report_errors
def rotate(
    name: Annotated[str, typer.Argument(help="The silo's name, as in the experiment.", show_default=False)],
    folder: Annotated[Path, typer.Option("--keys", help="Folder of `uldp keys silo`.")],
    state: Annotated[Path | None, typer.Option(help="Folder of this silo's ledger (default: KEYS/state).")] = None,
    as_json: opt.Json = False,
) -> None:
    """Put new keys in place of a silo's old ones, between two experiments; its ledger goes on."""
    from uldp.runtimes.flower.rotation import rotate_silo_keys

    public = rotate_silo_keys(name, folder, folder / "state" if state is None else state)
    if as_json:
        print_json({"silo": name, "identity": public.identity, "node": public.node, "folder": str(folder)})
        return
    typer.echo(public.lines())
    typer.echo("The old keys are gone. Put the lines above into the next experiment file.", err=True)


@keys.command()
@report_errors
def certificates(
    out: Annotated[Path, typer.Option(help="Create this folder; it stays with the server.")],
    host: Annotated[list[str], typer.Option(help="Host name or address of the server; may be repeated.")],
    days: Annotated[int, typer.Option(help="Validity in days.")] = 90,
    as_json: opt.Json = False,
) -> None:
    """For trials: create a private CA and a certificate of the server, signed by it."""
    from uldp.runtimes.flower.credentials import CA, make_certificates

    make_certificates(out, host, days)
    if as_json:
        print_json({"folder": str(out), "authority": str(out / CA), "hosts": host, "days": days})
        return
    typer.echo(f"wrote {out}; give {out / CA} to every silo, and nothing else of it.")
