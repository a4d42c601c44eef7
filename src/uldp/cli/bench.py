"""``uldp bench``: ratios, both sides measured in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uldp.cli import options as opt
from uldp.cli.output import print_json, print_table, report_errors, say

if TYPE_CHECKING:
    from uldp.bench.utility_claims import Row

bench = typer.Typer(help="Run benchmarks.", no_args_is_help=True)

Cases = Sequence[dict[str, Any]]


@bench.command()
@report_errors
def train(case: opt.Case = [], as_json: opt.Json = False) -> None:  # noqa: B006
    """Measure the trainer against a loop over users, Opacus and pfl; its start, and how it scales. Takes minutes."""
    from uldp.bench.train import run_cases

    _print(run_cases(case or None, say), as_json, _print_comparisons, _print_starts, _print_scaling)


@bench.command()
@report_errors
def protocol(
    case: opt.Case = [],  # noqa: B006
    quick: Annotated[bool, typer.Option("--quick", help="Use a small, insecure key and the smallest case.")] = False,
    workers: Annotated[int, typer.Option(help="Number of processes for our side.")] = 1,
    as_json: opt.Json = False,
) -> None:
    """Measure private weighting, phase by phase, against simple code on phe and gmpy2."""
    from uldp.bench.protocol import run_cases

    cases = run_cases(case or None, quick=quick, workers=workers, say=say)
    _print(cases, as_json, _print_rounds, _print_setups, _print_lattice, _print_sizes)


@bench.command()
@report_errors
def srr(case: opt.Case = [], as_json: opt.Json = False) -> None:  # noqa: B006
    """Measure local mechanisms on a large model's weights against a loop over weights and random bytes."""
    from uldp.bench.srr import run_cases

    _print(run_cases(case or None, say), as_json, _print_mechanisms)


@bench.command()
@report_errors
def transport(
    exchanges: Annotated[int, typer.Option(help="Number of measured exchanges in each series.")] = 6,
    as_json: opt.Json = False,
) -> None:
    """Measure an exchange over Flower: a process that stays against a new one per message. Takes minutes."""
    from uldp.bench.transport import run_cases

    _print(run_cases(exchanges, say=say), as_json, _print_transports)


@bench.command()
@report_errors
def utility(
    out: Annotated[Path, typer.Option(help="Folder for results and picture; what is in it is not computed again.")] = (
        Path("utility")
    ),
    case: opt.Case = [],  # noqa: B006
    quick: Annotated[bool, typer.Option("--quick", help="A few small sets, one seed, one epsilon.")] = False,
    seeds: Annotated[int, typer.Option(help="Number of seeds, up to 5; of 10,000 people and more up to 3.")] = 5,
    workers: Annotated[int, typer.Option(help="Number of processes.")] = 1,
    as_json: opt.Json = False,
) -> None:
    """Measure models trained without tuning against base rates, pooled models and other settings."""
    from uldp.bench.utility import run_all
    from uldp.bench.utility_claims import LINES, claims, divergence, rows
    from uldp.reports.figures import utility_figure

    outcomes = run_all(out, case or None, seeds=seeds, quick=quick, workers=workers, say=say)
    table = rows(outcomes)
    judged = [*claims(table), divergence(outcomes)]
    picture = utility_figure([asdict(row) for row in table], LINES, out / "utility.png") if table else None
    if as_json:
        print_json({"rows": [asdict(row) for row in table], "claims": [asdict(claim) for claim in judged]})
        return
    _print_skills(table)
    print_table(("claim", "verdict", "measured"), [(claim.text, claim.verdict, claim.detail) for claim in judged])
    if picture is not None:
        typer.echo(f"picture: {picture}")


def _print_skills(table: Sequence[Row]) -> None:
    from uldp.bench.utility_claims import COLUMNS

    shown = [
        (row.dataset, f"{row.epsilon:g}", f"{row.rho:.3f}", *(_skill(row.skills.get(name)) for name in COLUMNS))
        for row in table
    ]
    print_table(("set", "epsilon", "rho", *COLUMNS), shown, title="Skill (1 - loss / loss of the base rate), or R2")


def _skill(value: float | None) -> str:
    """Two digits; what is far below guessing is so however far."""
    return "" if value is None else f"{value:.2f}" if value > -10 else "< -10"


def _print(cases: Cases, as_json: bool, *tables: Callable[[Cases], None]) -> None:
    """Print JSON, or the tables and what was measured in each case."""
    if as_json:
        print_json(cases)
        return
    for table in tables:
        table(cases)
    for item in cases:
        typer.echo(f"{item['name']}: {item['note']}")


def _print_comparisons(cases: Cases) -> None:
    rows = [
        (
            item["name"],
            _seconds(item["ours"]),
            "-" if item["baseline"] is None else _seconds(item["baseline"]),
            "-" if item["ratio"] is None else f"{item['ratio']:.1f}x",
            f"{item['peak_mb']:.0f} MB",
            f"{100 * item['flops_share']:.0f} %",
        )
        for item in cases
        if item["kind"] == "comparison"
    ]
    if rows:
        print_table(("case", "ours", "baseline", "ratio", "peak memory", "of peak flops"), rows)


