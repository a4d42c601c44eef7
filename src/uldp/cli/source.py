"""An experiment from what the command line gives: a file, or a data set and a method; then overrides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uldp.cli.output import say, warn
from uldp.errors import ConfigError

if TYPE_CHECKING:
    from uldp.experiment.build import Prepared
    from uldp.experiment.config import Experiment
    from uldp.experiment.foreign import Admit, ForeignCode
    from uldp.runs.directory import RunDirectory


def shortcuts(
    overrides: list[str], epsilon: float | None, delta: float | None, rounds: int | None, seed: int | None
) -> list[str]:
    """``--epsilon`` and its like as overrides; what ``--set`` says comes after them."""
    given = {"privacy.epsilon": epsilon, "privacy.delta": delta, "method.rounds": rounds, "run.seed": seed}
    return [*(f"{key}={value!r}" for key, value in given.items() if value is not None), *overrides]


def experiment_from(
    file: Path | None,
    dataset: str | None,
    method: str | None,
    overrides: list[str],
    preset_name: str = "",
    data_dir: Path | None = None,
    admit: Admit | None = None,
) -> Experiment:
    """The experiment of a file or of a data set's preset, with ``--method`` and ``--set`` on top.

    ``admit`` is shown the tree before anything that it names is imported; by itself, foreign code is announced.
    """
    from uldp.data.store import expanded
    from uldp.experiment.config import Experiment, read_toml
    from uldp.experiment.presets import preset

    if file is not None and preset_name:
        raise ConfigError("goes with --dataset, not with a file", location="--preset", value=preset_name)
    if (file is None) == (dataset is None):
        wanted = "give an experiment file, or --dataset NAME (and --method NAME), not both and not neither"
        raise ConfigError(wanted, location="command line")
    if file is not None:
        tree, base = read_toml(file), file.resolve().parent
        admit = admit or CodeNotice(overrides)
        admit(apply_overrides(tree, overrides))
        if method is not None:
            admit(tree)  # the file's own method is looked up too: its settings are left behind
            tree = _without_other_noise(tree, method)
            tree = {**tree, "method": _another_method(tree.get("method", {}), method)}
    else:
        assert dataset is not None
        tree, base = preset(dataset, method or "uldp-avg-w", preset_name), Path.cwd()
    if data_dir is not None and isinstance(tree.get("data"), dict):
        tree = {**tree, "data": {**tree["data"], "data_dir": str(expanded(data_dir, "--data-dir").resolve())}}
    name = file.stem if file is not None else ""
    return Experiment.from_tree(apply_overrides(tree, overrides), base, name)


class CodeNotice:
    """Says which foreign code is about to run, once; not what somebody has just typed as an override."""

    def __init__(self, overrides: Sequence[str] = ()) -> None:
        from uldp.experiment.foreign import SETTINGS, foreign_code

        names = {f"{section}.{key}" for section, key in SETTINGS}
        typed = apply_overrides({}, [one for one in overrides if assigned_key(one) in names])
        self._said: set[ForeignCode] = set(foreign_code(typed))

    def __call__(self, tree: Any) -> None:
        from uldp.experiment.foreign import foreign_code

        new = [one for one in foreign_code(tree) if one not in self._said]
        self._said.update(new)
        if new:
            say(f"this experiment runs code that is not uldp's: {', '.join(map(str, new))}")


def experiment_of(directory: RunDirectory) -> Experiment:
    """The experiment of a run, which may be somebody else's."""
    CodeNotice()(directory.read_json("experiment.json"))
    return directory.experiment()


def new_run(prepared: Prepared, out: Path | None) -> RunDirectory:
    """A new run directory: ``out``, or the next free one of ``runs/DATASET-METHOD-N``."""
    from uldp.runs.directory import RunDirectory

    name = f"{prepared.federation.name}-{prepared.experiment.method_name}".replace("/", "-").replace(":", "-")
    return RunDirectory.create(out or RunDirectory.next_free(Path("runs"), name), prepared.experiment)


def apply_overrides(tree: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """``tree`` with every override. Of epsilon and noise_multiplier, one that is set takes the other's place."""
    from uldp.experiment.sections import drops, with_override

    keys = {assigned_key(assignment) for assignment in overrides if not drops(assignment)}
    pair = ("epsilon", "noise_multiplier")
    for key, other in (pair, pair[::-1]):
        if f"privacy.{key}" in keys and f"privacy.{other}" not in keys and isinstance(tree.get("privacy"), dict):
            tree = {**tree, "privacy": {k: v for k, v in tree["privacy"].items() if k != other}}
    for assignment in overrides:
        tree = with_override(tree, assignment)
    return tree


def fitting(overrides: list[str], method: str, methods: list[str]) -> list[str]:
    """The overrides for one of several methods: a key of ``[method]`` that only others of them have is left out."""
    from uldp.methods.base import settings
    from uldp.methods.registry import lookup

    known = {name: set(settings(lookup(name).method)) for name in methods}
    elsewhere = set().union(*known.values()) - known[method]
    keys = {f"method.{key}" for key in elsewhere}
    return [assignment for assignment in overrides if assigned_key(assignment) not in keys]


def assigned_key(assignment: str) -> str:
    """The ``section.key`` of ``section.key=value``."""
    return ".".join(part.strip() for part in assignment.partition("=")[0].split("."))


def _without_other_noise(tree: dict[str, Any], method: str) -> dict[str, Any]:
    """``tree`` without noise or budget of another kind: clients that perturb themselves spend epsilons of their own."""
    from uldp.methods.registry import lookup

    before, privacy = tree.get("method"), tree.get("privacy")
    if not (isinstance(before, dict) and isinstance(before.get("name"), str) and isinstance(privacy, dict)):
        return tree
    if lookup(before["name"]).local == lookup(method).local:
        return tree
    left = [key for key in ("epsilon", "noise_multiplier", "dropout_tolerance") if key in privacy]
    if left:
        listed = ", ".join(f"privacy.{key} = {privacy[key]}" for key in left)
        warn(f"{listed} of the file is for another kind of noise than {method}'s, and left out.")
    return {**tree, "privacy": {key: value for key, value in privacy.items() if key not in left}}


def _another_method(section: Any, name: str) -> dict[str, Any]:
    """The ``[method]`` section for another method: settings that only the file's own method has are left behind."""
    if not isinstance(section, dict) or not isinstance(section.get("name"), str):
        return {"name": name}
    from uldp.methods.base import settings
    from uldp.methods.registry import lookup
    from uldp.privacy.releases import GaussianSum

    before, after = lookup(section["name"]), lookup(name)
    left_behind = (settings(before.method).keys() - settings(after.method).keys()) | set(before.fixed)
    sums = [isinstance(named.nominal, GaussianSum) for named in (before, after)]
    if sums[0] != sums[1]:
        left_behind |= {"global_lr"}  # a sum over users and a mean over silos have steps of different size
    return {**{key: value for key, value in section.items() if key not in left_behind}, "name": name}
