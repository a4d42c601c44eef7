"""``uldp doctor``: what is wrong, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uldp.cli.federation import Rehearse, default_state
from uldp.cli.output import Json, Set, print_json, print_table, reporting


@reporting
def doctor(
    file: Annotated[Path, typer.Argument(help="The experiment file.")],
    address: Annotated[
        str | None, typer.Option("--address", help="For a server: where it would listen.", show_default=False)
    ] = None,
    certificates: Annotated[Path | None, typer.Option("--certificates", help="For a server: its certificates.")] = None,
    silo: Annotated[list[str], typer.Option("--silo", help="For a silo: its name; may be repeated.")] = [],  # noqa: B006
    data: Annotated[Path | None, typer.Option("--data", help="For one silo: its table.")] = None,
    keys: Annotated[Path | None, typer.Option("--keys", help="For one silo: the folder of its keys.")] = None,
    ca: Annotated[Path | None, typer.Option("--ca", help="For a silo: the server's authority.")] = None,
    superlink: Annotated[str | None, typer.Option("--superlink", help="For a silo: HOST:PORT of the server.")] = None,
    policy: Annotated[
        Path | None, typer.Option("--policy", help="For a silo: its owner's policy (default: STATE/policy.toml).")
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", help="For a silo: where it keeps its sessions (default: KEYS/state).")
    ] = None,
    run_code: Annotated[
        bool, typer.Option("--run-code", help="Run code that the experiment names and that is not uldp's.")
    ] = False,
    rehearse: Rehearse = False,
    overrides: Set = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Check files, certificates, ports, keys, clocks, versions and data against an experiment; start nothing.

    Models and methods of other packages are named, and run only if that is allowed by --run-code or the policy.
    """
    from uldp.cli.source import experiment_from
    from uldp.runtimes.flower.checks import (
        CodeGate,
        ForeignCodeRefused,
        ServerSide,
        SiloSide,
        examine,
        machine_findings,
    )
    from uldp.runtimes.flower.processes import Address

    server = None
    if address is not None or certificates is not None:
        server = ServerSide(Address.parsed(address or "127.0.0.1:8000", "--address"), certificates)
    reached = None if superlink is None else Address.parsed(superlink, "--superlink")
    silos = [SiloSide(name, data, keys, ca, reached, policy, state or default_state(name, keys)) for name in silo]
    gate = CodeGate([one.owners_policy() for one in silos], told=run_code)
    try:
        experiment = experiment_from(file, None, None, overrides, admit=gate)
        found = [*gate.findings, *examine(experiment, server, silos, rehearsal=rehearse)]
    except ForeignCodeRefused:
        found = [*gate.findings, *machine_findings()]
    if as_json:
        print_json({"ok": all(one.well for one in found), "findings": [one.to_json() for one in found]})
    else:
        print_table(("", "what", ""), [("ok" if one.well else "PROBLEM", one.what, one.said) for one in found])
    if not all(one.well for one in found):
        raise typer.Exit(2)
