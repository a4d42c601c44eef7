"""The written-out functions keep their stated errors, and NaN stays NaN."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from uldp.learners.kernels import maths
from uldp.native.jit import entry
from uldp.native.simd import load, store

REFERENCES = {
    "exp": (np.exp, (1.5e-7, 3e-16)),
    "log": (np.log, (3e-7, 6e-16)),
    "tanh": (np.tanh, (4e-7, 8e-16)),
    "logistic": (lambda x: 1 / (1 + np.exp(-x)), (3e-7, 6e-16)),
    "normal": (lambda x: np.longdouble(1) * special.ndtr(x.astype(np.float64)), (3e-7, 5e-16)),
}


def compiled(name):
    function = getattr(maths, name)

    @entry
    def apply(x, y):
        for i in range(0, x.size, 8):
            store(y, i, function(load(x, i)))

    return apply


def points(name, dtype):
    wide = np.linspace(-80, 80, 40_000)
    fine = np.random.default_rng(0).normal(size=40_000)
    tiny = np.geomspace(1e-30, 80, 40_000)
    x = np.concatenate([wide, fine, tiny, -tiny]).astype(dtype)
    return np.abs(x) + dtype(1e-30) if name == "log" else x


@pytest.mark.parametrize("name", REFERENCES)
def test_errors_are_as_stated(name):
    reference, limits = REFERENCES[name]
    apply = compiled(name)
    for dtype, limit in zip((np.float32, np.float64), limits, strict=True):
        x = points(name, dtype)
        found = np.empty_like(x)
        apply(x, found)
        exact = reference(x.astype(np.longdouble))
        scale = 1.0 if name == "normal" else np.maximum(np.abs(exact), np.finfo(dtype).tiny)
        assert float((np.abs(found - exact) / scale).max()) < limit
        odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, 1.0], dtype)
        result = np.empty_like(odd)
        apply(odd, result)
        with np.errstate(all="ignore"):
            expected = reference(odd.astype(np.longdouble)).astype(dtype)
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-30)
        assert np.isnan(result[0])
