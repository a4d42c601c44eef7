"""``uldp compare``: several methods side by side, same data, same seeds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import (
    NOTHING_STARTED,
    before_start,
    metric_names,
    print_json,
    print_table,
    progress,
    reporting,
    warn,
)
from uldp.cli.run import warnings_after, warnings_before
from uldp.cli.source import CodeNotice, assigned_key, experiment_from, fitting, shortcuts
from uldp.errors import ConfigError, error_context
from uldp.limits import MAX_REPEATS, check_whole

if TYPE_CHECKING:
    from uldp.experiment.build import Prepared
    from uldp.runtimes.compare import Comparison, OnRun, Total
    from uldp.runtimes.recording import OnRound


@reporting
def compare(
    file: opt.File = None,
    dataset: opt.Dataset = None,
    methods: Annotated[str, typer.Option(help="Comma-separated list of methods.")] = (
        "fedavg,uldp-avg-w,uldp-avg,uldp-sgd"
    ),
    repeats: Annotated[int, typer.Option(help="Number of seeds per method, from run.seed up.")] = 3,
    preset: opt.Preset = "",
    data_dir: opt.DataDir = None,
    epsilon: opt.Epsilon = None,
    delta: opt.Delta = None,
    rounds: opt.Rounds = None,
    seed: opt.Seed = None,
    overrides: opt.Set = [],  # noqa: B006
    out: Annotated[
        Path | None, typer.Option(help="Write runs and picture to this folder; continue or extend it if it exists.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Train several methods on the same federation and seeds: a table, and a picture of utility and epsilon."""
    from uldp.reports.figures import compare_figure
    from uldp.runs.directory import RunDirectory
    from uldp.runtimes.compare import compare as compare_runs

    overrides = shortcuts(overrides, epsilon, delta, rounds, seed)
    names, experiments, admit = _names(methods, repeats, overrides), {}, CodeNotice(overrides)
    with before_start():
        for name in names:
            with error_context(f"method {name}"):
                base = experiment_from(file, dataset, name, fitting(overrides, name, names), preset, data_dir, admit)
                experiments[name] = [base.with_seed(base.run.seed + repeat) for repeat in range(repeats)]
    label = dataset or (file.stem if file else "tables")
    folder = RunDirectory(out or RunDirectory.next_free(Path("runs"), f"compare-{label}"))
    try:
        comparison = compare_runs(experiments, folder, _watching())
    except KeyboardInterrupt:
        if not folder.path.exists():
            raise KeyboardInterrupt(NOTHING_STARTED) from None
        again = f"Go on with the same command and --out {quote(str(folder.path))}"
        raise KeyboardInterrupt(f"stopped; nothing is lost. {again}") from None
    compared, total = comparison.methods, comparison.total
    for method in compared:
        for experiment, result in zip(experiments[method.method], method.results, strict=True):
            for text in warnings_after(result, experiment.method.rounds):
                warn(f"{method.method} seed {experiment.run.seed}: {text}")
    shown = metric_names(compared[0].metrics)
    figure = compare_figure(compared, shown[0], folder.path / "comparison.png")
    document = {
        "results": [method.to_json() for method in compared],
        "total": total.to_json(),
        "figure": str(figure),
        "folder": str(folder.path),
    }
    folder.write_json("result.json", document)
    if as_json:
        print_json(document)
        return
    _show(comparison, shown)
    typer.echo(f"picture: {figure}")
    typer.echo(_in_all(total, folder.path))


def _names(methods: str, repeats: int, overrides: list[str]) -> list[str]:
    from uldp.errors import check_keys
    from uldp.methods.base import settings
    from uldp.methods.registry import lookup

    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names or len(set(names)) != len(names):
        raise ConfigError("name each method once, separated by commas", location="--methods", value=methods)
    for name in names:
        lookup(name)
    known = {key for name in names for key in settings(lookup(name).method)}
    for assignment in overrides:
        section, _, key = assigned_key(assignment).partition(".")
        if section == "method" and key != "name" and key not in known:
            check_keys({key: None}, sorted(known), "method")
    check_whole(repeats, 1, MAX_REPEATS, "--repeats")
    if any(assigned_key(assignment) == "method.name" for assignment in overrides):
        raise ConfigError("name the methods in --methods, not by method.name", location="--set", value="method.name")
    return names


def _watching() -> OnRun:
    """Before each run show its warnings, each once; then its progress."""
    shown: set[str] = set()

    @contextmanager
    def watch(prepared: Prepared) -> Iterator[OnRound | None]:
        for text in warnings_before(prepared):
            if text not in shown:
                warn(text)
            shown.add(text)
        experiment = prepared.experiment
        with progress(f"{experiment.method_name} seed {experiment.run.seed}", experiment.method.rounds) as show:
            yield show

    return watch


def _show(comparison: Comparison, metrics: list[str]) -> None:
    from uldp.privacy.sentences import NOT_SECRET, show_epsilon

    rows = []
    for method in comparison.methods:
        values = [_cell(method.metrics.get(name)) for name in metrics]
        unit = f" ({method.privacy_unit})" if method.privacy_unit in ("record", "client") else ""
        epsilon, server = show_epsilon(method.epsilon), show_epsilon(method.server_epsilon) + method.server_mark
        rows.append((method.method, *values, epsilon + unit, server + unit, f"{method.seconds:.1f} s"))
    first = comparison.methods[0].to_json()
    seeds = "1 seed" if first["repeats"] == 1 else f"{first['repeats']} seeds, mean and standard deviation"
    title = f"{first['dataset']}: {first['rounds']} rounds, {seeds}"
    print_table(("method", *metrics, "epsilon", "server", "time per run"), rows, title)
    if comparison.total.simulated and any(method.results[0].statement.holds for method in comparison.methods):
        typer.echo(f"{NOT_SECRET}.")
    by = {name for method in comparison.methods for name in method.results[0].statement.asserted_by}
    if by := by | set(comparison.total.asserted_by):
        typer.echo(f"Asserted by {', '.join(sorted(by))}, not proven by uldp.")
    units = {method.privacy_unit for method in comparison.methods}
    if units != {"client"}:
        typer.echo("epsilon is towards anyone who sees the released models of one run; server is towards the server.")
    if "client" in units:
        typer.echo(
            "(client): a client's, whose values are perturbed before anybody sees them; epsilon is everybody's, server "
            "is less only behind a shuffler."
        )
    if any(method.server_mark for method in comparison.methods):
        typer.echo("* of the noised numbers: the server also sees record counts, and no epsilon covers those.")


def _cell(value: tuple[float, float | None] | None) -> str:
    if value is None:
        return ""
    mean, deviation = value
    return f"{mean:.4f}" if deviation is None else f"{mean:.4f} ± {deviation:.4f}"


def _in_all(total: Total, folder: Path) -> str:
    """What all runs of the folder cost together, in words."""
    from uldp.privacy.sentences import show_epsilon

    if not total.private_runs:
        return "None of these runs protects a whole person: the total is infinite."
    if total.private_runs == 1:
        text = "Each further run on the same data adds to this epsilon, and choosing among the results does too."
    else:
        text = (
            f"On real data the {total.private_runs} private runs in {folder} would together cost epsilon "
            f"{show_epsilon(total.private_epsilon)} (towards anyone who sees all models, at the same delta), not the "
            "epsilon of one: repeated training adds up, and choosing among the results does too."
        )
    if total.private_runs < total.runs:
        text += " The other runs protect no whole person: with them the total is infinite."
    return text
