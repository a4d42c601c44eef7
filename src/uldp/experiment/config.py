"""The experiment: one frozen, validated tree. What contradicts itself cannot be written down.

See ``docs/experiment-file.md`` for every key.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uldp.aggregation import AGGREGATIONS, Aggregation, lookup_aggregation
from uldp.data.federation import check_size
from uldp.data.id_rules import IdRules
from uldp.errors import ConfigError, check_keys, format_value, require, user_code
from uldp.experiment.sections import Tree, check_section, read_section, with_override, write_section
from uldp.learners.prior import Prior
from uldp.limits import MAX_MEMORY_MB, MAX_SEED, MAX_SILOS, MAX_THREADS, MAX_USERS, check_whole
from uldp.methods.base import Method, settings
from uldp.methods.describe import Describe
from uldp.methods.newton import NewtonSteps
from uldp.methods.registry import AS_PRINTED, RENAMED, lookup
from uldp.privacy.accountants import check_delta
from uldp.protocol.messages import PROTOCOL_VERSION
from uldp.trees import check_tree, toml_tree

SECRETS = ("simulated", "os")
GIVEN = "given"
"""The name of a model that was handed over in Python."""
_WITH_GIVEN = ("given", "users", "people", "population", "base_rate", "label_mean")
AUTO = "auto"
"""The method of an experiment that names none, and its aggregation: ``lattice`` where it fits, else ``masked``."""
DTYPES = ("float32", "float64")
MOVED = {"max_records": "aggregation.max_records", "ghost": "aggregation.pseudo_count"}
"""Keys of ``[method]`` in earlier versions, and what they are called now."""
RENAMED_PRIVACY = {"compensate": "dropout_tolerance"}
"""Keys of ``[privacy]`` in earlier versions, and what they are called now."""
WITHOUT_EFFECT = {"sample_rate": 1.0, "mode": "sound", "batch_size": 64}
"""Keys of ``[method]`` that are gone for some methods, and the values with which they said nothing."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """``[data]``: a built-in data set, one table per silo, or (``given``) data that were handed over in Python."""

    dataset: str | None = None
    given: str | None = None
    silos: int | tuple[str, ...] | None = None
    users: int | None = None
    people: int | None = None
    allocation: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    data_dir: str | None = None
    user: str | None = None
    label: str | None = None
    test: str | None = None
    test_fraction: float | None = None
    roster: str | None = None
    id_key: str | None = None
    ids: Mapping[str, Any] = field(default_factory=dict)
    holdout: float = 0.0
    population: str | None = None
    base_rate: float | tuple[float, ...] | None = None
    label_mean: float | None = None
    schema: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.given is None and self.dataset is None and not isinstance(self.silos, tuple):
            raise ConfigError('give dataset = "name" or silos = ["a.csv", "b.csv"]', location="data")
        if self.dataset is not None and isinstance(self.silos, tuple):
            raise ConfigError("with a dataset, silos is a number; files go without dataset", location="data.silos")
        if self.users is not None and self.users < 2:
            reason = f"at least 2, not {self.users}: user-level privacy hides one person among others"
            raise ConfigError(reason, location="data.users", value=self.users)
        if self.people is not None:
            check_whole(self.people, 2, MAX_USERS, "data.people")
        _ = self.prior  # refuses what is no base rate
        share = "the share of people who are held out: from 0 to below 1"
        require(0 <= self.holdout < 1, "data.holdout", self.holdout, share)
        if self.population is not None and not self.population.strip():
            raise ConfigError("a name for the people whose records these are, or nothing", location="data.population")
        number = len(self.silos) or 1 if isinstance(self.silos, tuple) else self.silos
        check_size(2 if self.users is None else self.users, 1 if number is None else number)
        tables_only = ("user", "label", "test", "test_fraction", "roster", "id_key", "ids", "schema")
        given = [key for key in tables_only if getattr(self, key)]
        if self.dataset is not None and given:
            reason = f"{given[0]} belongs to your own tables, not to a built-in dataset"
            raise ConfigError(reason, location=f"data.{given[0]}")
        if self.given is not None:
            self._check_given()
        elif self.dataset is None:
            self._check_tables()

    @property
    def prior(self) -> Prior | None:
        """What is public about the labels, if anything is."""
        if self.base_rate is None and self.label_mean is None:
            return None
        rates = self.base_rate if isinstance(self.base_rate, tuple) else (self.base_rate,)
        return Prior(tuple(rate for rate in rates if rate is not None), self.label_mean, required=True)

    @property
    def id_rules(self) -> IdRules:
        """How ids are read."""
        return read_section(IdRules, self.ids, "data.ids")

    def _check_given(self) -> None:
        beside = [key for key, value in vars(self).items() if value and key not in _WITH_GIVEN]
        if beside:
            reason = f"{beside[0]} does not go with data that were handed over in Python (data.given)"
            raise ConfigError(reason, location=f"data.{beside[0]}")

    def _check_tables(self) -> None:
        for key in ("user", "label"):
            if not getattr(self, key):
                raise ConfigError(f"name the column that holds the {key}", location=f"data.{key}")
        if not self.schema:
            reason = "a schema of public constants is needed; `uldp new NAME --silo FILE ...` drafts one"
            raise ConfigError(reason, location="data.schema")
        as_is = "tables say themselves whose records they are: 'as-is'"
        require(self.allocation in (None, "as-is"), "data.allocation", self.allocation, as_is)
        if self.roster is None and self.users is None:
            raise ConfigError(
                "give users (the public number |U|, ids are hashed into it) or roster (a file of ids; with users for a "
                "server that does not hold it)",
                location="data.users",
            )
        if self.roster is not None and self.id_key is not None:
            reason = "a key for hashing ids does not go with a roster"
            raise ConfigError(reason, location="data.id_key", value=self.id_key)
        _ = self.id_rules  # refuses what is no rule
        for key in ("options", "data_dir"):
            if getattr(self, key):
                raise ConfigError(f"{key} belongs to a built-in dataset", location=f"data.{key}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """``[model]``: a name, and the options of that model."""

    name: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PrivacyConfig:
    """``[privacy]``: how much, in one of two ways."""

    delta: float = 1e-5
    noise_multiplier: float | None = None
    epsilon: float | None = None
    dropout_tolerance: int = 0

    def __post_init__(self) -> None:
        check_delta(self.delta)
        noise, epsilon = self.noise_multiplier, self.epsilon
        require(noise is None or 0 <= noise < math.inf, "privacy.noise_multiplier", noise, "0 or a positive number")
        require(epsilon is None or 0 < epsilon < math.inf, "privacy.epsilon", epsilon, "a positive number")


@dataclass(frozen=True, kw_only=True)
class AggregationConfig:
    """``[aggregation]``: how the silos' vectors become one total. ``settings`` are those of the aggregation itself."""

    name: str = AUTO
    min_silos: int | None = None
    identities: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.build(workers=1)
        if self.min_silos is not None:
            check_whole(self.min_silos, 1, MAX_SILOS, "aggregation.min_silos")
        wanted = "an Ed25519 public key as 64 hexadecimal digits"
        _check_public_keys(self.identities, "[0-9a-f]{64}", wanted, "aggregation.identities")

    def build(self, workers: int) -> Aggregation:
        """The aggregation with its settings; for ``auto`` the one that it falls back on (``build.build_plan``)."""
        kind = lookup_aggregation("masked" if self.name == AUTO else self.name)
        known = {item.name for item in dataclasses.fields(kind)}
        for key, value in self.settings.items():
            owners = [name for name, other in AGGREGATIONS.items() if key in _own_settings(other)]
            if key not in _own_settings(kind) and owners:
                named = " or ".join(map(repr, owners))
                reason = f"{key} goes with name = {named}, not with {self.name!r}; leave it out"
                raise ConfigError(reason, location=f"aggregation.{key}", value=value)
        with user_code(ConfigError, f"{self.name!r} failed", "aggregation"):
            built = read_section(kind, self.settings, "aggregation", known=(*_COMMON, *_own_settings(kind)))
        return dataclasses.replace(built, **({"workers": workers} if "workers" in known else {}))


