"""Plants errors in a copy of the package and shows what catches each of them."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.planted.errors import ERRORS, Planted

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "uldp"
AUDIT = ("audit", "--dataset", "synthetic", "--epsilon", "4", "--canaries", "1024", "--rounds", "4")


def planted_copy(error: Planted, folder: Path) -> Path:
    """The package with the error in it."""
    copy = folder / "uldp"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / error.file
    text = file.read_text()
    if text.count(error.old) != 1:
        raise SystemExit(f"{error.name}: {error.old!r} stands {text.count(error.old)} times in {error.file}")
    file.write_text(text.replace(error.old, error.new))
    return folder


def command_of(error: Planted, seed: int) -> list[str]:
    if error.test:
        return [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", error.test]
    # Later options replace earlier ones.
    options = ["--method", error.method, *error.options, "--audit-seed", str(seed)]
    return [sys.executable, "-m", "uldp", *AUDIT, *options]


def caught_by(error: Planted, seed: int = 0) -> str:
    """What speaks against the error; empty if nothing does."""
    with tempfile.TemporaryDirectory(prefix="uldp-planted-") as folder:
        path = os.pathsep.join([str(planted_copy(error, Path(folder))), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(
            command_of(error, seed), cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    if done.returncode != 1:
        return ""
    if error.test:
        return error.test
    said = done.stdout.partition("What speaks against it: ")[2].partition(".\n")[0]
    return f"audit: {said}" if said else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="audits of each error")
    parser.add_argument("--only", help="errors whose name holds this")
    arguments = parser.parse_args()
    missed = 0
    for error in ERRORS:
        if arguments.only and arguments.only not in error.name:
            continue
        found = [caught_by(error, seed) for seed in range(1 if error.test else arguments.seeds)]
        missed += found.count("")
        print(f"{error.name} | {len(found) - found.count('')} of {len(found)} | {max(found, key=len)}", flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
