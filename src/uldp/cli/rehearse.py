"""``uldp rehearse``: a whole federation on this machine, compared with the simulation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uldp.cli.federation import politely_ended, say
from uldp.cli.output import NOTHING_STARTED, Json, Set, print_json, print_table, reporting, stopped_with
from uldp.cli.source import Announcing, DataDirOption, DatasetOption, File, MethodOption, experiment_from
from uldp.errors import RunError

if TYPE_CHECKING:
    from uldp.runtimes.flower.rehearsal import Rehearsed


@reporting
def rehearse(
    file: File = None,
    dataset: DatasetOption = None,
    method: MethodOption = None,
    data_dir: DataDirOption = None,
    aggregation: Annotated[
        list[str], typer.Option("--aggregation", help="Rehearse with this one; may be repeated.")
    ] = [],  # noqa: B006
    overrides: Set = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option("--out", help="The folder to make (default: runs/rehearsal-N).")] = None,
    as_json: Json = False,
) -> None:
    """Start a server and all silos as processes here, over Flower and TLS; the model must be the simulation's."""
    from uldp.runs.directory import RunDirectory
    from uldp.runtimes.flower.rehearsal import rehearse as rehearse_one

    folder = out or RunDirectory.next_free(Path("runs"), "rehearsal")
    RunDirectory.check_free(folder)
    found: dict[str, Rehearsed] = {}
    admit = Announcing(overrides)
    with stopped_with(NOTHING_STARTED):
        chosen = [[*overrides, f"aggregation.name={name}"] for name in aggregation] or [overrides]
        experiments = [experiment_from(file, dataset, method, each, data_dir=data_dir, admit=admit) for each in chosen]
    with politely_ended():
        for experiment in experiments:
            found[experiment.aggregation.name] = rehearse_one(experiment, folder / experiment.aggregation.name, say)
    if as_json:
        print_json({name: one.to_json() for name, one in found.items()})
    else:
        _show(found)
    different = [name for name, one in found.items() if not one.identical]
    if different:
        raise RunError(
            f"the federation's model is not the simulation's with {', '.join(different)}; compare the run directories",
            location=str(folder),
        )


def _show(found: dict[str, Rehearsed]) -> None:
    rows = []
    for name, one in found.items():
        rounds = max(len(one.simulated.history), 1)
        rows.append(
            (
                name,
                "identical" if one.identical else "DIFFERENT",
                f"{one.setup.seconds:.1f} s ({one.setup.exchanges})",
                f"{one.rounds.seconds / rounds:.1f} s",
                f"{100 * one.rounds.flower_share:.0f} %",
                f"{one.simulated_round:.3f} s",
                f"{one.rounds.sent // rounds:,} / {one.rounds.received // rounds:,}",
                f"{one.seconds:.0f} s",
            )
        )
    headers = (
        "aggregation",
        "model",
        "setup (exchanges)",
        "a round",
        "of it Flower",
        "simulated",
        "bytes to / from",
        "all",
    )
    print_table(headers, rows, title="All silos together; bytes and seconds of a round")
