"""``uldp compare``: several methods side by side, same data, same seeds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from uldp.cli.output import Json, Set, metric_names, print_json, print_table, progress, reporting
from uldp.cli.source import DataDirOption, DatasetOption, File, PresetOption, experiment_from, fitting


@reporting
def compare(
    file: File = None,
    dataset: DatasetOption = None,
    methods: Annotated[str, typer.Option("--methods", help="Method names, separated by commas.")] = (
        "default,uldp-avg-w,uldp-avg,uldp-sgd"
    ),
    repeats: Annotated[int, typer.Option("--repeats", help="Seeds per method, from run.seed up.")] = 3,
    preset: PresetOption = "",
    data_dir: DataDirOption = None,
    overrides: Set = [],  # noqa: B006
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder for runs and picture; an unfinished one is continued.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train several methods on the same federation and seeds: a table, and a picture of utility and epsilon."""
    from uldp.errors import ConfigError
    from uldp.privacy.statement import finite_or_none, show_epsilon
    from uldp.reports.figures import compare_figure
    from uldp.runs.directory import RunDirectory
    from uldp.runtimes.compare import compare as compare_runs
    from uldp.runtimes.compare import total_epsilon

    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names or len(set(names)) != len(names):
        raise ConfigError("name each method once, separated by commas", place="--methods", value=methods)
    if repeats < 1:
        raise ConfigError(f"at least 1, not {repeats}", place="--repeats", value=repeats)
    base = {
        name: experiment_from(file, dataset, name, fitting(overrides, name, names), preset, data_dir) for name in names
    }
    experiments = {
        name: [experiment.with_seed(experiment.run.seed + repeat) for repeat in range(repeats)]
        for name, experiment in base.items()
    }
    label = dataset or (file.stem if file else "tables")
    folder = RunDirectory(out or RunDirectory.next_free(Path("runs"), f"compare-{label}"))
    try:
        compared = compare_runs(
            experiments, folder, lambda e: progress(f"{e.method_name} seed {e.run.seed}", e.method.rounds)
        )
    except KeyboardInterrupt:
        typer.echo(f"stopped; nothing is lost. Go on with the same command and --out {folder.path}", err=True)
        raise typer.Exit(130) from None
    shown = metric_names(compared[0].metrics)
    figure = compare_figure(compared, shown[0], folder.path / "comparison.png")
    private = [method for method in compared if math.isfinite(method.epsilon)]
    total = total_epsilon(private) if private else math.inf
    document = {
        "results": [method.to_json() for method in compared],
        "total_epsilon": finite_or_none(total_epsilon(compared)),
        "private_total_epsilon": finite_or_none(total),
        "figure": str(figure),
        "folder": str(folder.path),
    }
    folder.write_json("result.json", document)
    if as_json:
        print_json(document)
        return
    rows = [
        (
            method.method,
            *(_cell(method.metrics.get(name), repeats) for name in shown),
            show_epsilon(method.epsilon),
            f"{method.seconds:.1f} s",
        )
        for method in compared
    ]
    first = compared[0].results[0]
    print_table(
        ("method", *shown, "epsilon", "time per run"),
        rows,
        title=f"{first.dataset}: {first.history[-1].round} rounds, {repeats} seed(s), mean and standard deviation",
    )
    typer.echo(f"picture: {figure}")
    if private:
        typer.echo(
            f"On real data the private runs ({', '.join(m.method for m in private)}) would together cost epsilon "
            f"{show_epsilon(total)} at the same delta, not the epsilon of one: repeated training adds up, and choosing "
            "among the results does too."
        )
    if len(private) < len(compared):
        typer.echo("The other runs have no privacy at all: with them the total is infinite.")


def _cell(value: tuple[float, float] | None, repeats: int) -> str:
    if value is None:
        return ""
    return f"{value[0]:.4f}" + (f" ± {value[1]:.4f}" if repeats > 1 else "")
