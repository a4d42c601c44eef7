"""Wheel and sdist: built from what is in the repository, installed in a fresh environment, used elsewhere."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import uldp

ROOT = Path(__file__).parents[2]
HOOKS = "import sys; from setuptools import build_meta as b; out = sys.argv[1]; b.build_sdist(out); b.build_wheel(out)"


def run(*command, cwd, **variables):
    """A program with nothing of this checkout in its environment; what it prints."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COVERAGE", "PYTEST"))}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**clean, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copy_tracked(folder):
    """The files that a clone has: nothing that lies about in this checkout."""
    try:
        names = run("git", "ls-files", "-z", cwd=ROOT).split("\0")
    except (AssertionError, FileNotFoundError):
        pytest.skip("not a clone of the repository: which files belong to it is not known")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """``python -m build`` without the network; where it is not installed, the same hooks of setuptools."""
    source, out = copy_tracked(tmp_path_factory.mktemp("source")), tmp_path_factory.mktemp("dist")
    if find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed here, and is not fetched")
    if find_spec("build") is None:
        run(sys.executable, "-c", HOOKS, out, cwd=source)
    else:
        run(sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "--outdir", out, cwd=source)
    return out


@pytest.mark.slow
def test_the_distributions_hold_the_package_and_nothing_else(built):
    name = f"uldp-{uldp.__version__}"
    assert sorted(path.name for path in built.iterdir()) == [f"{name}-py3-none-any.whl", f"{name}.tar.gz"]
    package = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "uldp").rglob("*.py")}
    with zipfile.ZipFile(built / f"{name}-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
    assert package <= names and {"uldp/py.typed", "uldp/reports/templates/report.css"} <= names
    assert {one.partition("/")[0] for one in names} == {"uldp", f"{name}.dist-info"}
    assert not [one for one in names if "__pycache__" in one]
    with tarfile.open(built / f"{name}.tar.gz") as sdist:
        held = {member.name.partition("/")[2] for member in sdist.getmembers()}
    assert {"LICENSE", "README.md", "pyproject.toml", "src/uldp/py.typed"} <= held


@pytest.mark.slow
@pytest.mark.parametrize("form", ["*.whl", "*.tar.gz"])
def test_a_distribution_installs_in_a_fresh_environment_and_runs_the_demo(built, tmp_path, form):
    """The dependencies are borrowed from this environment, so that nothing is downloaded."""
    venv.create(tmp_path / "fresh", with_pip=False, symlinks=True)
    python = tmp_path / "fresh" / "bin" / "python"
    borrowed = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (site / "borrowed.pth").write_text("".join(f"{path}\n" for path in borrowed))
    (distribution,) = built.glob(form)
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet")
    run(sys.executable, "-m", "pip", "--python", python, "install", *offline, distribution, cwd=tmp_path)

    where = run(python, "-c", "import uldp; print(uldp.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(site)
    program = tmp_path / "fresh" / "bin" / "uldp"
    assert run(program, "--version", cwd=tmp_path).strip() == f"uldp {uldp.__version__}"
    state = tmp_path / "state"
    said = run(program, "demo", cwd=tmp_path, ULDP_STATE=str(state), MPLBACKEND="agg")
    assert "epsilon" in said and (tmp_path / "runs").is_dir()
