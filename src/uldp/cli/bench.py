"""``uldp bench``: ratios, both sides measured in the same run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from uldp.cli.output import Json, print_json, print_table, reporting

bench = typer.Typer(help="Run benchmarks: both sides of a ratio in one run.", no_args_is_help=True)


@bench.callback()
def _bench() -> None:
    pass


@bench.command()
@reporting
def train(
    case: Annotated[list[str], typer.Option("--case", help="Only this case; may be repeated.")] = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """The trainer against a loop over users, Opacus and pfl; its start, and how it scales. Takes some minutes."""
    from uldp.bench.train import run_cases

    cases = run_cases(case or None, say=lambda text: typer.echo(text, err=True))
    if as_json:
        print_json(cases)
        return
    printers = {"comparison": _print_comparisons, "start": _print_starts, "scaling": _print_scaling}
    for kind, printer in printers.items():
        if chosen := [item for item in cases if item["kind"] == kind]:
            printer(chosen)
    _print_notes(cases)


@bench.command()
@reporting
def protocol(
    case: Annotated[list[str], typer.Option("--case", help="Only this case; may be repeated.")] = [],  # noqa: B006
    quick: Annotated[bool, typer.Option("--quick", help="A small, insecure key and the smallest case.")] = False,
    workers: Annotated[int, typer.Option("--workers", help="Processes that calculate for us.")] = 1,
    as_json: Json = False,
) -> None:
    """Private weighting, phase by phase, against simple code on phe and gmpy2."""
    from uldp.bench.protocol import run_cases

    cases = run_cases(case or None, quick=quick, workers=workers, say=lambda text: typer.echo(text, err=True))
    if as_json:
        print_json(cases)
        return
    _print_rounds(cases)
    with_phases = [item for item in cases if "phases" in item]
    if with_phases:
        _print_setups(with_phases)
        _print_sizes(with_phases)
    if any(item.get("extrapolated") for item in cases):
        typer.echo("~ extrapolated from the times of single operations")
    _print_notes(cases)


@bench.command()
@reporting
def srr(
    case: Annotated[list[str], typer.Option("--case", help="Only this case; may be repeated.")] = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Local mechanisms on the weights of a large model, against a loop over weights and against random bytes."""
    from uldp.bench.srr import run_cases

    cases = run_cases(case or None, say=lambda text: typer.echo(text, err=True))
    if as_json:
        print_json(cases)
        return
    rows = [
        (
            item["name"],
            _amount(item["ours"], "s"),
            ("~" if item["extrapolated"] else "") + _amount(item["baseline"], "s"),
            f"{item['ratio']:.1f}x",
            f"{item['ns_per_weight']:.1f} ns",
            _target(item),
        )
        for item in cases
    ]
    print_table(("case", "ours", "baseline", "ratio", "a weight", "target"), rows)
    _print_notes(cases)


@bench.command()
@reporting
def carrier(
    exchanges: Annotated[int, typer.Option("--exchanges", help="Measured exchanges in each of the series.")] = 6,
    as_json: Json = False,
) -> None:
    """One exchange over Flower: a process that stays against a new one for every message. Takes some minutes."""
    from uldp.bench.carrier import run_cases

    cases = run_cases(exchanges, say=lambda text: typer.echo(text, err=True))
    if as_json:
        print_json(cases)
        return
    rows = [(item["name"], f"{item['baseline']:.2f} s", f"{item['ratio']:.2f}x") for item in cases]
    print_table(("who answers in a silo", "an exchange", "to the one that stays"), rows)
    _print_notes(cases)


