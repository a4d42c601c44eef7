"""``uldp attack membership``: who was among the people that a model was trained on?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import name_options, print_json, print_table, report_errors, say
from uldp.cli.source import CodeNotice, experiment_from, shortcuts
from uldp.errors import ConfigError, error_context
from uldp.limits import MAX_SEED, check_whole

_OPTIONS = {
    "models": "--models",
    "records": "--records",
    "workers": "--workers",
    "attack_seed": "--attack-seed",
    "methods": "--methods",
}


@report_errors
def membership(
    file: opt.File = None,
    dataset: opt.Dataset = None,
    methods: Annotated[str, typer.Option(help="Comma-separated list of methods.")] = (
        "record-dp,uldp-group-8,uldp-naive,uldp-avg-w,fedavg"
    ),
    data_dir: opt.DataDir = None,
    epsilon: opt.Epsilon = 4.0,
    delta: opt.Delta = None,
    rounds: opt.Rounds = None,
    overrides: opt.Set = [],  # noqa: B006
    records: Annotated[str, typer.Option(help="How many records people have; comma-separated.")] = "1,8,32",
    models: Annotated[int, typer.Option(help="Shadow models of each method.")] = 200,
    workers: Annotated[int, typer.Option(help="Processes that train models.")] = 1,
    attack_seed: Annotated[int, typer.Option(help="Seed of who is in which model, and of the noise.")] = 0,
    directory: Annotated[
        Path | None, typer.Option(help="Keep what was trained in this folder; a stopped attack goes on there.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Draw AUC and ceilings to this file (png, pdf, svg).")] = None,
    as_json: opt.Json = False,
) -> None:
    """Attack the membership of people with 1, 8 and 32 records under several methods, with shadow models.

    Public data sets are attacked on their records, everything else on made-up people of the same shape: an attack
    trains hundreds of models and never reads records of your own.
    """
    from uldp.attacks.membership_result import COLUMNS
    from uldp.data.store import expand_home
    from uldp.experiment.variants import overrides_for
    from uldp.library.arguments import CallArguments
    from uldp.library.attacking import planned_attack, run_planned_attack
    from uldp.reports.figures import check_picture

    if out is not None:
        check_picture(out)
    names, chosen = _listed(methods, "--methods"), shortcuts(overrides, epsilon, delta, rounds, None)
    with name_options(_OPTIONS):
        check_whole(attack_seed, 0, MAX_SEED, "attack_seed")
        sizes, requests, admit = [_whole(text) for text in _listed(records, "--records")], {}, CodeNotice(overrides)
        for name in names:
            with error_context(f"method {name}"):
                own = overrides_for(chosen, name, names)
                requests[name] = CallArguments(
                    experiment_from(file, dataset, name, own, "", data_dir, admit), None, None
                )
        planned = planned_attack(requests, sizes, models, attack_seed)
        say(f"attack: {planned}")
        folder = None if directory is None else expand_home(directory, "--directory")
        made = run_planned_attack(planned, workers, folder, None)
    if out is not None:
        made.figure(out)
    if as_json:
        print_json(made.to_json())
        return
    typer.echo(made.headline())
    print_table(("method", "claims", "test metric, everybody in"), made.method_rows())
    print_table(COLUMNS, made.rows())
    for note in made.notes():
        typer.echo(note)


def _listed(given: str, option: str) -> list[str]:
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise ConfigError("name each once, separated by commas", location=option, value=given)
    return names


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"a whole number such as 8, not {text!r}", location="records", value=text) from None
