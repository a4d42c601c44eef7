"""The public surface, the doctests, and what importing costs."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import uldp

PUBLIC = [
    "Adversary",
    "BudgetExhausted",
    "ConfigError",
    "DataError",
    "Experiment",
    "Federation",
    "GaussianSum",
    "InputError",
    "MessageRefused",
    "Method",
    "ModelError",
    "Prepared",
    "PublicFacts",
    "Records",
    "Release",
    "Result",
    "RoundReport",
    "RunError",
    "SiloData",
    "State",
    "Statement",
    "Task",
    "UldpError",
    "UserSum",
    "__version__",
    "prepare",
    "resume",
    "run",
]


def test_the_public_surface_is_what_we_decided():
    assert uldp.__all__ == PUBLIC
    assert all(getattr(uldp, name).__doc__ for name in PUBLIC if name != "__version__")
    with pytest.raises(AttributeError):
        _ = uldp.nothing


def modules():
    return [module.name for module in pkgutil.walk_packages(uldp.__path__, "uldp.") if "cli" not in module.name]


@pytest.mark.parametrize("name", modules())
def test_doctests(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == "pfl":  # in an environment of its own: make bench-pfl
            pytest.skip("pfl is not installed")
        raise
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


@pytest.mark.parametrize("code", ["import uldp", "import uldp.cli.app", "import uldp.experiment.config"])
def test_importing_loads_no_heavy_library(code):
    heavy = ("torch", "pandas", "sklearn", "scipy", "matplotlib", "dp_accounting")
    check = f"{code}; import sys; print([name for name in {heavy} if name in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
