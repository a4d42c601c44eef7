"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

File = Annotated[Path | None, typer.Argument(help="An experiment file (see `uldp new`).", show_default=False)]
Run = Annotated[Path, typer.Argument(help="A run directory.")]

Dataset = Annotated[str | None, typer.Option(help="Use a built-in data set instead of a file (see `uldp datasets`).")]
Preset = Annotated[
    str, typer.Option(help="With --dataset: 'paper' takes the published settings of data set and method.")
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder of the data sets (default: $ULDP_DATA, else the user cache).")
]
Method = Annotated[str | None, typer.Option(help="Method by name (see `uldp methods`).")]
Epsilon = Annotated[float | None, typer.Option(help="Target epsilon (privacy.epsilon); the noise is calibrated to it.")]
Delta = Annotated[float | None, typer.Option(help="Target delta (privacy.delta).")]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds (method.rounds).")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything that is simulated (run.seed).")]
Set = Annotated[
    list[str], typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override one setting; may be repeated.")
]
Out = Annotated[Path | None, typer.Option(help="Create this run directory (default: runs/NAME-N).")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]

Case = Annotated[list[str], typer.Option(help="Run only this case; may be repeated.")]
Rehearse = Annotated[
    bool,
    typer.Option("--rehearse", help='Allow run.secrets = "simulated": noise and keys from the seed protect nobody.'),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Use neither TLS nor authentication of silos; on loopback only.")
]
Log = Annotated[str, typer.Option("--log", help="Lines on stderr: text, or json with fixed fields for collectors.")]
Metrics = Annotated[
    int | None, typer.Option("--metrics", help="Serve /health and /metrics (Prometheus) at this port of 127.0.0.1.")
]