def _print_starts(cases: Cases) -> None:
    parts = ("total", "torch", "numba", "uldp", "kernels")
    starts = [item for item in cases if item["kind"] == "start"]
    if rows := [(how, *(_seconds(item[how][part]) for part in parts)) for item in starts for how in ("cold", "warm")]:
        print_table(("start", "new process", "import torch", "import numba", "other imports", "kernels"), rows)
    calls = ("import_uldp", "other_imports", "train")
    if firsts := [[_seconds(item["library"][part]) for part in calls] for item in starts]:
        print_table(("import uldp", "other imports", "first uldp.train (breast-cancer)"), firsts)


def _print_scaling(cases: Cases) -> None:
    rows = [
        (
            point["setting"],
            f"{point['value']:,}",
            f"{point['parameters']:,}",
            _seconds(point["seconds"]),
            f"{point['us_per_user_step']:.3g} us",
            f"{point['gflops']:.3g} GFLOP/s",
        )
        for item in cases
        if item["kind"] == "scaling"
        for point in item["points"]
    ]
    if rows:
        print_table(("setting", "value", "parameters", "time", "a user's step", "rate"), rows)


def _print_mechanisms(cases: Cases) -> None:
    rows = [
        (
            item["name"],
            _seconds(item["ours"]),
            _approximation_mark(item["extrapolated"]) + _seconds(item["baseline"]),
            f"{item['ratio']:.1f}x",
            f"{item['ns_per_weight']:.1f} ns",
            _target(item),
        )
        for item in cases
    ]
    print_table(("case", "ours", "baseline", "ratio", "a weight", "target"), rows)


def _print_transports(cases: Cases) -> None:
    rows = [(item["name"], f"{item['baseline']:.2f} s", f"{item['ratio']:.2f}x") for item in cases]
    print_table(("who responds in a silo", "an exchange", "to the one that stays"), rows)


def _print_rounds(cases: Cases) -> None:
    """One line for each case. What silos and server take is given where a case has phases."""
    rows = []
    for item in cases:
        baseline = _approximation_mark(item.get("extrapolated")) + _amount(item["baseline"], item["unit"])
        amounts = (_amount(item["ours"], item["unit"]), baseline, f"{item['ratio']:.1f}x", _target(item))
        rows.append((item["name"], str(item["slots"] or ""), *(_phases(item, "round") or ("", "")), *amounts))
    headers = ("case", "slots", "all silos", "server", "ours", "baseline", "ratio", "target")
    print_table(headers, rows, title="A round (silos and server: ours / baseline)")


def _print_setups(cases: Cases) -> None:
    rows = [(item["name"], *_phases(item, "setup"), _seconds(item["setup"])) for item in cases if "phases" in item]
    names = _phase_names(cases, lambda phase: phase["when"] == "setup")
    if rows:
        print_table(("case", *names, "ours"), rows, title="The setup, once (ours / baseline where it has the phase)")


def _print_lattice(cases: Cases) -> None:
    rows = [
        (
            item["name"],
            *(_seconds(item[part]) for part in ("silo", "server", "masked")),
            *("~" + _seconds(item[part]) for part in ("baseline", "simple")),
            f"{_seconds(item['setup_silo'])} / {_seconds(item['setup_server'])}",
            f"{item['update_bytes']:,}",
            f"{item['setup_to_silo']:,} / {item['setup_from_silo']:,}",
            f"{item['memory_mb']:,.0f} / {item['server_memory_mb']:,.0f} MB",
        )
        for item in cases
        if item.get("kind") == "lattice"
    ]
    headers = (
        "case", "a silo", "server", "masked", "paillier", "simple code", "setup: silo / server", "bytes of an update",
        "bytes of the setup: to / from a silo", "memory: silo / server",
    )  # fmt: skip
    if rows:
        print_table(headers, rows, title="lattice: a round, the setup, bytes and memory")


def _print_sizes(cases: Cases) -> None:
    rows = [
        (item["name"], *(f"{one['to_silo']:,} / {one['from_silo']:,}" for one in item["phases"] if one["to_silo"]))
        for item in cases
        if "phases" in item
    ]
    names = _phase_names(cases, lambda phase: phase["to_silo"])
    if rows:
        print_table(("case", *names), rows, title="Bytes of our messages, to / from one silo")
    if any(item.get("extrapolated") for item in cases):
        typer.echo("~ extrapolated from the times of single operations")


def _phase_names(cases: Cases, shown: Callable[[dict[str, Any]], bool]) -> list[str]:
    phases = next((item["phases"] for item in cases if "phases" in item), ())
    return [phase["name"] for phase in phases if shown(phase)]


def _phases(item: dict[str, Any], when: str) -> list[str]:
    """Times of ours / the baseline in the phases of a setup or a round."""
    shown = []
    for phase in item.get("phases", ()):
        about = _approximation_mark(phase["name"] in item["extrapolated"])
        baseline = "" if phase["baseline"] is None else f" / {about}{_seconds(phase['baseline'])}"
        if phase["when"] == when:
            shown.append(_seconds(phase["ours"]) + baseline)
    return shown


def _approximation_mark(extrapolated: object) -> str:
    return "~" if extrapolated else ""


def _target(item: dict[str, Any]) -> str:
    return f"{item['target']}: {'met' if item['met'] else 'MISSED'}" if item["target"] else ""


def _seconds(value: float) -> str:
    return _amount(value, "s")


def _amount(value: float, unit: str) -> str:
    """Three digits, seconds below one in milliseconds."""
    if unit == "s" and value < 1:
        return f"{1000 * value:.3g} ms" if value else "-"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
