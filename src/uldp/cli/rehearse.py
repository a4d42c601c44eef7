"""``uldp rehearse``: a whole federation on this machine, compared with the simulation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import before_start, ended_by_sigterm, print_json, print_table, report_errors, say
from uldp.cli.source import CodeNotice, experiment_from
from uldp.errors import RunError

if TYPE_CHECKING:
    from uldp.runtimes.flower.rehearsal import RehearsalResult


@report_errors
def rehearse(
    file: opt.File = None,
    dataset: opt.Dataset = None,
    method: opt.Method = None,
    data_dir: opt.DataDir = None,
    aggregation: Annotated[list[str], typer.Option(help="Use this aggregation; may be repeated.")] = [],  # noqa: B006
    overrides: opt.Set = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="Create this folder (default: runs/rehearsal-N).")] = None,
    as_json: opt.Json = False,
) -> None:
    """Run a server and all silos as local processes over Flower and TLS, and compare with the simulation."""
    from uldp.runs.directory import RunDirectory
    from uldp.runtimes.flower.rehearsal import rehearse as rehearse_one

    folder = out or RunDirectory.next_free(Path("runs"), "rehearsal")
    RunDirectory.check_free(folder)
    found: dict[str, RehearsalResult] = {}
    admit = CodeNotice(overrides)
    with before_start():
        chosen = [[*overrides, f"aggregation.name={name}"] for name in aggregation] or [overrides]
        experiments = [experiment_from(file, dataset, method, each, data_dir=data_dir, admit=admit) for each in chosen]
    with ended_by_sigterm():
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


def _show(found: dict[str, RehearsalResult]) -> None:
    costs = ("setup (exchanges)", "a round", "of it Flower", "simulated", "bytes to / from", "all")
    rows = []
    for name, one in found.items():
        rounds = max(len(one.simulated.reports), 1)
        model = "identical" if one.identical else "DIFFERENT"
        setup = f"{one.setup.seconds:.1f} s ({one.setup.exchanges})"
        a_round, share = f"{one.rounds.seconds / rounds:.1f} s", one.rounds.flower_share
        flower = "unknown" if math.isnan(share) else f"{100 * share:.0f} %"
        sizes = f"{one.rounds.sent // rounds:,} / {one.rounds.received // rounds:,}"
        simulated = f"{one.simulated_round:.3f} s"
        rows.append((name, model, setup, a_round, flower, simulated, sizes, f"{one.seconds:.0f} s"))
    print_table(("aggregation", "model", *costs), rows, title="All silos together; bytes and seconds of a round")
