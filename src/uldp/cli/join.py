"""``uldp join``: one silo of a real federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from uldp.cli.federation import Insecure, Rehearse, default_state, politely_ended, say
from uldp.cli.output import Set, reporting
from uldp.errors import ConfigError


@reporting
def join(
    file: Annotated[Path, typer.Argument(help="The experiment file, the same as the server's.")],
    silo: Annotated[str, typer.Option("--silo", help="Which of the experiment's silos this is.")],
    superlink: Annotated[str, typer.Option("--superlink", help="HOST:PORT of the server.")],
    data: Annotated[
        Path | None, typer.Option("--data", help="This silo's table (default: where the experiment says it lies).")
    ] = None,
    holdout: Annotated[
        Path | None,
        typer.Option("--holdout", help="People to measure on, not to train on (run.evaluate_silos)."),
    ] = None,
    keys: Annotated[Path | None, typer.Option("--keys", help="The folder of `uldp keys silo`.")] = None,
    ca: Annotated[
        Path | None, typer.Option("--ca", help="The authority of the server's certificate (default: KEYS/ca.crt).")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="Where this silo keeps its sessions and its ledger (default: KEYS/state)."),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option("--policy", help="What the owner of the data allows (default: STATE/policy.toml).")
    ] = None,
    insecure: Insecure = False,
    rehearse: Rehearse = False,
    overrides: Set = [],  # noqa: B006
) -> None:
    """Take part in an experiment with this silo's data. It runs until the experiment is over, and can be restarted."""
    import logging

    from uldp.cli.source import Announcing, experiment_from
    from uldp.experiment.parties import prepare_silo
    from uldp.runtimes.flower.federation import Joining
    from uldp.runtimes.flower.federation import join as join_over_flower
    from uldp.runtimes.flower.processes import Address
    from uldp.runtimes.policy import Policy

    if keys is None and not insecure:
        raise ConfigError("give the folder of `uldp keys silo`, or for a rehearsal --insecure", location="--keys")
    folder = state if state is not None else default_state(silo, keys)
    address = Address.parsed(superlink, "--superlink")
    authority = None if insecure or keys is None else ca or keys / "ca.crt"
    joining = Joining(address, keys, authority, folder, Policy.of_silo(folder, policy))

    def admit(tree: Any) -> None:
        joining.policy.check_names(tree)
        Announcing(overrides)(tree)

    experiment = experiment_from(file, None, None, overrides, admit=admit)
    prepared = prepare_silo(experiment, silo, data, holdout_file=holdout, rehearsal=rehearse)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    for note in prepared.federation.notes:
        say(note)
    say(f"silo {silo}: {len(prepared.data(silo))} records; state in {folder}; joining {address}")
    with politely_ended():
        join_over_flower(prepared, joining, say)
    say(f"silo {silo}: the experiment is over")
