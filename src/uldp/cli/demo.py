"""``uldp demo``: the main job on built-in data: trains, compares, draws, explains."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import before_start, print_json, print_table, report_errors
from uldp.cli.source import experiment_from

METHODS = ("fedavg", "auto", "uldp-avg-w", "uldp-sgd")


@report_errors
def demo(
    dataset: Annotated[str, typer.Option(help="Use this built-in data set.")] = "breast-cancer",
    data_dir: opt.DataDir = None,
    overrides: opt.Set = [],  # noqa: B006
    out: Annotated[
        Path | None, typer.Option(help="Write runs and picture to this folder (default: runs/demo-N).")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Train four methods on real built-in data, compare them, draw a picture and explain what was protected."""
    from uldp.experiment.build import prepare
    from uldp.experiment.variants import at_one_epsilon
    from uldp.library.progress import progress_bar
    from uldp.privacy.sentences import show_epsilon
    from uldp.reports.figures import comparison_figure, save_figure
    from uldp.runs.directory import RunDirectory
    from uldp.runtimes.compare import MethodRuns
    from uldp.runtimes.result import metric_names
    from uldp.runtimes.simulation import run

    folder = out or RunDirectory.next_free(Path("runs"), "demo")
    RunDirectory.check_free(folder)
    results = []
    overrides = at_one_epsilon(overrides, METHODS)
    with before_start():
        every = [prepare(experiment_from(None, dataset, method, overrides, data_dir=data_dir)) for method in METHODS]
    for method, prepared in zip(METHODS, every, strict=True):
        with progress_bar(method, prepared.plan.rounds) as show:
            results.append(run(prepared, RunDirectory.create(folder / method, prepared.experiment), show))
    metrics = metric_names(results[0].metrics)
    series = [MethodRuns(result.method, (result,)) for result in results]
    figure = save_figure(comparison_figure(series, metrics[0]), folder / "comparison.png")
    if as_json:
        print_json({"results": [result.to_json() for result in results], "figure": str(figure)})
        return
    rows = []
    for result in results:
        values = [f"{result.metrics[name]:.4f}" for name in metrics]
        rows.append((result.method, *values, show_epsilon(result.epsilon), f"{result.seconds:.1f} s"))
    facts = prepared.plan.facts
    title = f"{dataset}: {facts.users} people, {facts.silos} silos, test set of {len(prepared.federation.test)}"
    print_table(("method", *metrics, "epsilon", "time"), rows, title)
    typer.echo(f"picture: {figure}\n")
    typer.echo(_explain(results[1].statement.epsilon, results[1].statement.delta, facts.silos))


def _explain(epsilon: float, delta: float, silos: int) -> str:
    """What was protected, from whom, and what was not."""
    import textwrap

    from uldp.privacy.sentences import NOT_SECRET

    factor = math.exp(epsilon)
    text = f"""
What this means. With each uldp method, whoever sees the models learns little about any one person: had that
person's records been missing from all {silos} silos, no outcome would have been more than e^{epsilon:.3g} =
{factor:.0f} times more or less likely, except with probability {delta:g}. Not protected: 'fedavg' has no
privacy at all. {NOT_SECRET}, so whoever knows the seed can remove it
(run.secrets = "os" changes that). The server sees the noised total of all silos, and no single party sees how many
records anybody has (the lattice aggregation): `uldp plan` prints who faces what.
The test set, the times and your own choice among the four methods are outside of every epsilon. Each method
used the data once more: the epsilons add up.
"""
    return textwrap.fill(" ".join(text.split()), 100)
