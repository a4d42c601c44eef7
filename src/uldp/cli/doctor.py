"""``uldp doctor``: what is wrong, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.join import default_state
from uldp.cli.output import print_json, print_table, report_errors
from uldp.cli.source import experiment_from


@report_errors
def doctor(
    file: Annotated[Path, typer.Argument(help="The experiment file.")],
    address: Annotated[str | None, typer.Option(help="For a server: HOST:PORT to listen on.")] = None,
    certificates: Annotated[Path | None, typer.Option(help="For a server: folder of its certificates.")] = None,
    silo: Annotated[list[str], typer.Option(help="For a silo: its name; may be repeated.")] = [],  # noqa: B006
    data: Annotated[Path | None, typer.Option(help="For one silo: its table.")] = None,
    keys: Annotated[Path | None, typer.Option(help="For one silo: folder of its keys.")] = None,
    ca: Annotated[Path | None, typer.Option(help="For a silo: the server's authority.")] = None,
    superlink: Annotated[str | None, typer.Option(help="For a silo: HOST:PORT of the server.")] = None,
    policy: Annotated[
        Path | None, typer.Option(help="For a silo: its owner's policy (default: STATE/policy.toml).")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="For a silo: folder of its sessions (default: KEYS/state).")
    ] = None,
    run_code: Annotated[
        bool, typer.Option("--run-code", help="Run code that the experiment names and that is not uldp's.")
    ] = False,
    rehearse: opt.Rehearse = False,
    overrides: opt.Set = [],  # noqa: B006
    as_json: opt.Json = False,
) -> None:
    """Check files, certificates, ports, keys, clocks, versions and data against an experiment; start nothing.

    Models and methods of other packages are named, and run only if that is allowed by --run-code or the policy.
    """
    from uldp.runtimes.flower import checks
    from uldp.runtimes.flower.processes import Address

    server = None
    if address is not None or certificates is not None:
        server = checks.ServerOptions(Address.parse(address or "127.0.0.1:8000", "--address"), certificates)
    reached = None if superlink is None else Address.parse(superlink, "--superlink")
    silos = [
        checks.SiloOptions(name, data, keys, ca, reached, policy, state or default_state(name, keys)) for name in silo
    ]
    gate = checks.CodeGate([one.owners_policy() for one in silos], run_code=run_code)
    try:
        experiment = experiment_from(file, None, None, overrides, admit=gate)
        found = [*gate.findings, *checks.examine(experiment, server, silos, rehearsal=rehearse)]
    except checks.ForeignCodeRefused:
        found = [*gate.findings, *checks.machine_findings()]
    ok = all(one.ok for one in found)
    if as_json:
        print_json({"ok": ok, "findings": [one.to_json() for one in found]})
    else:
        print_table(("", "what", ""), [("ok" if one.ok else "PROBLEM", one.what, one.detail) for one in found])
    if not ok:
        raise typer.Exit(2)
