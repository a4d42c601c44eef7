"""Whether kernels can be used on this machine."""

from __future__ import annotations

import functools
import platform


@functools.cache
def unavailable_reason() -> str:
    """The reason why kernels cannot be used here; empty where they can."""
    try:
        import llvmlite.binding
        from numba.core import config
    except ImportError as error:
        return f"numba cannot be imported ({error})"
    if config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set"
    if platform.machine().lower() in ("x86_64", "amd64"):
        named = config.CPU_FEATURES
        features = llvmlite.binding.get_host_cpu_features()
        if not (features.get("fma", False) if named is None else "+fma" in named.split(",")):
            return "this processor has no fused multiply-add"
    return ""
