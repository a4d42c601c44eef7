"""The same experiment with the same seed gives the same model and the same metrics, bit by bit, on other processors.

Small complete runs (``trainings.py``) in processes of their own, each with libraries that are told of another
processor: its instruction sets are what numba, numpy, torch, BLAS and the C library choose their code by.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from trainings import RUNS

from uldp.learners.kernels.support import unavailable_reason

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())]

PROGRAM = Path(__file__).with_name("trainings.py")
X86 = platform.machine().lower() in ("x86_64", "amd64")
#: What numpy chooses among on this processor; it must not be told to do without what is not there.
FOUND = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])

#: No AVX2: 128-bit integers everywhere, and no fused multiply-add but in our kernels, which need it.
OLD = {
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "+fma,+avx",
    "NPY_DISABLE_CPU_FEATURES": " ".join(FOUND),
    "ATEN_CPU_CAPABILITY": "default",
    "OPENBLAS_CORETYPE": "Nehalem",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA,-FMA4,-AVX",
}
#: AVX2 without AVX-512: another processor than this one where this one has it.
AVX2 = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+fma,+avx2,+bmi,+bmi2",
    "NPY_DISABLE_CPU_FEATURES": " ".join(name for name in FOUND if name.startswith(("AVX512", "X86_V4"))),
    "ATEN_CPU_CAPABILITY": "avx2",
    "OPENBLAS_CORETYPE": "Haswell",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F",
}


def trained(*arguments: str, **variables: str):
    """What the runs came to in a process with these environment variables."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM), *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def here():
    return trained()


def assert_same(found, here):
    """Stage by stage, so that a failure says where the two part."""
    assert set(found["runs"]) == set(here["runs"]) == set(RUNS)
    parted = {
        name: [stage for stage in here["runs"][name] if found["runs"][name][stage] != here["runs"][name][stage]]
        for name in RUNS
    }
    assert not {name: stages for name, stages in parted.items() if stages}


@pytest.mark.skipif(not X86, reason="names x86's instruction sets")
def test_an_old_processor_gives_the_same_bits(here):
    found = trained(**OLD)
    assert found["torch"] == "DEFAULT" and not found["numpy"] and found["numba"] == "generic"  # it was heard
    assert_same(found, here)


@pytest.mark.skipif(not X86, reason="names x86's instruction sets")
@pytest.mark.skipif("X86_V3" not in FOUND, reason="this processor has no AVX2")
def test_a_processor_with_avx2_gives_the_same_bits(here):
    found = trained(**AVX2)
    assert found["torch"] == "AVX2" and found["numpy"] == ["X86_V3"] and found["numba"] == "haswell"
    assert_same(found, here)


def test_libraries_that_round_otherwise_give_the_same_bits(here):
    """Every exp, log, power, sine, ... of numpy, torch and the C library is off by 2^-41 here, relatively.

    On a processor with AVX-512 numpy has other functions than elsewhere, and other C libraries have theirs.
    """
    assert_same(trained("--rounds-otherwise"), here)
