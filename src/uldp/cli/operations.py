"""``uldp status``, ``trail``, ``backup`` and ``restore``: what the people ask who run a party's machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import print_json, print_table, report_errors

Folder = Annotated[
    Path, typer.Argument(help="A silo's folder of state, or the run directory of a server.", show_default=False)
]
State = Annotated[Path, typer.Argument(help="The silo's folder of state.", show_default=False)]
Keys = Annotated[Path | None, typer.Option(help="For a silo: folder of its keys, with the head of its trail.")]
Head = Annotated[str, typer.Option(help="A head of the trail that was noted elsewhere, NUMBER:DIGEST.")]


@report_errors
def status(
    folder: Folder,
    keys: Keys = None,
    policy: Annotated[Path | None, typer.Option(help="For a silo: its owner's policy.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Say in words where a run or a silo stands, and what to do next. It changes nothing."""
    from uldp.runtimes.standing import standing_of

    found = standing_of(folder, keys=keys, policy=policy)
    if as_json:
        print_json(found.to_json())
    else:
        typer.echo("\n".join(found.sentences))


@report_errors
def trail(
    folder: Folder,
    keys: Keys = None,
    head: Head = "",
    key: Annotated[str, typer.Option(help="The public key that must have signed, as in the experiment file.")] = "",
    entries: Annotated[bool, typer.Option("--entries", help="Show what was released when.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Verify a party's signed audit trail: nothing changed, removed, or rolled back, and its ledger fits."""
    from uldp.runtimes.release_trail import check_trails

    found = check_trails(folder, key=key, heads=keys, head=head)
    if as_json:
        print_json({"whole": True, "trails": [one.to_json() for one in found]})
        return
    for one in found:
        if entries:
            print_table(("", "when", "what", "about"), one.rows())
        typer.echo(f"{one.file}: whole, {len(one.entries)} entries, signed by {one.entries[0].key}")
        typer.echo(one.sentence)
        typer.echo(f"head: {one.head}")


@report_errors
def backup(
    state: State,
    out: Annotated[Path, typer.Option(help="Write the copy to this new file.")],
    as_json: opt.Json = False,
) -> None:
    """Copy a silo's ledger, audit trail and policy to one file. It may be done while the silo runs."""
    from uldp.runtimes.backup import back_up

    copy = back_up(state, out)
    if as_json:
        print_json({"copy": str(out), "charges": copy.charges, "head": str(copy.head)})
        return
    typer.echo(f"wrote {out}: {copy.charges} lines of the ledger; head {copy.head}")


@report_errors
def restore(
    file: Annotated[Path, typer.Argument(help="A copy of `uldp backup`.", show_default=False)],
    state: Annotated[Path, typer.Option(help="The silo's folder of state, new or as it is.")],
    keys: Keys = None,
    head: Head = "",
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Keys and heads are lost: nobody knows whether the copy is the newest.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Put a copy of a silo's ledger back, unless releases are missing in it."""
    from uldp.runtimes.backup import restore as restore_copy

    copy = restore_copy(file, state, keys=keys, head=head, unchecked=unchecked)
    if as_json:
        print_json({"state": str(state), "charges": copy.charges, "head": str(copy.head)})
        return
    typer.echo(f"restored {state}: {copy.charges} lines of the ledger; head {copy.head}")
    if unchecked:
        typer.echo("Nothing shows that this copy is the newest: lower max_epsilon by what may have been spent since.")
