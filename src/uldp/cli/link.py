"""``uldp link``: who is who in several silos whose ids have nothing in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uldp.cli import options as opt
from uldp.cli.output import print_json, print_table, report_errors

link = typer.Typer(help="Find people whom several silos know under different ids.", no_args_is_help=True)
TableFile = Annotated[Path, typer.Argument(help="The silo's table.", show_default=False)]
Key = Annotated[Path, typer.Option(help="The silos' key for linkage: 64 hexadecimal digits (`openssl rand -hex 32`).")]
User = Annotated[str, typer.Option(help="The column of ids.")]
Experiment = Annotated[Path | None, typer.Option(help="Read ids by the rules ([data.ids]) of this experiment file.")]
Files = Annotated[
    list[Path], typer.Argument(help="Files of `uldp link prepare`, one of each silo.", show_default=False)
]


@link.command()
@report_errors
def prepare(
    table: TableFile,
    silo: Annotated[str, typer.Option(help="The silo's name, as in the experiment.")],
    user: User,
    on: Annotated[list[str], typer.Option(help="COLUMN[:KIND]+...; repeat for further rules, the surest first.")],
    key: Key,
    out: Annotated[Path, typer.Option(help="Write the hashes to this new file.")],
    dates: Annotated[list[str] | None, typer.Option(help="Format of this table's dates, such as %d.%m.%Y.")] = None,
    experiment: Experiment = None,
    as_json: opt.Json = False,
) -> None:
    """In every silo: hash people's values under the silos' key, for a party that does not have it."""
    from uldp.data.link_files import check_silo, write_prepared
    from uldp.library.linking import prepare_table

    part = prepare_table(table, check_silo(silo), user, on, key, dates=dates or (), experiment=experiment)
    write_prepared(part, out)
    rules = [
        {"rule": rule, "people_without": without, "hashes_of_several_ids": doubles}
        for rule, without, doubles in zip(on, part.without, part.doubles, strict=True)
    ]
    if as_json:
        print_json({"file": str(out), "people": len(part.people), "rules": rules})
        return
    rows = [(one["rule"], one["people_without"], one["hashes_of_several_ids"]) for one in rules]
    print_table(("rule", "people without", "shared by several ids here"), [tuple(map(str, row)) for row in rows])
    typer.echo(f"wrote {out}: {len(part.people)} people. Send it to whoever matches, and to nobody who has the key.")
    if any(part.doubles):
        typer.echo("Several ids of this silo agree in a rule: are they one person? Then give them one id first.")


@link.command()
@report_errors
def match(
    files: Files,
    out: Annotated[Path, typer.Option(help="Write a proposal for each silo to this folder.")],
    as_json: opt.Json = False,
) -> None:
    """At a party without the key: propose who is one person, from the silos' hashes."""
    from uldp.data.link_files import read_prepared, write_proposals
    from uldp.data.linkage import match as match_parts
    from uldp.rng import Secrets

    parts = [read_prepared(file) for file in files]
    proposal = match_parts(parts, Secrets.from_os())
    written = write_proposals(proposal, out)
    kinds = parts[0].kinds
    found = [(rule, kinds[rule], one, other, count) for (rule, one, other), count in sorted(proposal.found.items())]
    if as_json:
        keys = ("rule", "kinds", "silo", "other", "people")
        shared = [dict(zip(keys, (rule + 1, *rest), strict=True)) for rule, *rest in found]
        print_json({"persons": proposal.persons, "shared": shared, "ambiguous": list(proposal.ambiguous)})
        return
    rows = [(f"{rule + 1}: {kind}", one, other, str(count)) for rule, kind, one, other, count in found]
    print_table(("found by rule", "silo", "silo", "people"), rows)
    typer.echo(f"{proposal.persons} people in all. Ambiguous hashes left alone, by rule: {list(proposal.ambiguous)}")
    typer.echo("wrote " + ", ".join(map(str, written)) + ": each goes to its silo only.")


@link.command()
@report_errors
def accept(
    table: TableFile,
    proposal: Annotated[Path, typer.Argument(help="This silo's file of `uldp link match`.", show_default=False)],
    user: User,
    key: Key,
    out: Annotated[Path, typer.Option(help="Folder for the links: data.ids.links of the experiment.")],
    experiment: Experiment = None,
    as_json: opt.Json = False,
) -> None:
    """In every silo: write whose id is which person, and the roster of all persons' numbers."""
    from uldp.library.linking import accept_proposal

    accepted = accept_proposal(table, proposal, user, key, out, experiment=experiment)
    if as_json:
        print_json(accepted.to_json())
        return
    typer.echo(f"wrote {accepted.links}: {accepted.ids} ids. It stays in this silo.")
    typer.echo(f"wrote {accepted.roster}: the numbers 1 to {accepted.persons}. In the experiment file:")
    typer.echo(f'\n[data]\nroster = "{accepted.roster}"\n[data.ids]\nlinks = "{out}"')
