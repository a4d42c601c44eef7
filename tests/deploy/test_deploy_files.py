"""The files in ``deploy/`` hold what their comments and the docs promise. Nothing of them is run by an engine here."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from uldp import __version__
from uldp.cli.app import app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
VOLUME = "/var/lib/uldp"
UNITS = sorted((DEPLOY / "systemd").iterdir())
WRITTEN = ("--out", "--keys", "--state", "--certificates")
"""Options whose folders a party writes to."""

every_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)


def options_of(words):
    """The options of a command line of ``uldp``, parsed by the command itself: unknown ones fail."""
    command = typer.main.get_command(app).commands[words[0]]
    with command.make_context(words[0], list(words[1:])) as context:
        return context.params


def value_of(words, option):
    return words[words.index(option) + 1] if option in words else None


def check_command(words, *, volume=VOLUME):
    """The options exist, all that is written lies on the volume, and nothing is rehearsed or open."""
    options = options_of(words)
    assert not options["insecure"] and not options["rehearse"]
    assert options["log"] == "json" and options["metrics"] == 9464
    written = [value for option in WRITTEN if (value := value_of(words, option))]
    assert written and all(value.startswith(f"{volume}/") for value in written)
    if words[0] == "serve":
        assert options["continue_"]  # a restart goes on
    else:
        assert {Path(value).name for value in written} == {"keys", "state"}
    return options


# --- the image ----------------------------------------------------------------------------------------------------


def instructions():
    text = (DEPLOY / "Containerfile").read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in joined.splitlines()]


def test_the_image_runs_as_nobody_in_particular_with_all_that_is_written_on_the_volume():
    found = instructions()
    last = len(found) - 1 - [name for name, _ in reversed(found)].index("FROM")
    final = found[last:]
    users = [rest for name, rest in final if name == "USER"]
    assert users == ["10001:10001"]
    names = [name for name, _ in final]
    assert names.index("USER") > max(index for index, name in enumerate(names) if name == "RUN")  # none as root after
    environment = dict(
        pair.split("=", 1) for name, rest in final if name == "ENV" for pair in shlex.split(rest.replace("\\", ""))
    )
    for name in ("HOME", "ULDP_CACHE_DIR", "MPLCONFIGDIR"):
        assert environment[name].startswith(VOLUME)
    assert ("VOLUME", f'["{VOLUME}"]') in final and ("WORKDIR", VOLUME) in final
    assert f"--mode 0700 {VOLUME}" in " ".join(rest for name, rest in final if name == "RUN")
    assert not any(name == "ADD" for name, _ in found)


def test_the_images_entry_point_is_the_packages_and_what_it_copies_is_here():
    found = instructions()
    assert ("ENTRYPOINT", '["uldp"]') in found
    scripts = (ROOT / "pyproject.toml").read_text().partition("[project.scripts]")[2]
    assert 'uldp = "uldp.cli:main"' in scripts.split("\n\n")[0]
    for name, rest in found:
        if name == "COPY" and not rest.startswith("--from"):
            assert all((ROOT / source).exists() for source in rest.split()[:-1])
        if name == "FROM":
            assert re.fullmatch(r"docker\.io/library/python:3\.1[123]-slim( AS build)?", rest)
    install = next(rest for name, rest in found if "pip install" in rest)
    assert "--constraint constraints.txt" in install and "'.[flower]'" in install
    assert f"localhost/uldp:{__version__}" in (DEPLOY / "Containerfile").read_text()


# --- the rehearsal ------------------------------------------------------------------------------------------------


HADOLINT = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))


@pytest.mark.skipif(HADOLINT is None, reason="no hadolint for this system")
def test_the_linter_of_containerfiles_finds_nothing():
    text = (DEPLOY / "Containerfile").read_text()
    for content, code in ((text, 0), (text.replace("USER 10001:10001", "USER root"), 1)):
        done = subprocess.run([HADOLINT, "-"], input=content, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr


def services():
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_every_service_is_confined():
    tree = services()
    assert tree["networks"]["federation"] == {"internal": True}
    for service in tree["services"].values():
        assert service["user"] == "10001:10001" and service["read_only"] is True
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]
        assert not {"privileged", "ports", "network_mode", "pid", "cap_add", "devices"} & set(service)
        assert service["image"] == f"localhost/uldp:{__version__}"
        writable = [mount for mount in service["volumes"] if not mount.endswith(":ro")]
        assert len(writable) == 1 and writable[0].endswith(f":{VOLUME}")
        assert writable[0].split(":")[0] in tree["volumes"]


def test_the_commands_of_all_services_exist_and_agree():
    tree = services()
    server = tree["services"].pop("server")
    options = check_command(server["command"])
    port = options["address"].rpartition(":")[2]
    files = {mount.split(":")[1] for mount in server["volumes"]}
    assert str(options["file"]) in files and not {"/srv/uldp/id.key", "/srv/uldp/data.csv"} & files
    for name, service in tree["services"].items():
        words = service["command"]
        options = check_command(words)
        mounted = {mount.split(":")[1] for mount in service["volumes"]}
        assert options["silo"] == name and options["superlink"] == f"server:{port}"
        assert {value_of(words, "--data"), value_of(words, "--ca"), str(options["file"])} <= mounted


# --- units --------------------------------------------------------------------------------------------------------


def settings(unit):
    text = re.sub(r"\\\n\s*", "", unit.read_text())
    found = {}
    for line in text.splitlines():
        if line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@every_unit
def test_a_unit_starts_a_command_that_exists_as_an_ordinary_user(unit):
    found = settings(unit)
    assert found["User"] == ["uldp"] and found["StateDirectory"] == ["uldp"] and found["StateDirectoryMode"] == ["0700"]
    assert found["UMask"] == ["0077"]
    program, *words = shlex.split(found["ExecStart"][0])
    assert program == "/opt/uldp/bin/uldp"
    words = [{"${SUPERLINK}": "server.example:8000"}.get(word, word) for word in words]
    check_command([word.replace("%i", "ward-a") for word in words])
    environment = dict(pair.split("=", 1) for line in found["Environment"] for pair in line.split())
    for name in ("HOME", "ULDP_CACHE_DIR", "MPLCONFIGDIR"):
        assert environment[name].startswith(VOLUME)
    # A spent budget does not get better by asking again; what else ends a party may, but not for ever.
    assert found["RestartPreventExitStatus"] == ["1"] and found["SuccessExitStatus"] == ["130"]
    assert found["Restart"] == ["on-failure"] and found["StartLimitBurst"] == ["20"]


@every_unit
def test_a_unit_is_hardened(unit):
    found = settings(unit)
    for name in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "RestrictNamespaces"):
        assert found[name] == ["yes"]
    assert found["ProtectSystem"] == ["strict"] and found["CapabilityBoundingSet"] == [""]
    assert "ReadWritePaths" not in found and "MemoryDenyWriteExecute" not in found  # the second breaks the kernels


@every_unit
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_finds_no_fault_in_a_unit(unit, tmp_path):
    program = tmp_path / "uldp"
    program.write_text(f"#!{sys.executable}\n")
    program.chmod(0o755)
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/uldp/bin/uldp", str(program)))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    if "Failed to" in done.stderr and "manager" in done.stderr:
        pytest.skip("systemd-analyze cannot work here")
    assert done.returncode == 0 and unit.name not in done.stderr, done.stderr
