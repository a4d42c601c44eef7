"""``uldp join`` and ``uldp leave``: one silo of a real federation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uldp.cli import options as opt
from uldp.cli.output import ended_by_sigterm, event_log, gauges_at, print_json, print_table, report_errors, say
from uldp.cli.source import CodeNotice, experiment_from
from uldp.errors import ConfigError

if TYPE_CHECKING:
    from uldp.experiment.build import PreparedExperiment
    from uldp.runtimes.event_log import EventLog


@report_errors
def join(
    file: Annotated[Path, typer.Argument(help="The experiment file, the same as the server's.")],
    silo: Annotated[str, typer.Option(help="Name of this silo in the experiment.")],
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the server.")],
    data: Annotated[Path | None, typer.Option(help="This silo's table (default: as in the experiment file).")] = None,
    holdout: Annotated[
        Path | None, typer.Option(help="Table of hold-out people for metrics (run.evaluate_silos).")
    ] = None,
    keys: Annotated[Path | None, typer.Option(help="Folder of `uldp keys silo`.")] = None,
    ca: Annotated[Path | None, typer.Option(help="CA certificate of the server (default: KEYS/ca.crt).")] = None,
    state: Annotated[
        Path | None, typer.Option(help="Folder of this silo's sessions and ledger (default: KEYS/state).")
    ] = None,
    policy: Annotated[Path | None, typer.Option(help="The data owner's policy (default: STATE/policy.toml).")] = None,
    insecure: opt.Insecure = False,
    rehearse: opt.Rehearse = False,
    overrides: opt.Set = [],  # noqa: B006
    log: opt.Log = "text",
    metrics: opt.Metrics = None,
) -> None:
    """Take part in an experiment with this silo's data. It runs until the experiment is over, and can be restarted."""
    from uldp.experiment.parties import prepare_silo
    from uldp.runtimes.flower.federation import ServerConnection, telling_refusals
    from uldp.runtimes.flower.federation import join as join_over_flower
    from uldp.runtimes.flower.processes import Address
    from uldp.runtimes.policy import Policy

    with event_log(silo, log) as lines, gauges_at(metrics) as gauges:
        if keys is None and not insecure:
            raise ConfigError("give the folder of `uldp keys silo`, or for a rehearsal --insecure", location="--keys")
        folder = state if state is not None else default_state(silo, keys)
        address = Address.parse(superlink, "--superlink")
        authority = None if insecure or keys is None else ca or keys / "ca.crt"
        joining = ServerConnection(address, keys, authority, folder, Policy.of_silo(folder, policy))

        def admit(tree: Any) -> None:
            joining.policy.check_names(tree)
            CodeNotice(overrides)(tree)

        with ended_by_sigterm(), telling_refusals(silo, joining, lines.say):
            experiment = experiment_from(file, None, None, overrides, admit=admit)
            prepared = prepare_silo(experiment, silo, data, holdout_file=holdout, rehearsal=rehearse)
            _log_start(lines, prepared, folder, str(address))
            join_over_flower(prepared, joining, lines.say, gauges)
        lines.event("finished", f"silo {silo}: the experiment is over")


def _log_start(log: EventLog, prepared: PreparedExperiment, folder: Path, address: str) -> None:
    import logging

    if log.as_json:
        # How many records there are, and what was remarked on them, stays on the terminal of who looks at them.
        logging.basicConfig(level=logging.INFO, handlers=[log.handler()])
        log.event("started", f"silo {prepared.silo}: state in {folder}; joining {address}")
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    for note in prepared.federation.notes:
        say(note)
    records = len(prepared.data(prepared.silo))
    say(f"silo {prepared.silo}: {records} records; state in {folder}; joining {address}")


def default_state(silo: str, keys: Path | None) -> Path:
    """A silo's folder of sessions if --state is not given: with its keys, whatever an experiment calls the silo."""
    return Path(f"uldp-{silo}".replace("/", "-")) if keys is None else keys / "state"


@report_errors
def leave(
    state: Annotated[Path, typer.Argument(help="The silo's folder of state.", show_default=False)],
    experiment: Annotated[
        str, typer.Option(help="End the experiment whose digest starts with this.", show_default=False)
    ] = "",
    as_json: opt.Json = False,
) -> None:
    """Show a silo's experiments, or end one that its server never closes: its secrets are destroyed."""
    from uldp.runtimes.silo_state import experiments_in, leave_experiment

    if experiment:
        leave_experiment(state, experiment)
    found = experiments_in(state)
    if as_json:
        print_json(
            [{"experiment": one.digest, "round": one.round, "over": one.over, "secrets": one.secrets} for one in found]
        )
        return
    rows = []
    for one in found:
        last = "cannot be read" if one.round is None else str(one.round)
        rows.append((one.digest[:12], last, "over" if one.over else "not over", "here" if one.secrets else "none"))
    print_table(("experiment", "last round", "state", "secrets"), rows)