@dataclass(frozen=True, kw_only=True)
class DeploymentConfig:
    """``[deployment]``: how the transport of a real federation knows its silos. A simulation needs none of it."""

    nodes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wanted = "an ECDSA P-384 public key as `uldp keys silo` prints it"
        _check_public_keys(self.nodes, "ecdsa-sha2-nistp384 [A-Za-z0-9+/]+={0,2}", wanted, "deployment.nodes")


def _check_public_keys(keys: Mapping[str, Any], pattern: str, wanted: str, location: str) -> None:
    """Refuse what is no public key, and one that two silos share."""
    for silo, public in keys.items():
        if not isinstance(public, str) or not re.fullmatch(pattern, public):
            raise ConfigError(
                f"{wanted}, not {format_value(public)}", location=f"{location}.{silo}", value=format_value(public)
            )
        if list(keys.values()).count(public) > 1:
            raise ConfigError("another silo has the same key", location=f"{location}.{silo}", value=public)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """``[run]``: everything that must be equal for two runs to be equal, beside the experiment itself."""

    seed: int = 0
    threads: int = 2
    device: str = "cpu"
    dtype: str = "float32"
    memory_mb: int = 256
    secrets: str = "simulated"
    evaluate_silos: bool = False

    def __post_init__(self) -> None:
        for key, least, most in (("seed", 0, MAX_SEED), ("threads", 1, MAX_THREADS), ("memory_mb", 1, MAX_MEMORY_MB)):
            check_whole(getattr(self, key), least, most, f"run.{key}")
        for key, known in (("dtype", DTYPES), ("secrets", SECRETS)):
            require(getattr(self, key) in known, f"run.{key}", getattr(self, key), f"one of {', '.join(known)}")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that defines a run. Made by :meth:`from_tree` or :meth:`from_file`.

    Args:
        data: ``[data]``.
        model: ``[model]``.
        method: The method with its settings.
        method_name: The name under which ``[method]`` asks for it.
        privacy: ``[privacy]``.
        aggregation: ``[aggregation]``.
        run: ``[run]``.
        deployment: ``[deployment]``.
        name: What people call it: the experiment file's name. Not part of the experiment's identity.
        base: The folder that relative paths start from; not part of the experiment's identity.

    Raises:
        ConfigError: A setting is unknown, has a wrong type or value, or contradicts another.

    Example:
        >>> experiment = Experiment.from_tree({
        ...     "data": {"dataset": "breast-cancer"},
        ...     "method": {"name": "uldp-avg-w", "rounds": 5},
        ...     "privacy": {"epsilon": 2.0},
        ... })
        >>> experiment.method.weighting
        'records'
    """

    data: DataConfig
    model: ModelConfig
    method: Method
    method_name: str
    privacy: PrivacyConfig
    aggregation: AggregationConfig
    run: RunConfig
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)
    name: str = field(default="", compare=False)
    base: Path = field(default=Path(), compare=False)

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any], base: Path | str = ".", name: str = "") -> Experiment:
        """The experiment of a tree as it is written in an experiment file.

        Args:
            tree: Sections and their keys.
            base: The folder to which relative paths in it refer.
            name: What the experiment is called; run directories take it over.

        Returns:
            The experiment, all of whose settings were checked.

        Raises:
            ConfigError: A section, a key or a value is wrong.
        """
        sections = ("data", "model", "method", "privacy", "aggregation", "run", "deployment")
        try:
            check_tree(tree)
        except ValueError as error:
            raise ConfigError(str(error), location="experiment") from error
        check_keys(tree, sorted(sections), "experiment")
        if "data" not in tree:
            raise ConfigError("the section [data] is missing", location="experiment", value="data")
        method_name, method = _read_method(tree.get("method", {}))
        privacy = _read_privacy(tree.get("privacy", {}))
        _check_noise(privacy, method)
        data, run = read_section(DataConfig, tree["data"], "data"), read_section(RunConfig, tree.get("run", {}), "run")
        if run.evaluate_silos and data.dataset is not None and not data.holdout:
            reason = "nobody is held out, so there is nothing to measure on; set data.holdout, for instance to 0.2"
            raise ConfigError(reason, location="run.evaluate_silos")
        return cls(
            data=data,
            model=_read_model(tree.get("model", {})),
            method=method,
            method_name=method_name,
            privacy=privacy,
            aggregation=_read_aggregation(tree.get("aggregation", {})),
            run=run,
            deployment=read_section(DeploymentConfig, tree.get("deployment", {}), "deployment"),
            name=name,
            base=Path(base),
        )

    @classmethod
    def from_file(cls, path: Path | str, overrides: Iterable[str] = ()) -> Experiment:
        """The experiment of a TOML file.

        Args:
            path: The file; relative paths in it refer to its folder.
            overrides: ``section.key=value``, each in place of what the file says.

        Returns:
            The experiment, all of whose settings were checked.

        Raises:
            ConfigError: The file cannot be read, or a setting is wrong.
        """
        tree = read_toml(path)
        for assignment in overrides:
            tree = with_override(tree, assignment)
        return cls.from_tree(tree, Path(path).resolve().parent, Path(path).stem)

    def to_tree(self) -> Tree:
        """The tree that gives this experiment back."""
        method = {k: v for k, v in write_section(self.method).items() if k in settings(type(self.method))}
        for key in lookup(self.method_name).fixed:
            method.pop(key, None)
        model, options, own = write_section(self.model), dict(self.model.options), self.aggregation.settings
        return {
            "data": write_section(self.data),
            "model": {"name": model["name"], **({"options": options} if ":" in model["name"] and options else options)},
            "method": {"name": self.method_name, **method},
            "privacy": write_section(self.privacy),
            "aggregation": {**write_section(dataclasses.replace(self.aggregation, settings={})), **own},
            "run": write_section(self.run),
            **({"deployment": write_section(self.deployment)} if self.deployment.nodes else {}),
        }

    def digest(self) -> str:
        """A fingerprint of all settings and of the protocol's version."""
        tree = {"protocol": PROTOCOL_VERSION, **self.to_tree()}
        tree["data"].pop("data_dir", None)  # where the files lie says nothing about what is in them
        return hashlib.sha256(json.dumps(tree, sort_keys=True, default=str).encode()).hexdigest()

    @property
    def described_bins(self) -> int:
        """Into how many bins the data are described; 0 where a model is trained."""
        return self.method.bins if isinstance(self.method, Describe) else 0

    @property
    def trains_model(self) -> bool:
        """Whether a model is trained and tested; else totals are released."""
        return not isinstance(self.method, Describe | NewtonSteps)

    def with_seed(self, seed: int) -> Experiment:
        """The same experiment with another seed.

        Args:
            seed: ``run.seed``.

        Returns:
            A copy of the experiment.
        """
        return dataclasses.replace(self, run=dataclasses.replace(self.run, seed=seed))

    def with_noise(self, noise_multiplier: float) -> Method:
        """The method with its noise set.

        Args:
            noise_multiplier: sigma.

        Returns:
            A copy of the method, with the ``dropout_tolerance`` of ``[privacy]``.
        """
        tolerance = self.privacy.dropout_tolerance
        return dataclasses.replace(self.method, noise_multiplier=noise_multiplier, dropout_tolerance=tolerance)


