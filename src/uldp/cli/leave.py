"""``uldp leave``: end experiments from a silo's side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uldp.cli.output import Json, print_json, print_table, reporting


@reporting
def leave(
    state: Annotated[Path, typer.Argument(help="The silo's folder of state.", show_default=False)],
    experiment: Annotated[
        str, typer.Option("--experiment", help="End this one: the first letters of its digest.", show_default=False)
    ] = "",
    as_json: Json = False,
) -> None:
    """Show a silo's experiments, or end one whose server never says goodbye: its secrets are destroyed."""
    from uldp.runtimes.silo_state import experiments_in, left

    if experiment:
        left(state, experiment)
    found = experiments_in(state)
    if as_json:
        print_json(
            [{"experiment": one.digest, "round": one.round, "over": one.over, "secrets": one.secrets} for one in found]
        )
        return
    rows = [
        (
            one.digest[:12],
            "cannot be read" if one.round is None else str(one.round),
            "over" if one.over else "not over",
            "here" if one.secrets else "none",
        )
        for one in found
    ]
    print_table(("experiment", "last round answered", "state", "secrets"), rows)
