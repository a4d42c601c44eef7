"""What a report shows of a run: only what its files hold that may be shown (:mod:`uldp.runs.directory`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from uldp.privacy.events import Event, event_to_json
from uldp.privacy.statement import Statement

_FILES: Final = ("silos", "test", "roster", "id_key", "links")
"""Settings of ``[data]`` that name files. A report shows their names, not the folders of a machine."""
_LEFT_OUT: Final = ("name", "base", "deployment")


@dataclass(frozen=True)
class RoundRow:
    """What is known after a round; ``metrics`` in the order in which they are shown."""

    number: int
    metrics: Mapping[str, float]
    epsilon: float
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunView:
    """One run, as it may be shown.

    Args:
        name: The name of the run directory; empty where there is none.
        dataset: The name of the data.
        method: The name of the method.
        statement: The privacy statement.
        rounds: What is known after each round.
        planned: How many rounds the settings ask for.
        settings: The experiment's tree.
        versions: Package versions.
        released: The ledger: how often which event was released.
        silos: The names of the silos; empty where they are unknown.
        users: |U|; None where it is unknown.
        parameters: How many the model has.
        no_better: Says so where the model is no better than a constant.
        constant_loss: The test loss of always predicting the test set's base rates, or its mean label.
        task: What is predicted: ``kind``, ``classes`` and more.
        schema: The public schema of the tables, where there is one.
        audit: The document of ``uldp audit --json`` about this experiment, where there is one.
    """

    name: str
    dataset: str
    method: str
    statement: Statement
    rounds: tuple[RoundRow, ...]
    planned: int
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    released: Mapping[Event, int]
    silos: tuple[str, ...] = ()
    users: int | None = None
    parameters: int | None = None
    no_better: str = ""
    constant_loss: float | None = None
    task: Mapping[str, Any] | None = None
    schema: Mapping[str, Any] | None = None
    audit: Mapping[str, Any] | None = None

    @property
    def title(self) -> str:
        return f"{self.method} on {self.dataset}"

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of the final model."""
        return self.rounds[-1].metrics if self.rounds else {}

    @property
    def seed(self) -> Any:
        return self.settings.get("run", {}).get("seed")

    def sections(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """The settings for people: by section, each with its value."""
        found = []
        for section, settings in self.settings.items():
            if section in _LEFT_OUT or not isinstance(settings, Mapping):
                continue
            rows = [(key, shown_setting(section, key, value)) for key, value in settings.items()]
            if rows := [(key, value) for key, value in rows if value]:
                found.append((section, rows))
        return found

    def flat_settings(self) -> dict[str, str]:
        """The settings by ``section.key``, without the seed."""
        rows = {f"{section}.{key}": value for section, part in self.sections() for key, value in part}
        return {key: value for key, value in rows.items() if key != "run.seed"}

    def columns(self) -> list[tuple[str, str, str]]:
        """The agreed columns of the tables: name, kind, public range or categories."""
        found = []
        for name, column in (self.schema or {}).get("columns", {}).items():
            kind = " ".join(str(column[key]) for key in ("kind", "part") if key in column)
            low_high = " to ".join(map(str, column.get("range", [])))
            pixels = " x ".join(map(str, column.get("size", [])))
            found.append((str(name), kind, low_high or pixels or ", ".join(map(str, column.get("categories", [])))))
        return found

    def releases(self) -> list[str]:
        """What was released, in words."""
        return [f"{count} x {event_words(event_to_json(event))}" for event, count in self.released.items()]


def shown_setting(section: str, key: str, value: Any) -> str:
    """A setting for people; empty where it is not shown: a schema has a table of its own.

    >>> shown_setting("data", "silos", ["/home/ann/north.csv", "south.csv"]), shown_setting("run", "threads", 2)
    ('north.csv, south.csv', '2')
    """
    if section == "data" and key in ("schema", "data_dir"):
        return ""
    if section == "aggregation" and key == "identities":
        return f"{len(value)} public keys" if value else ""
    if section == "data" and key in _FILES and isinstance(value, str | list | tuple):
        names = [value] if isinstance(value, str) else value
        return ", ".join(PurePath(str(name)).name for name in names)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {shown_setting(section, name, part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(shown_setting(section, key, part) for part in value)
    if isinstance(value, float):
        return f"{value:g}"
    return {True: "yes", False: "no", None: ""}.get(value, str(value)) if isinstance(value, bool | None) else str(value)


def event_words(tree: Mapping[str, Any]) -> str:
    """An event of the ledger in words.

    >>> event_words({"event": "gaussian", "noise_multiplier": 4.8351999})
    'gaussian (noise multiplier 4.835)'
    """
    parts = []
    for key, value in tree.items():
        if key == "event":
            continue
        name = key.replace("_", " ")
        if isinstance(value, Mapping):
            parts.append(f"{name}: {event_words(value)}")
        elif isinstance(value, float):
            parts.append(f"{name} {value:.4g}")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            parts.append(f"{len(value)} {name}")
        else:
            parts.append(f"{name} {value}")
    return f"{tree.get('event', '')} ({', '.join(parts)})" if parts else str(tree.get("event", ""))
