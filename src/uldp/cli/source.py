"""An experiment from what the command line gives: a file, or a data set and a method; then overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from uldp.cli.output import say, warn
from uldp.errors import ConfigError

if TYPE_CHECKING:
    from uldp.experiment.build import PreparedExperiment
    from uldp.experiment.config import Experiment
    from uldp.experiment.foreign import Admit, ForeignCode
    from uldp.runs.directory import RunDirectory


NO_VALUES: Final[Mapping[str, Any]] = MappingProxyType({})


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
    values: Mapping[str, Any] = NO_VALUES,
) -> Experiment:
    """The experiment of a file or of a data set's preset, with ``--method``, ``--set`` and varied ``values`` on top.

    ``admit`` is shown the tree before anything that it names is imported; by itself, foreign code is announced.
    """
    from uldp.data.store import expand_home
    from uldp.experiment.config import AUTO, Experiment, read_toml
    from uldp.experiment.presets import preset
    from uldp.experiment.sweeps import with_values
    from uldp.experiment.variants import with_method, with_overrides

    if file is not None and preset_name:
        raise ConfigError("goes with --dataset, not with a file", location="--preset", value=preset_name)
    if (file is None) == (dataset is None):
        wanted = "give an experiment file, or --dataset NAME (and --method NAME), not both and not neither"
        raise ConfigError(wanted, location="command line")
    if file is not None:
        tree, base = read_toml(file), file.resolve().parent
        admit = admit or CodeNotice(overrides)
        admit(with_overrides(tree, overrides))
        if method is not None:
            admit(tree)  # the file's own method is looked up too: its settings are left behind
            tree, left = with_method(tree, method)
            if left:
                listed = ", ".join(f"privacy.{key} = {value}" for key, value in left.items())
                warn(f"{listed} of the file is for another kind of noise than {method}'s, and left out.")
    else:
        assert dataset is not None
        # What the papers published is about their own methods.
        tree, base = preset(dataset, method or ("uldp-avg-w" if preset_name else AUTO), preset_name), Path.cwd()
    if data_dir is not None and isinstance(tree.get("data"), dict):
        tree = {**tree, "data": {**tree["data"], "data_dir": str(expand_home(data_dir, "--data-dir").resolve())}}
    name = file.stem if file is not None else ""
    return Experiment.from_tree(with_values(with_overrides(tree, overrides), values), base, name)


class CodeNotice:
    """Says which foreign code is about to run, once; not what somebody has just typed as an override."""

    def __init__(self, overrides: Sequence[str] = ()) -> None:
        from uldp.experiment.foreign import SETTINGS, foreign_code
        from uldp.experiment.variants import assigned_key, with_overrides

        names = {f"{section}.{key}" for section, key in SETTINGS}
        typed = with_overrides({}, [one for one in overrides if assigned_key(one) in names])
        self._known_code: set[ForeignCode] = set(foreign_code(typed))

    def __call__(self, tree: Any) -> None:
        from uldp.experiment.foreign import foreign_code

        new = [one for one in foreign_code(tree) if one not in self._known_code]
        self._known_code.update(new)
        if new:
            say(f"this experiment runs code that is not uldp's: {', '.join(map(str, new))}")


def experiment_of(directory: RunDirectory) -> Experiment:
    """The experiment of a run, which may be somebody else's."""
    CodeNotice()(directory.read_json("experiment.json"))
    return directory.experiment()


def new_run(prepared: PreparedExperiment, out: Path | None) -> RunDirectory:
    """A new run directory: ``out``, or the next free one of ``runs/DATASET-METHOD-N``."""
    from uldp.runs.directory import RunDirectory

    name = f"{prepared.federation.name}-{prepared.experiment.method_name}".replace("/", "-").replace(":", "-")
    return RunDirectory.create(out or RunDirectory.next_free(Path("runs"), name), prepared.experiment)
