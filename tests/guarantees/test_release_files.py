"""What a host of repositories and a package index read: their forms, and that they name what is there."""

import re
import tomllib
from pathlib import Path

import pytest

import uldp
from uldp.errors import ConfigError
from uldp.runtimes.flower import child
from uldp.runtimes.flower.federation import ServerConnection, ServerEndpoint
from uldp.runtimes.flower.processes import Address

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHONS = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))


FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read(name):
    return yaml.safe_load((ROOT / name).read_text())


def make_targets():
    return set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), flags=re.M))


def test_the_changelog_keeps_the_form():
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.findall(r"^## (.*)$", text, flags=re.M)
    assert sections[0] == "[Unreleased]" or sections[0].startswith(f"[{uldp.__version__}] - ")
    assert all(re.fullmatch(r"\[(Unreleased|\d+\.\d+\.\d+)\]( - \d{4}-\d\d-\d\d)?", section) for section in sections)
    kinds = set(re.findall(r"^### (.*)$", text, flags=re.M))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    for version in re.split(r"^## ", text, flags=re.M)[1:]:
        found = re.findall(r"^### (.*)$", version, flags=re.M)
        assert len(found) == len(set(found)), "a version lists every kind of change once"


def test_the_citation_is_of_this_version():
    citation = read("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert str(citation["version"]) == uldp.__version__ and citation["license"] == PROJECT["project"]["license"]
    assert all("name" in one or "family-names" in one for one in citation["authors"])


def test_what_runs_on_every_change_covers_what_is_declared():
    workflow = read(".github/workflows/ci.yml")
    assert workflow["permissions"] == {"contents": "read"}
    ran, machines = set(), {}
    for job in workflow["jobs"].values():
        steps = [step["run"] for step in job["steps"] if "run" in step]
        ran.update(name for step in steps for name in re.findall(r"make ([a-z-]+)", step))
        for system in job.get("strategy", {}).get("matrix", {}).get("os", ()):
            machines[system] = job["strategy"]["matrix"]["python"]
    assert ran <= make_targets() and {"check", "test", "test-simulation", "test-dist", "coverage"} <= ran
    assert any("arm" in name for name in machines) and any(name.startswith("macos") for name in machines)
    assert len(PYTHONS) == 3 and all(pythons == PYTHONS for pythons in machines.values())


def test_simulations_leave_out_files_that_are_there():
    text = (ROOT / "Makefile").read_text()
    listed = re.search(r"^FEDERATED := ((?:.*\\\n)*.*)$", text, flags=re.M).group(1)
    left_out = re.sub(r"\$\(addprefix (\S+),(.*?)\)", lambda m: " ".join(m[1] + n for n in m[2].split()), listed)
    assert [name for name in left_out.replace("\\", " ").split() if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.name)
def test_forms_of_issues_are_forms(file):
    form = yaml.safe_load(file.read_text())
    if file.name == "config.yml":
        assert form == {"blank_issues_enabled": True}
        return
    assert {"name", "description", "body"} <= form.keys()
    for item in form["body"]:
        assert item["type"] in ("markdown", "textarea", "input", "dropdown", "checkboxes")
        assert "value" in item["attributes"] if item["type"] == "markdown" else {"id", "attributes"} <= item.keys()
    ids = [item["id"] for item in form["body"] if "id" in item]
    assert len(ids) == len(set(ids)) and "SECURITY.md" in (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text()


def test_hooks_run_what_make_check_runs():
    hooks = {hook["id"]: hook for repo in read(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]}
    check = (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition(".PHONY")[0]
    programs = {Path(hook["entry"].split()[0]).name for hook in hooks.values() if hook["language"] == "system"}
    assert programs == set(re.findall(r"\$\(BIN\)/([a-z-]+)", check))
    assert re.search(hooks["private-keys"]["entry"], "-----BEGIN OPENSSH PRIVATE " + "KEY-----")


def test_the_package_names_no_place_that_does_not_exist():
    """No address of a project's home is known, so none is invented."""
    assert "urls" not in PROJECT["project"]
    assert PROJECT["tool"]["coverage"]["report"]["fail_under"] >= 80


def test_a_federation_elsewhere_than_on_linux_is_refused_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(child, "IS_LINUX", False)
    address = Address("127.0.0.1", 8000)
    for start in (lambda: ServerEndpoint(address, None), lambda: ServerConnection(address, None, None, tmp_path)):
        with pytest.raises(ConfigError, match=r"run on Linux only.*`uldp run` simulates here"):
            start()
