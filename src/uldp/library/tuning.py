"""Choose settings on made-up federations of the public shape: it costs no privacy, because it reads no record.

Successive halving: all candidates on a few federations, the better third on more of them, and so on. All see the same
federations and the same noise, so that differences are due to the settings.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, product
from pathlib import Path
from statistics import mean
from typing import Any, Final

from uldp.data.draft import toml_value
from uldp.errors import ConfigError, format_value, require
from uldp.experiment.config import Experiment
from uldp.library.synthetic_runs import PublicShape, synthetic_skill
from uldp.runs.files import replace_file

ROUNDS: Final = (50, 100, 200)
FACTORS: Final = (1 / 3, 1.0, 3.0)
"""Of clip and server step, relative to those of ``auto``."""
STAGES: Final = ((2, 9), (4, 3), (8, 1))
"""Federations so far, and how many candidates stay after them."""
MARGIN: Final = 0.005
"""Less skill than this is no reason to leave ``auto``."""
FREE: Final = (
    "This cost no privacy: the settings were tried on made-up tables drawn from the public schema; no table was opened."
)


@dataclass(frozen=True)
class Trial:
    """Settings of ``[method]`` with their mean skill over made-up federations.

    Args:
        settings: As in an experiment file.
        skill: 1 - loss / loss of the base rate, or R2.
        federations: How many they were tried on.

    Example:
        >>> Trial({"name": "auto"}, 0.25, 8).settings["name"]
        'auto'
    """

    settings: Mapping[str, Any]
    skill: float
    federations: int


@dataclass(frozen=True)
class Tuned:
    """What :func:`tune` found.

    Args:
        chosen: The settings of ``[method]`` to use.
        trials: All candidates, the best of the longest tried first; ``auto`` is among them.
        shape: In words, what the made-up federations had in common with the real one.
        file: The file that was changed, if one was.
        backup: Where that file is kept as it was before.

    Example:
        >>> Tuned({"name": "auto"}, (Trial({"name": "auto"}, 0.25, 8),), "100 people", None).kept_auto
        True
    """

    chosen: Mapping[str, Any]
    trials: tuple[Trial, ...]
    shape: str
    file: str | None
    backup: str | None = None

    @property
    def kept_auto(self) -> bool:
        """Whether nothing that was tried is better than ``auto`` by a margin."""
        return self.chosen == {"name": "auto"}

    def summary(self) -> str:
        """In words, what was tried, what was chosen, and what it cost."""
        auto = next(trial for trial in self.trials if trial.settings == {"name": "auto"})
        best = next(trial for trial in self.trials if trial.settings == self.chosen)
        tried = f"{len(self.trials)} settings tried on up to {best.federations} federations of {self.shape}."
        if self.kept_auto:
            return f"{tried} auto is as good as any of them: skill {auto.skill:.3f}. {FREE}"
        return f"{tried} Chosen: skill {best.skill:.3f} where auto has {auto.skill:.3f}. {FREE}"


def tune(
    experiment: Experiment | Path | str,
    *,
    records: float | None = None,
    write: bool = False,
    progress: Callable[[str], object] = lambda text: None,
) -> Tuned:
    """Choose rounds, clip and server step on made-up federations of the experiment's public shape.

    Nobody's records are read: people, silos, columns, ranges and classes are in the experiment file.

    Args:
        experiment: The settings, or the path of their file.
        records: Records per person over all silos, if that is public; 4 for own tables where nobody says.
        write: Whether to write the chosen settings into the file, where it has others. Everything outside of
            ``[method]`` stays as it is, and a copy of the file before is kept beside it.
        progress: Called with a line of text after every stage.

    Returns:
        The chosen settings, and what each candidate reached.

    Raises:
        ConfigError: The file is wrong, or its method is none that has these settings.

    Example:
        >>> experiment = Experiment.from_tree({
        ...     "data": {"dataset": "synthetic", "users": 20, "silos": 2, "options": {"records": 60, "features": 2}},
        ...     "method": {"name": "auto"}, "privacy": {"epsilon": 3.0}})
        >>> tune(experiment, records=2.0).chosen["name"]
        'auto'
    """
    _check_experiment(experiment)
    file = None if isinstance(experiment, Experiment) else Path(experiment)
    settings = experiment if isinstance(experiment, Experiment) else Experiment.from_file(experiment)
    if write and file is None:
        raise ConfigError("there is no file to write to; give its path", location="experiment")
    if records is not None:
        require(1 <= records < 1000, "records", records, "from 1 to below 1,000 a person")
    shape = PublicShape.of(settings, records)
    auto = _with_method(settings, {"name": "auto"})
    trials = _halve(auto, shape, [{"name": "auto"}, *_candidates()], progress)
    best, own = trials[0], next(trial for trial in trials if trial.settings == {"name": "auto"})
    chosen = best.settings if best.skill > own.skill + MARGIN else own.settings
    backup = write_method(file, chosen) if write and file is not None else None
    changed = None if backup is None else str(file)
    return Tuned(chosen, tuple(trials), shape.words(), changed, None if backup is None else str(backup))


def _check_experiment(experiment: object) -> None:
    if not isinstance(experiment, Experiment | Path | str):
        wanted = "a uldp.Experiment or the path of an experiment file (`uldp new` drafts one)"
        raise ConfigError(f"{wanted}, not {format_value(experiment)}", location="experiment")


def _with_method(experiment: Experiment, method: Mapping[str, Any]) -> Experiment:
    tree = experiment.to_tree()
    return Experiment.from_tree({**tree, "method": dict(method)}, experiment.base, experiment.name)


def _candidates() -> Iterator[dict[str, Any]]:
    """``auto`` with other rounds, clips and steps."""
    for rounds, clip, step in product(ROUNDS, FACTORS, FACTORS):
        scales = {"clip_scale": _three_digits(clip), "server_lr": _three_digits(step)}
        yield {"name": "auto", "rounds": rounds, **scales}


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")


def _halve(
    auto: Experiment, shape: PublicShape, candidates: Sequence[dict[str, Any]], progress: Callable[[str], object]
) -> list[Trial]:
    """All candidates, best first; those that went farther come before the others. ``auto`` always stays."""
    skills: list[list[float]] = [[] for _ in candidates]
    staying, ended = list(range(len(candidates))), 0
    for until, survivors in STAGES:
        for index in staying:
            experiment = _with_method(auto, candidates[index])
            skills[index] += [synthetic_skill(experiment, shape, {}, number) for number in range(ended, until)]
        ended = until
        order = sorted(staying, key=lambda index: -mean(skills[index]))
        progress(f"{len(staying)} settings on {until} federations: best skill {mean(skills[order[0]]):.3f}")
        staying = sorted({*order[:survivors], 0})
    ranked = sorted(range(len(candidates)), key=lambda index: (-len(skills[index]), -mean(skills[index])))
    return [Trial(candidates[index], mean(skills[index]), len(skills[index])) for index in ranked]


def write_method(file: Path, method: Mapping[str, Any]) -> Path | None:
    """Write ``[method]`` into an experiment file. Other lines stay as they are, and so do comments of keys that stay.

    Returns:
        A copy of the file as it was before; None where it has these settings already, and nothing was written.

    Raises:
        ConfigError: The file writes the section in a way that cannot be changed line by line.
    """
    text = file.read_text(encoding="utf-8")
    changed = _replace_method(text, method)
    before = tomllib.loads(text)
    wanted = {**before, "method": dict(method)}
    if before.get("method", {"name": "auto"}) == wanted["method"]:
        return None
    try:
        same = tomllib.loads(changed) == wanted
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise ConfigError(
            "[method] is written in a form that cannot be changed line by line; write it as lines of KEY = VALUE under "
            "[method], or set the values by hand",
            location=str(file),
        )
    copies = (file.with_name(f"{file.name}.before-tune{number}") for number in chain([""], (f"-{n}" for n in count(2))))
    backup = next(path for path in copies if not path.exists())
    replace_file(backup, text.encode(), mode=0o644)
    replace_file(file, changed.encode(), mode=0o644)
    return backup


def _replace_method(text: str, method: Mapping[str, Any]) -> str:
    lines = text.splitlines()
    heads = [number for number, line in enumerate(lines) if re.match(r"\s*\[", line)]
    start = next((number for number in heads if re.match(r"\s*\[\s*method\s*\]", lines[number])), None)
    if start is None:
        added = ["", "[method]", *(_line(key, value, "") for key, value in method.items())]
        return "\n".join([*lines, *added]) + "\n"
    end = next((number for number in heads if number > start), len(lines))
    before: dict[str, str] = {}
    own: list[str] = []
    for line in lines[start + 1 : end]:
        found = re.match(r"\s*([A-Za-z_]+)\s*=[^#\"]*(?:\"[^\"]*\")?[^#]*(#.*)?$", line)
        if found:
            before[found[1]] = found[2] or ""
        elif line.strip():
            own.append(line)
    section = [lines[start], *own, *(_line(key, value, before.get(key, "")) for key, value in method.items())]
    gap = [""] if end < len(lines) else []
    return "\n".join([*lines[:start], *section, *gap, *lines[end:]]) + "\n"


def _line(key: str, value: Any, comment: str) -> str:
    line = f"{key} = {toml_value(value)}"
    return f"{line:<30} {comment}" if comment else line
