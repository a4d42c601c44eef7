"""``uldp compare``: several methods side by side, same data, same seeds."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import NOTHING_STARTED, before_start, print_json, print_table, report_errors, warn
from uldp.cli.source import CodeNotice, experiment_from, shortcuts
from uldp.errors import ConfigError, error_context
from uldp.limits import MAX_REPEATS, check_whole


@report_errors
def compare(
    file: opt.File = None,
    dataset: opt.Dataset = None,
    methods: Annotated[str, typer.Option(help="Comma-separated list of methods.")] = (
        "fedavg,auto,uldp-avg-w,uldp-sgd"
    ),
    repeats: Annotated[int, typer.Option(help="Number of seeds per method, from run.seed up.")] = 3,
    preset: opt.Preset = "",
    data_dir: opt.DataDir = None,
    epsilon: opt.Epsilon = None,
    delta: opt.Delta = None,
    rounds: opt.Rounds = None,
    seed: opt.Seed = None,
    overrides: opt.Set = [],  # noqa: B006
    vary: Annotated[
        list[str],
        typer.Option(metavar="SECTION.KEY=A,B,C", help="Train with each of these values; repeat for a grid."),
    ] = [],  # noqa: B006
    out: Annotated[
        Path | None, typer.Option(help="Write runs and picture to this folder; continue or extend it if it exists.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Train several methods on the same federation and seeds: a table, and a picture of utility and epsilon.

    --set METHOD:SECTION.KEY=VALUE is for one of the methods only. With --vary method.sample_rate=0.1,0.5,1 every method
    that has this setting is trained with each value.
    """
    from uldp.experiment.sweeps import check_vary, grid, parse_vary
    from uldp.experiment.variants import at_one_epsilon, of_one_method, overrides_for
    from uldp.library.comparing import ComparedVariant, run_comparison
    from uldp.runs.directory import RunDirectory

    overrides = shortcuts(overrides, epsilon, delta, rounds, seed)
    names = _names(methods, repeats, overrides)
    varied = check_vary(parse_vary(vary), names)
    variants: list[ComparedVariant] = []
    admit = CodeNotice([one for one in overrides if not of_one_method(one)])
    overrides = overrides if file is not None else at_one_epsilon(overrides, names, varied)
    with before_start():
        for name in names:
            with error_context(f"method {name}"):
                for values_label, values in grid(varied, name).items():
                    own = overrides_for(overrides, name, names)
                    base = experiment_from(file, dataset, name, own, preset, data_dir, admit, values)
                    variants.append(ComparedVariant(" ".join(filter(None, (name, values_label))), base, values))
    label = dataset or (file.stem if file else "tables")
    folder = RunDirectory(out or RunDirectory.next_free(Path("runs"), f"compare-{label}"))
    try:
        comparison = run_comparison(variants, repeats, folder, warn=warn)
    except KeyboardInterrupt:
        if not folder.path.exists():
            raise KeyboardInterrupt(NOTHING_STARTED) from None
        again = f"Go on with the same command and --out {quote(str(folder.path))}"
        raise KeyboardInterrupt(f"stopped; nothing is lost. {again}") from None
    if as_json:
        print_json(comparison.to_json())
        return
    print_table(comparison.head, comparison.rows(), comparison.title)
    for line in (*comparison.notes(), f"picture: {comparison.picture}", comparison.together()):
        typer.echo(line)


def _names(methods: str, repeats: int, overrides: list[str]) -> list[str]:
    from uldp.experiment.variants import assigned_key, overrides_for
    from uldp.methods.registry import lookup

    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names or len(set(names)) != len(names):
        raise ConfigError("name each method once, separated by commas", location="--methods", value=methods)
    for name in names:
        lookup(name)
    overrides_for(overrides, names[0], names)
    check_whole(repeats, 1, MAX_REPEATS, "--repeats")
    if any(assigned_key(assignment) == "method.name" for assignment in overrides):
        raise ConfigError("name the methods in --methods, not by method.name", location="--set", value="method.name")
    return names
