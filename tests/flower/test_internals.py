"""What is not Flower's public interface is in one module, and is compared with the Flower that is installed."""

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from uldp.cli.app import app
from uldp.errors import ConfigError, RunError
from uldp.runtimes.flower import internals
from uldp.runtimes.flower import processes as p

FOLDER = Path(internals.__file__).parent
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation"}
GONE = "flwr.supernode.runtime.run_clientapp.push_message"


@pytest.fixture
def flower():
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'uldp[flower]'")


@pytest.fixture
def without_a_name(tmp_path, monkeypatch):
    """Programs that are started find a Flower that lacks one function."""
    module, _, name = GONE.rpartition(".")
    (tmp_path / "patched").mkdir()
    (tmp_path / "patched" / "sitecustomize.py").write_text(f"import {module} as module\ndel module.{name}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "patched"))
    internals.check_installed.cache_clear()
    yield
    internals.check_installed.cache_clear()


def is_one_clear_sentence(text):
    parts = (GONE, f"version {internals.distribution('flwr').version}", "works with 1.41.0", "pip install")
    return all(part in text for part in parts) and "Traceback" not in text


def test_the_installed_flower_has_all_that_is_needed(flower):
    assert internals.missing_names() == []
    internals.check_installed()


def test_a_missing_name_is_one_sentence(flower, monkeypatch):
    monkeypatch.delattr(GONE)
    with pytest.raises(SystemExit) as ended:
        internals.check_program()
    assert is_one_clear_sentence(str(ended.value)) and "\n" not in str(ended.value)


def test_a_machine_that_is_too_busy_is_not_told_to_install_flower_again(flower, monkeypatch):
    def too_slow(*command, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(internals.subprocess, "run", too_slow)
    internals.check_installed.cache_clear()
    with pytest.raises(RunError, match="no response after 60 s; is this machine very busy") as refused:
        internals.check_installed()
    internals.check_installed.cache_clear()
    assert "pip install" not in str(refused.value)


def test_a_missing_module_is_named(flower, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr.supercore.tls", None)
    assert internals.missing_names() == ["flwr.supercore.tls"]


def test_a_command_says_it_before_anything_starts(flower, tmp_path, without_a_name):
    done = CliRunner().invoke(app, ["rehearse", "--dataset", "synthetic", "--out", str(tmp_path / "out")])
    assert done.exit_code == 2 and is_one_clear_sentence(done.output)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("program", ["supernode", "executor", "client_app", "server_app"])
def test_a_program_says_it_and_ends(flower, tmp_path, without_a_name, program):
    options = p.superexec_of_node(p.FlowerFolder(tmp_path / "home"), 9)[1:] if program == "executor" else []
    command = [sys.executable, "-P", "-m", f"uldp.runtimes.flower.{program}", *options]
    env = {**os.environ, "FLWR_HOME": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 1 and is_one_clear_sentence(said) and "ERROR" in said


@pytest.mark.parametrize("version", ["1.40.0", "1.42.0", "1.410.0"])
def test_another_version_is_refused(monkeypatch, version):
    internals.check_installed.cache_clear()
    monkeypatch.setattr(internals, "distribution", lambda name: SimpleNamespace(version=version, entry_points=()))
    with pytest.raises(ConfigError, match=rf"version {version}, 1\.41 is needed"):
        internals.check_installed()


def test_a_missing_program_is_named(flower, monkeypatch):
    internals.check_installed.cache_clear()
    monkeypatch.setattr(internals, "distribution", lambda name: SimpleNamespace(version="1.41.0", entry_points=()))
    with pytest.raises(ConfigError, match="has no flower-superexec, flower-superlink, flwr; uldp works with"):
        internals.check_installed()


def imports(file):
    """(module, name) of everything that a file imports from Flower; the name is empty for a module."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((one.name, "") for one in node.names if one.name.split(".")[0] in ("flwr", "httpx"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("flwr", "httpx"):
            yield from ((node.module, one.name) for one in node.names)


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.name)
def test_no_other_module_uses_more_than_flower_documents(file):
    if file.name == "internals.py":
        return
    assert {module for module, _ in imports(file)} <= PUBLIC
    assert not re.findall(r"""["']flwr\.[\w.]+["']""", file.read_text())  # imported or replaced by its name


def test_all_that_is_imported_or_replaced_is_checked():
    needed = {(module, name.partition(".")[0]) for module, names in internals.NEEDED.items() for name in names}
    imported = {found for file in FOLDER.glob("*.py") for found in imports(file)}
    assert imported <= needed
    source = Path(internals.__file__).read_text()
    for module, name in needed - imported:
        assert len(re.findall(rf"\b{name}\b", source)) > 1 and source.count(f'"{module}"') > 1, (module, name)


def test_flower_knows_all_options_that_it_is_given(flower, tmp_path):
    home, address, security = p.FlowerFolder(tmp_path / "home"), p.Address("127.0.0.1", 8000), p.Security(tmp_path)
    node = p.NodeSide(address, security.ca, tmp_path / "node.key", {"silo": "a"})
    commands = {
        "flwr.superlink.cli.flower_superlink:_parse_args_run_superlink": p.superlink_command(home, address, security),
        "flwr.supernode.cli.flower_supernode:_parse_args_run_supernode": p.supernode_command(home, node, 9)[4:],
        "flwr.supercore.cli.flower_superexec:_parse_args": p.superexec_command(home, address, security.ca),
    }
    for parser, command in commands.items():
        module, _, name = parser.partition(":")
        known = set(re.findall(r"--[\w-]+", getattr(importlib.import_module(module), name)().format_help()))
        assert {"--insecure", *(word for word in command if word.startswith("--"))} <= known