@bench.command()
@reporting
def fuzz(
    messages: Annotated[int, typer.Option("--messages", help="Mutated messages, spread over all phases.")] = 100_000,
    seed: Annotated[int, typer.Option("--seed", help="Of the mutations.")] = 0,
    case: Annotated[list[str], typer.Option("--case", help="Only this case; may be repeated.")] = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Send mutated messages to server and silos in every phase: each must be refused, and change nothing."""
    from uldp.bench.fuzz import run_fuzz

    found = run_fuzz(messages, seed, case, say=lambda text: typer.echo(text, err=True))
    if as_json:
        print_json(found)
    else:
        rows = [
            (item["name"], *(f"{item[key]:,}" for key in ("refused", "taken", "failed"))) for item in found["cases"]
        ]
        print_table(
            ("case", "refused", "taken", "failed", "findings"),
            [(*row, str(len(item["findings"]))) for row, item in zip(rows, found["cases"], strict=True)],
        )
        typer.echo(
            f"{found['messages']:,} messages at {found['places']} places, seed {found['seed']}, in "
            f"{found['seconds']:.0f} s; memory grew by {found['growth_mb']:.0f} MB to {found['peak_mb']:.0f} MB"
        )
    if findings := [f"{item['name']}: {finding}" for item in found["cases"] for finding in item["findings"]]:
        typer.echo("\n".join(findings), err=True)
        raise typer.Exit(1)


def _print_notes(cases: Sequence[dict[str, Any]]) -> None:
    for item in cases:
        typer.echo(f"{item['name']}: {item['note']}")


def _target(item: dict[str, Any]) -> str:
    return f"{item['target']}: {'met' if item['met'] else 'MISSED'}" if item["target"] else ""


def _print_comparisons(cases: Sequence[dict[str, Any]]) -> None:
    rows = [
        (
            item["name"],
            _amount(item["ours"], "s"),
            "-" if item["baseline"] is None else _amount(item["baseline"], "s"),
            "-" if item["ratio"] is None else f"{item['ratio']:.1f}x",
            f"{item['peak_mb']:.0f} MB",
            f"{100 * item['flops_share']:.0f} %",
        )
        for item in cases
    ]
    print_table(("case", "ours", "baseline", "ratio", "peak memory", "of peak flops"), rows)


def _print_starts(cases: Sequence[dict[str, Any]]) -> None:
    parts = ("total", "torch", "numba", "uldp", "kernels")
    rows = [(how, *(_amount(item[how][part], "s") for part in parts)) for item in cases for how in ("cold", "warm")]
    headers = ("start", "new process", "import torch", "import numba", "other imports", "kernels")
    print_table(headers, rows)


def _print_scaling(cases: Sequence[dict[str, Any]]) -> None:
    rows = [
        (
            point["setting"],
            f"{point['value']:,}",
            f"{point['parameters']:,}",
            _amount(point["seconds"], "s"),
            f"{point['us_per_user_step']:.3g} us",
            f"{point['gflops']:.3g} GFLOP/s",
        )
        for item in cases
        for point in item["points"]
    ]
    print_table(("setting", "value", "parameters", "time", "a user's step", "rate"), rows)


def _print_rounds(cases: Sequence[dict[str, Any]]) -> None:
    """One line for each case. What silos and server take is given where a case has phases."""
    rows = []
    for item in cases:
        parts = [_both(item, phase) for phase in item.get("phases", ()) if phase["when"] == "round"] or ["", ""]
        about = "~" if item.get("extrapolated") else ""
        ours, baseline = _amount(item["ours"], item["unit"]), about + _amount(item["baseline"], item["unit"])
        slots = str(item["slots"] or "")
        rows.append((item["name"], slots, *parts, ours, baseline, f"{item['ratio']:.1f}x", _target(item)))
    headers = ("case", "slots", "all silos", "server", "ours", "baseline", "ratio", "target")
    print_table(headers, rows, title="A round (silos and server: ours / baseline)")


def _print_setups(cases: Sequence[dict[str, Any]]) -> None:
    names = [phase["name"] for phase in cases[0]["phases"] if phase["when"] == "setup"]
    rows = [
        (
            item["name"],
            *(_both(item, phase) for phase in item["phases"] if phase["when"] == "setup"),
            _amount(item["setup"], "s"),
        )
        for item in cases
    ]
    print_table(("case", *names, "ours"), rows, title="The setup, once (ours / baseline where it has the phase)")


def _print_sizes(cases: Sequence[dict[str, Any]]) -> None:
    names = [phase["name"] for phase in cases[0]["phases"] if phase["to_silo"]]
    rows = [
        (
            item["name"],
            *(f"{phase['to_silo']:,} / {phase['from_silo']:,}" for phase in item["phases"] if phase["to_silo"]),
        )
        for item in cases
    ]
    print_table(("case", *names), rows, title="Bytes of our messages, to / from one silo")


def _both(item: dict[str, Any], phase: dict[str, Any]) -> str:
    if phase["baseline"] is None:
        return _amount(phase["ours"], "s")
    about = "~" if phase["name"] in item["extrapolated"] else ""
    return f"{_amount(phase['ours'], 's')} / {about}{_amount(phase['baseline'], 's')}"


def _amount(value: float, unit: str) -> str:
    """Three digits, seconds below one in milliseconds."""
    if unit == "s" and value < 1:
        return f"{1000 * value:.3g} ms" if value else "-"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