def is_published_variant(tree: Tree) -> bool:
    """Whether the run of this tree trained, in an earlier version, a published variant that has no guarantee."""
    method = tree.get("method")
    return isinstance(method, dict) and (method.get("name") in AS_PRINTED or method.get("mode") == "published")


def in_current_terms(tree: Tree) -> Tree:
    """The tree of a run that an earlier version may have written: it can be read, but not resumed."""
    method, privacy = tree.get("method"), tree.get("privacy")
    if isinstance(method, dict) and isinstance(method.get("name"), str):
        name: str = RENAMED.get(method["name"]) or AS_PRINTED.get(method["name"]) or method["name"]
        known = {"name", *settings(lookup(name).method)}
        gone = {item[0] for item in method.items() if item[0] in MOVED or item in WITHOUT_EFFECT.items()} - known
        if is_published_variant(tree):
            gone = method.keys() - known
        elif name == "central-sub-dp":
            gone |= {"batch_size"} - known  # of the published mode only
        tree = {**tree, "method": {key: value for key, value in method.items() if key not in gone} | {"name": name}}
    if isinstance(privacy, dict):
        tree = {**tree, "privacy": {RENAMED_PRIVACY.get(key, key): value for key, value in privacy.items()}}
    return tree


def read_toml(path: Path | str) -> Tree:
    """The tree of a TOML file."""
    try:
        return toml_tree(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        reason = "no such experiment file; `uldp new NAME` drafts one"
        raise ConfigError(reason, location=str(path), value=str(path)) from error
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", location=str(path)) from error
    except ValueError as error:  # also of what is no UTF-8
        raise ConfigError(f"is not valid TOML: {error}", location=str(path)) from error


def _read_method(tree: Any) -> tuple[str, Method]:
    check_section(tree, "method")
    name = tree.get("name", AUTO)
    if not isinstance(name, str):
        raise ConfigError(
            f"the name of a method, not {format_value(name)}", location="method.name", value=format_value(name)
        )
    fields = {key: value for key, value in tree.items() if key != "name"}
    for key, now in MOVED.items():
        if key in fields:
            reason = f"is called {now} now; with other aggregations than paillier nothing is capped, and it is left out"
            raise ConfigError(reason, location=f"method.{key}", value=fields[key])
    return name, build_method(name, fields)


def build_method(name: str, fields: Mapping[str, Any]) -> Method:
    """The method of this name with these settings of ``[method]``."""
    named = lookup(name)
    for key, value in named.fixed.items():
        given = fields.get(key, value)
        require(given == value, f"method.{key}", given, f"{name} means {key} = {value!r}")
    with user_code(ConfigError, f"{name!r} failed", "method"):
        return read_section(named.method, {**fields, **named.fixed}, "method", known=settings(named.method))


def _read_privacy(tree: Any) -> PrivacyConfig:
    for key, now in RENAMED_PRIVACY.items():
        if isinstance(tree, Mapping) and key in tree:
            raise ConfigError(f"is called privacy.{now} now", location=f"privacy.{key}", value=tree[key])
    return read_section(PrivacyConfig, tree, "privacy")


def _read_model(tree: Any) -> ModelConfig:
    check_section(tree, "model")
    common = read_section(ModelConfig, {key: tree[key] for key in ("name", "options") if key in tree}, "model")
    beside = {key: value for key, value in tree.items() if key not in ("name", "options")}
    if twice := sorted(beside.keys() & common.options.keys()):
        raise ConfigError("stands in [model] and in [model.options]; leave one out", location=f"model.{twice[0]}")
    return dataclasses.replace(common, options={**beside, **common.options})


_COMMON = ("name", "min_silos", "identities")


def _own_settings(kind: type[Aggregation]) -> list[str]:
    """The keys of ``[aggregation]`` that belong to this kind."""
    return [item.name for item in dataclasses.fields(kind) if item.repr]


def _read_aggregation(tree: Any) -> AggregationConfig:
    check_section(tree, "aggregation")
    common = {key: value for key, value in tree.items() if key in _COMMON}
    own = {key: value for key, value in tree.items() if key not in _COMMON}
    return dataclasses.replace(read_section(AggregationConfig, common, "aggregation", known=_COMMON), settings=own)


def _check_noise(privacy: PrivacyConfig, method: Method) -> None:
    if method.local:
        if privacy.noise_multiplier is not None:
            reason = (
                "this method's clients perturb by themselves (method.epsilon_weight); leave it out (--set "
                "privacy.noise_multiplier=none), or give epsilon as a budget of the whole run"
            )
            raise ConfigError(reason, location="privacy.noise_multiplier", value=privacy.noise_multiplier)
        if privacy.dropout_tolerance:
            reason = (
                "this method's clients perturb by themselves, so no share of noise can be missing; leave it out (--set "
                "privacy.dropout_tolerance=none)"
            )
            raise ConfigError(reason, location="privacy.dropout_tolerance", value=privacy.dropout_tolerance)
        return
    if method.privacy_unit is not None and (privacy.epsilon is None) == (privacy.noise_multiplier is None):
        reason = "give exactly one of epsilon (the noise is calibrated) and noise_multiplier"
        raise ConfigError(reason, location="privacy")
