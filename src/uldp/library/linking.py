"""``uldp link`` for a silo's table: ids are read as the experiment reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uldp.data.dates import check_formats
from uldp.data.files import read_table
from uldp.data.id_rules import PLAIN, IdRules
from uldp.data.ids import normalised_ids
from uldp.data.link_files import read_proposal, write_links
from uldp.data.linkage import HashedPeople, LinkRule, links_of, prepare
from uldp.data.roster import read_key
from uldp.experiment.config import Experiment

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class AcceptedLinks:
    """What a silo wrote: its links and the roster; how many ids it has, and how many people there are in all."""

    links: str
    roster: str
    ids: int
    persons: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def prepare_table(
    table: Path,
    silo: str,
    user: str,
    on: Sequence[str],
    key: Path,
    *,
    dates: Sequence[str] = (),
    experiment: Path | None = None,
) -> HashedPeople:
    """A silo's people under hashes; ``on`` are rules as on the command line."""
    rules = [LinkRule.parse(text) for text in on]
    check_formats(dates, "--dates")
    secret, reading = read_key(key, "--key"), _rules(experiment)
    frame, ids = _read(table, user, reading)
    return prepare(frame, ids, silo, rules, secret, dates)


def accept_proposal(
    table: Path, proposal: Path, user: str, key: Path, out: Path, *, experiment: Path | None = None
) -> AcceptedLinks:
    """Write a silo's links and the roster to the folder ``out``."""
    silo, persons, numbers = read_proposal(proposal)
    secret, reading = read_key(key, "--key"), _rules(experiment)
    _, ids = _read(table, user, reading, {user})
    links, roster = write_links(links_of(ids, silo, secret, numbers), persons, silo, out)
    return AcceptedLinks(str(links), str(roster), len(set(ids)), persons)


def _rules(experiment: Path | None) -> IdRules:
    """How ids are read before they are linked."""
    return PLAIN if experiment is None else replace(Experiment.from_file(experiment).data.id_rules, links=None)


def _read(table: Path, user: str, rules: IdRules, columns: set[str] | None = None) -> tuple[pd.DataFrame, list[str]]:
    frame = read_table(table, "TABLE", columns)
    return frame, normalised_ids(frame, user, str(table), rules.apply).rows
