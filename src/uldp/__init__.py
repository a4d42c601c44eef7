"""uldp: federated learning across silos with user-level differential privacy.

Everything public is here; submodules are loaded when something of them is first used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from uldp._version import __version__

if sys.platform == "win32":
    raise ImportError("uldp runs on Linux and macOS, whose file locks it needs; on Windows use it within WSL")

if TYPE_CHECKING:
    from uldp.attacks.membership_result import Attack
    from uldp.audits.result import Audit
    from uldp.data.federation import Federation, Records, SiloData, Task
    from uldp.data.schema import Schema
    from uldp.errors import (
        BudgetExhausted,
        ConfigError,
        DataError,
        InputError,
        MessageRefused,
        ModelError,
        RunError,
        UldpError,
    )
    from uldp.experiment.build import PreparedExperiment, prepare
    from uldp.experiment.config import Experiment
    from uldp.library.attacking import attack
    from uldp.library.auditing import audit
    from uldp.library.calculators import epsilon, noise_multiplier
    from uldp.library.comparing import Comparison, compare
    from uldp.library.describing import describe
    from uldp.library.estimating import coefficients
    from uldp.library.estimators import UldpClassifier, UldpRegressor
    from uldp.library.loading import load
    from uldp.library.planning import TrainingPlan, plan
    from uldp.library.reporting import report
    from uldp.library.totals import Total, total
    from uldp.library.tracking import MlflowTracker, TensorBoardTracker
    from uldp.library.training import resume, train
    from uldp.library.tuning import tune
    from uldp.methods.base import Method, State
    from uldp.methods.uldp_avg import UldpAvg
    from uldp.methods.user_sum import UserSum
    from uldp.privacy.releases import Adversary, GaussianSum, PublicFacts, Release, RoundFacts
    from uldp.privacy.statement import Statement
    from uldp.runs.coefficients import CoefficientTable
    from uldp.runs.description import Description
    from uldp.runtimes.result import Result, RoundReport

_HOMES = {
    "Adversary": "uldp.privacy.releases",
    "Attack": "uldp.attacks.membership_result",
    "Audit": "uldp.audits.result",
    "BudgetExhausted": "uldp.errors",
    "Comparison": "uldp.library.comparing",
    "CoefficientTable": "uldp.runs.coefficients",
    "ConfigError": "uldp.errors",
    "DataError": "uldp.errors",
    "Description": "uldp.runs.description",
    "Experiment": "uldp.experiment.config",
    "Federation": "uldp.data.federation",
    "GaussianSum": "uldp.privacy.releases",
    "InputError": "uldp.errors",
    "MessageRefused": "uldp.errors",
    "Method": "uldp.methods.base",
    "MlflowTracker": "uldp.library.tracking",
    "ModelError": "uldp.errors",
    "PreparedExperiment": "uldp.experiment.build",
    "PublicFacts": "uldp.privacy.releases",
    "Records": "uldp.data.federation",
    "Release": "uldp.privacy.releases",
    "Result": "uldp.runtimes.result",
    "RoundFacts": "uldp.privacy.releases",
    "RoundReport": "uldp.runtimes.result",
    "RunError": "uldp.errors",
    "Schema": "uldp.data.schema",
    "SiloData": "uldp.data.federation",
    "State": "uldp.methods.base",
    "Statement": "uldp.privacy.statement",
    "Task": "uldp.data.federation",
    "TensorBoardTracker": "uldp.library.tracking",
    "Total": "uldp.library.totals",
    "TrainingPlan": "uldp.library.planning",
    "UldpAvg": "uldp.methods.uldp_avg",
    "UldpClassifier": "uldp.library.estimators",
    "UldpError": "uldp.errors",
    "UldpRegressor": "uldp.library.estimators",
    "UserSum": "uldp.methods.user_sum",
    "attack": "uldp.library.attacking",
    "audit": "uldp.library.auditing",
    "coefficients": "uldp.library.estimating",
    "compare": "uldp.library.comparing",
    "describe": "uldp.library.describing",
    "epsilon": "uldp.library.calculators",
    "load": "uldp.library.loading",
    "noise_multiplier": "uldp.library.calculators",
    "plan": "uldp.library.planning",
    "prepare": "uldp.experiment.build",
    "report": "uldp.library.reporting",
    "resume": "uldp.library.training",
    "total": "uldp.library.totals",
    "train": "uldp.library.training",
    "tune": "uldp.library.tuning",
}

__all__ = [
    "Adversary",
    "Attack",
    "Audit",
    "BudgetExhausted",
    "CoefficientTable",
    "Comparison",
    "ConfigError",
    "DataError",
    "Description",
    "Experiment",
    "Federation",
    "GaussianSum",
    "InputError",
    "MessageRefused",
    "Method",
    "MlflowTracker",
    "ModelError",
    "PreparedExperiment",
    "PublicFacts",
    "Records",
    "Release",
    "Result",
    "RoundFacts",
    "RoundReport",
    "RunError",
    "Schema",
    "SiloData",
    "State",
    "Statement",
    "Task",
    "TensorBoardTracker",
    "Total",
    "TrainingPlan",
    "UldpAvg",
    "UldpClassifier",
    "UldpError",
    "UldpRegressor",
    "UserSum",
    "__version__",
    "attack",
    "audit",
    "coefficients",
    "compare",
    "describe",
    "epsilon",
    "load",
    "noise_multiplier",
    "plan",
    "prepare",
    "report",
    "resume",
    "total",
    "train",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'uldp' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
