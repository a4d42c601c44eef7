"""``uldp serve``: the server of a real federation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import (
    before_start,
    ended_by_sigterm,
    event_log,
    gauges_at,
    name_options,
    report_errors,
    say,
    warn,
)
from uldp.cli.run import show_result
from uldp.cli.source import experiment_from, experiment_of, new_run
from uldp.errors import ConfigError, RunError

if TYPE_CHECKING:
    from uldp.experiment.build import PreparedExperiment
    from uldp.runs.directory import RunDirectory
    from uldp.runtimes.event_log import EventLog
    from uldp.runtimes.flower.federation import ServerEndpoint
    from uldp.runtimes.gauges import Gauges
    from uldp.runtimes.serving import Patience


@report_errors
def serve(
    file: opt.File = None,
    resume: Annotated[Path | None, typer.Option(help="Continue this run instead of starting a new one.")] = None,
    out: opt.Out = None,
    continue_: Annotated[
        bool, typer.Option("--continue", help="Go on with the run in --out if it was begun there: for supervisors.")
    ] = False,
    address: Annotated[str, typer.Option(help="HOST:PORT where silos reach the server.")] = "127.0.0.1:8000",
    certificates: Annotated[Path | None, typer.Option(help="Folder with ca.crt, server.pem and server.key.")] = None,
    insecure: opt.Insecure = False,
    running: Annotated[bool, typer.Option("--running", help="Use a SuperLink that is already running there.")] = False,
    patience: Annotated[float, typer.Option(help="Seconds to wait for a silo.")] = 600.0,
    on_missing: Annotated[
        str, typer.Option(help="If a silo does not respond: stop, wait, or exclude it from the round.")
    ] = "stop",
    rehearse: opt.Rehearse = False,
    overrides: opt.Set = [],  # noqa: B006
    log: opt.Log = "text",
    metrics: opt.Metrics = None,
    as_json: opt.Json = False,
) -> None:
    """Serve an experiment to silos on other machines, over Flower and TLS."""
    from uldp.runs.directory import RunDirectory

    with event_log("server", log) as lines, gauges_at(metrics) as gauges:
        if (certificates is None) != insecure:
            raise ConfigError("give either --certificates DIR or, on loopback, --insecure", location="--certificates")
        if (file is None) == (resume is None):
            raise ConfigError("give an experiment file, or --resume RUN", location="command line")
        if resume is not None and overrides:
            raise ConfigError(
                "a run is continued as it was begun; leave --set out", location="--set", value=overrides[0]
            )
        if continue_ and (out is None or resume is not None):
            raise ConfigError("goes with --out, the run that is begun or continued", location="--continue")
        where, waiting = _settings(address, certificates, running, patience, on_missing)
        if continue_ and file is not None and out is not None and RunDirectory(out).is_started:
            _check_same(file, overrides, out)
            resume = out
        if resume is not None:
            prepared, directory = _continued(resume, rehearse)
        else:
            assert file is not None
            if out is not None:
                RunDirectory.check_free(out)
            with before_start():
                prepared, directory = _new(file, out, overrides, rehearse, where)
        _serve(prepared, directory, Serving(where, waiting, lines, gauges), as_json)


@dataclass(frozen=True)
class Serving:
    """How a run is served: where, how patiently, and who is informed."""

    where: ServerEndpoint
    patience: Patience
    log: EventLog
    gauges: Gauges


def _settings(
    address: str, certificates: Path | None, running: bool, patience: float, on_missing: str
) -> tuple[ServerEndpoint, Patience]:
    from uldp.runtimes.flower.federation import ServerEndpoint
    from uldp.runtimes.flower.processes import Address, Security
    from uldp.runtimes.serving import Patience

    security = None if certificates is None else Security(certificates)
    where = ServerEndpoint(Address.parse(address, "--address"), security, running)
    with name_options({"seconds": "--patience", "attempt": "--patience", "on_missing": "--on-missing"}):
        return where, Patience(seconds=patience, attempt=min(patience, 60.0), on_missing=on_missing)


def _check_same(file: Path, overrides: list[str], run: Path) -> None:
    """Refuse to take a run of another experiment for this one's."""
    from uldp.runs.directory import RunDirectory

    begun = RunDirectory.open(run).read_json("experiment.json")
    wanted = json.loads(json.dumps(experiment_from(file, None, None, overrides).to_tree()))
    if {key: begun.get(key) for key in wanted} != wanted:
        why = f"the run there was begun with other settings than {file}; give another --out"
        raise ConfigError(why, location=str(run), value=str(run))


def _continued(run: Path, rehearse: bool) -> tuple[PreparedExperiment, RunDirectory]:
    from uldp.experiment.parties import prepare_server
    from uldp.runs.directory import RunDirectory

    directory = RunDirectory.open(run)
    return prepare_server(experiment_of(directory), rehearsal=rehearse), directory


def _new(
    file: Path, out: Path | None, overrides: list[str], rehearse: bool, where: ServerEndpoint
) -> tuple[PreparedExperiment, RunDirectory]:
    from uldp.experiment.parties import prepare_server
    from uldp.runtimes.flower.checks import port_finding
    from uldp.runtimes.flower.federation import check_rehearsal, node_keys
    from uldp.runtimes.flower.processes import check_installed

    experiment = experiment_from(file, None, None, overrides)
    prepared = prepare_server(experiment, rehearsal=rehearse)
    check_installed()
    check_rehearsal(experiment, where.address, "--address")  # all before a directory is made
    node_keys(prepared, where.security)
    port = port_finding(where.address)
    if not where.running and not port.ok:
        raise ConfigError(port.detail, location="--address", value=str(where.address))
    return prepared, new_run(prepared, out)


def _serve(prepared: PreparedExperiment, directory: RunDirectory, how: Serving, as_json: bool) -> None:
    from uldp.runtimes.flower.checks import missing_test
    from uldp.runtimes.flower.federation import serve as serve_over_flower

    silos, log = ", ".join(prepared.plan.silos), how.log
    log.event("started", f"run directory: {directory.path}; silos: {silos}; they join {how.where.address}")
    if missing := missing_test(prepared.experiment):
        warn(missing)
    again = f"uldp serve --resume {quote(str(directory.path))} and the options of before"
    try:
        with ended_by_sigterm():
            result = serve_over_flower(
                prepared,
                directory,
                how.where,
                patience=how.patience,
                on_round=log.round,
                say=log.say,
                gauges=how.gauges,
            )
    except KeyboardInterrupt:
        log.event("stopped", f"stopped; nothing is lost. Continue with: {again}")
        raise typer.Exit(130) from None
    except RunError:
        say(f"When that is mended, continue with: {again}")
        raise
    if log.as_json:
        log.event("finished", "the experiment is over")
    show_result(result, as_json=as_json)
