"""The arguments that say what is trained: data frames, arrays and modules, or the experiment of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypedDict

from uldp.data.federation import Federation
from uldp.errors import ConfigError, check_keys, format_value
from uldp.experiment.build import PreparedExperiment, prepare
from uldp.experiment.config import AUTO, GIVEN, Experiment
from uldp.experiment.presets import preset
from uldp.experiment.sweeps import with_values
from uldp.experiment.variants import one_kind_of_noise, with_method
from uldp.methods.base import Method, settings
from uldp.methods.registry import METHODS

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from uldp.data.schema import Schema
    from uldp.experiment.build import OwnModel

    Model = OwnModel | str
    Silos = Mapping[str, pd.DataFrame] | Mapping[str, Path] | Federation | Experiment | str

DEFAULT_METHOD: Final = AUTO
TABLES: Final = ("user", "label", "schema", "test", "test_fraction", "users")
"""The arguments that belong to data frames."""
SECTIONS: Final = ("data", "model", "method", "privacy", "aggregation", "run")


class Settings(TypedDict, total=False):
    """What is trained: the keyword arguments that :func:`uldp.train`, :func:`uldp.plan` and :func:`uldp.compare` share.

    user: The column of user ids, where ``silos`` are data frames.
    label: The column to predict.
    schema: Public ranges and categories of the columns (:class:`uldp.Schema`, or its dict). Without one they are read
        from the data, with a warning and a caveat in the statement.
    test: A data frame to evaluate on.
    test_fraction: Instead: the fraction of users to evaluate on (0.2 if neither is given).
    users: |U|, the public number of users (ids are hashed into it), or a list of all ids. Without it the ids in the
        data count as public, and the statement says so.
    people: About how many people there are, public, where ids are hashed into more ``users`` than that: "auto" uses it.
    population: What you call these people. Runs of the same population are added up by :func:`uldp.total`, whatever ids
        their tables have.
    model: An ``nn.Module``, a name from the zoo ("logistic", "mlp", ...), a factory ``(feature_shape, task) ->
        nn.Module``, or "auto".
    method: A name (see ``uldp methods``) or a :class:`uldp.Method`, "auto" by default.
    epsilon: The budget; the noise is calibrated to it.
    noise_multiplier: Instead of ``epsilon``.
    delta: Far below 1 / number of users.
    rounds: How many.
    aggregation: "auto" by default: the server sees the total only, and where "lattice" fits no single party
        sees record counts; "masked", "plain", "paillier", "shuffled".
    seed: Of everything that is not secret.
    secrets: "os" for secret noise (the default for your own data), "simulated" for noise from the seed.
    options: Any other settings of an experiment file, such as ``{"run.threads": 1}``.
    """

    user: str
    label: str
    schema: Schema | Mapping[str, Any]
    test: pd.DataFrame
    test_fraction: float
    users: int | Sequence[str]
    people: int
    population: str
    model: Model
    method: Method | str
    epsilon: float
    noise_multiplier: float
    delta: float
    rounds: int
    aggregation: str
    seed: int
    secrets: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class CallArguments:
    """The arguments of a call as an experiment, with the data and the model that are in memory."""

    experiment: Experiment
    federation: Federation | None
    module: OwnModel | None

    @classmethod
    def of(cls, silos: Silos, what: Mapping[str, Any], caller: str = "train") -> CallArguments:
        """The request for these arguments of ``caller``.

        Raises:
            InputError: An argument is unknown or wrong, or does not go with another one.
        """
        check_keys(what, tuple(Settings.__annotations__), caller)
        model = what.get("model")
        module = None if model is None or isinstance(model, str) else model
        if isinstance(silos, Experiment):
            _refuse(what, TABLES, "is part of the experiment; leave it out")
            tree = _with_settings(_with_method(silos.to_tree(), what.get("method")), what)
            return cls(Experiment.from_tree(tree, silos.base, silos.name), None, module)
        if isinstance(silos, str):
            return cls(Experiment.from_tree(_with_settings(_builtin_preset(silos, what), what)), None, module)
        federation = _federation(silos, what)
        own = federation.people is None or not federation.people.dataset
        tree = {
            "data": {"given": federation.name, "users": federation.users},
            "run": {"secrets": "os" if own else "simulated"},
        }
        tree = _with_method({**tree, "method": {"name": DEFAULT_METHOD}}, what.get("method"))
        return cls(Experiment.from_tree(_with_settings(tree, what)), federation, module)

    def prepare(self, experiment: Experiment | None = None) -> PreparedExperiment:
        """Ready to run, or a variant of it with other settings."""
        return prepare(experiment or self.experiment, self.federation, self.module)

    def with_method(self, method: Method | str) -> CallArguments:
        """The same request with another method; settings that both have stay as they are."""
        tree = _with_method(self.experiment.to_tree(), method)
        changed = Experiment.from_tree(tree, self.experiment.base, self.experiment.name)
        return replace(self, experiment=changed)

    def with_values(self, values: Mapping[str, Any]) -> CallArguments:
        """The same request with other values of settings, by ``section.key``."""
        if not values:
            return self
        if self.federation is not None and (data := [key for key in values if key.startswith("data.")]):
            raise ConfigError("the data are in memory; vary settings of other sections", location=data[0])
        tree = with_values(self.experiment.to_tree(), values)
        return replace(self, experiment=Experiment.from_tree(tree, self.experiment.base, self.experiment.name))


def _federation(silos: object, what: Mapping[str, Any]) -> Federation:
    tables = {key: what[key] for key in TABLES if key in what}
    if isinstance(silos, Federation):
        _refuse(what, TABLES, "is part of the federation; leave it out")
        return silos
    for key in ("user", "label"):
        if key not in tables:
            raise ConfigError(f"name the column of the data frames that holds the {key}", location=key)
    return Federation.from_frames(silos, seed=what.get("seed", 0), **tables)  # type: ignore[arg-type]


def _builtin_preset(dataset: str, what: Mapping[str, Any]) -> dict[str, Any]:
    """The preset of a built-in data set: what ``uldp run --dataset`` takes."""
    if dataset.endswith(".toml"):
        reason = "the name of a data set is expected; uldp.Experiment.from_file(path) reads an experiment file"
        raise ConfigError(reason, location="silos", value=dataset)
    _refuse(what, [key for key in TABLES if key != "users"], "goes with data frames, not with a built-in data set")
    method = what.get("method", DEFAULT_METHOD)
    tree = preset(dataset, method if isinstance(method, str) else _section(method)["name"])
    if "users" in what:
        tree["data"]["users"] = what["users"]
    return tree if isinstance(method, str) else {**tree, "method": _section(method)}


def _refuse(what: Mapping[str, Any], keys: Sequence[str], reason: str) -> None:
    if found := [key for key in keys if key in what]:
        raise ConfigError(reason, location=found[0])


def _with_method(tree: dict[str, Any], method: Method | str | None) -> dict[str, Any]:
    if method is None:
        return tree
    section = {"name": method} if isinstance(method, str) else _section(method)
    changed, _ = with_method(tree, section["name"])
    return changed if isinstance(method, str) else {**changed, "method": section}


def _with_settings(tree: dict[str, Any], what: Mapping[str, Any]) -> dict[str, Any]:
    """``tree`` with the arguments that any kind of data may have."""
    tree = {name: dict(tree.get(name, {})) for name in {*SECTIONS, *tree}}
    tree = one_kind_of_noise(tree, [key for key in ("epsilon", "noise_multiplier") if key in what])
    model = what.get("model")
    if model is not None:
        tree["model"] = {"name": model if isinstance(model, str) else GIVEN}
    for section, key, argument in (
        ("data", "people", "people"),
        ("data", "population", "population"),
        ("method", "rounds", "rounds"),
        ("privacy", "epsilon", "epsilon"),
        ("privacy", "noise_multiplier", "noise_multiplier"),
        ("privacy", "delta", "delta"),
        ("aggregation", "name", "aggregation"),
        ("run", "seed", "seed"),
        ("run", "secrets", "secrets"),
    ):
        if argument in what:
            tree[section][key] = what[argument]
    options = what.get("options", {})
    if not isinstance(options, Mapping):
        raise ConfigError(f"settings by section.name, not {format_value(options)}", location="options")
    for key, value in options.items():
        section, _, name = str(key).partition(".")
        if section not in tree or not name:
            reason = f"{key!r} is no setting; write section.name, such as 'aggregation.name'"
            raise ConfigError(reason, location="options", value=key)
        tree[section][name] = value
    return tree


def method_name(method: Method | str) -> str:
    """The name under which an experiment asks for a method."""
    return method if isinstance(method, str) else str(_section(method)["name"])


def _section(method: object) -> dict[str, Any]:
    """``[method]`` for a method object."""
    if not isinstance(method, Method):
        raise ConfigError(f"a name or a uldp.Method, not {format_value(method)}", location="method")
    kind = type(method)
    own = [name for name, named in METHODS.items() if named.method is kind and not named.fixed]
    name = own[0] if own else f"{kind.__module__}:{kind.__qualname__}"
    return {"name": name, **{key: value for key in settings(kind) if (value := getattr(method, key)) is not None}}
