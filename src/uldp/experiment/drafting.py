"""A commented experiment file to start from: for a built-in data set, or with a schema for one's own tables."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final

from uldp.aggregation.lattice import MAX_USERS as MAX_HIDDEN
from uldp.data.builtin import dataset as find_dataset
from uldp.data.draft import draft_silos, toml_value
from uldp.data.files import read_table
from uldp.errors import ConfigError, format_value
from uldp.limits import MAX_USERS, check_whole

BUCKETS: Final = 10
"""Buckets for each person that ids are hashed into: about a tenth of the people then share one."""
MIN_BUCKETS: Final = 4
"""So few, of which a fifth share one, where more would not fit ``lattice`` and record counts would be shown."""


def buckets_of(people: int) -> int:
    """How many buckets a draft has for so many people.

    >>> [buckets_of(people) for people in (800, 3000, 5000)]
    [8000, 16384, 50000]
    """
    wanted = BUCKETS * people
    return MAX_HIDDEN if MIN_BUCKETS * people <= MAX_HIDDEN < wanted else wanted


_METHOD = """\
[model]
name = "auto"                  # what people and epsilon allow; or "logistic", "mlp", "package.module:factory"

[method]
name = "auto"                  # clip, steps and rounds follow from public facts; for others see `uldp methods`

[privacy]
delta = 1e-5                   # far below 1 / number of people
epsilon = 4.0                  # the noise is calibrated to it; or give noise_multiplier = 5.0 instead

[aggregation]
name = "auto"                  # no single party sees record counts ("lattice"); where that does not fit, "masked"

[run]
seed = 0
"""
_REAL = 'secrets = "os"                 # noise that nobody can repeat; "simulated" (from the seed) protects nobody\n'
_REHEARSED = 'secrets = "simulated"          # noise from the seed; with real data "os": noise that nobody can repeat\n'

_BUILTIN = """\
[data]
dataset = "{name}"      # see `uldp datasets`
users = {users}
silos = {silos}
allocation = "{allocation}"            # how records are dealt to users and silos

"""


@dataclass(frozen=True)
class OwnTables:
    """The files of the silos, their columns of ids and labels, and the approximate number of people, which is public.

    With ``from_data`` ranges and categories are proposed from the files, marked as not agreed yet.
    """

    silos: tuple[Path, ...]
    user: str
    label: str
    people: int
    test: Path | None = None
    from_data: bool = False

    def __post_init__(self) -> None:
        if self.user == self.label:
            reason = f"{self.label!r} is the user column and cannot be predicted"
            raise ConfigError(reason, location="label", value=self.label)
        check_whole(self.people, 2, MAX_USERS // BUCKETS, "people")

    def section(self, base: Path) -> str:
        """``[data]``, with paths relative to ``base``."""
        draft = draft_silos(
            {str(path): read_table(path, "silo") for path in self.silos},
            self.user,
            self.label,
            from_data=self.from_data,
            test=(str(self.test), read_table(self.test, "test")) if self.test else None,
        )

        def relative(path: Path) -> str:
            return os.path.relpath(path.resolve(), base)

        buckets = buckets_of(self.people)
        shared = 1 - math.exp(-self.people / buckets)
        test = f"test = {toml_value(relative(self.test))}" if self.test else "test_fraction = 0.2   # of the users"
        return "\n".join(
            [
                "[data]",
                f"silos = {toml_value([relative(path) for path in self.silos])}",
                f"user = {toml_value(self.user)}",
                f"label = {toml_value(self.label)}",
                f"# Ids are hashed into {buckets} buckets; of {self.people} people about {shared:.0%} share one.",
                '# Or give roster = "ids.txt" instead, a list of all ids.',
                f"users = {buckets}",
                f"people = {self.people}",
                test,
                "",
                "# Public constants. Ranges and categories are agreed on by the parties, never computed from the data:",
                "# a statistic of the data would let one person move everybody's features.",
                draft.to_toml(),
                "",
            ]
        )


def write_draft(name: str, tables: OwnTables | None, dataset: str = "breast-cancer") -> Path:
    """Write ``name.toml`` for these tables, or for a built-in data set.

    Raises:
        ConfigError: The file exists, cannot be written, or has no name; or the tables cannot be read.
    """
    stem = name.removesuffix(".toml")
    if not stem.strip() or stem.endswith(("/", ".")):
        raise ConfigError(f"a name for the file, not {format_value(name)}", location="name", value=name)
    target = Path(f"{stem}.toml")
    if os.path.exists(target):
        raise ConfigError("exists already; choose another name", location=str(target), value=str(target))
    if tables is not None:
        data, secrets = tables.section(target.resolve().parent), _REAL
    else:
        info = find_dataset(dataset).info
        data = _BUILTIN.format(name=info.name, users=info.users, silos=info.silos, allocation=info.allocation)
        secrets = _REHEARSED
    file = target.name if target.name.isprintable() else "FILE"
    head = f"# An experiment of uldp. Show what it costs: uldp plan {quote(file)}. Train: uldp run {quote(file)}"
    try:
        target.write_bytes(f"{head}\n\n{data}{_METHOD}{secrets}".encode())
    except (OSError, UnicodeEncodeError) as error:  # a file's name need not be Unicode; an experiment file must be
        raise ConfigError(f"cannot be written: {error}", location=str(target), value=str(target)) from error
    return target
