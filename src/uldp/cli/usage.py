"""Errors of usage in the form of all others: one sentence, and with ``--json`` a document."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click
from typer.core import TyperGroup

from uldp.cli.output import report
from uldp.errors import ConfigError


class OneSentence(TyperGroup):
    """The commands, without the frames that are usually drawn around an error."""

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> Any:  # type: ignore[override]
        if not extra.pop("standalone_mode", True):
            return super().main(args, standalone_mode=False, **extra)
        try:
            code = super().main(args, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = error.exit_code
        except click.ClickException as error:
            given = sys.argv[1:] if args is None else args
            report(_in_one_sentence(error), as_json="--json" in given)
            code = error.exit_code
        sys.exit(code if isinstance(code, int) else 0)


def _in_one_sentence(error: click.ClickException) -> ConfigError:
    context = getattr(error, "ctx", None)
    wanted = error.format_message().rstrip(".")
    helpful = f"; `{context.command_path} --help` shows what there is" if context else ""
    return ConfigError(f"{wanted}{helpful}", location="command line")
