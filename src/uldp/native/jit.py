"""How kernels are compiled.

Only an *entry*, the function that Python calls, is optimised and turned into machine code, together with all kernels
that it uses. By default numba does that for every function by itself, and again in each of its callers: compiling
took ten times as long.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

import llvmlite.binding
import numba
from numba import types
from numba.core import config
from numba.core.codegen import CPUCodeLibrary, JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.extending import intrinsic

CHECK_VARIABLE: Final = "ULDP_CHECK_KERNELS"
#: Compile with a check of every access (slow; for tests): set the environment variable to 1.
CHECKED: Final = os.environ.get(CHECK_VARIABLE, "") not in ("", "0")


def _features() -> set[str]:
    """What numba compiles for: this processor, or what NUMBA_CPU_FEATURES says."""
    named = config.CPU_FEATURES
    if named is not None:
        return {feature[1:] for feature in named.split(",") if feature.startswith("+")}
    return {name for name, there in llvmlite.binding.get_host_cpu_features().items() if there}


#: Whether a register holds sixteen float32 (AVX-512). It decides which numbers are computed together, not which.
LONG_REGISTERS: Final = {"avx512f", "avx512vl"} <= _features()

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: Final = {"nogil": True, "error_model": "numpy", "boundscheck": CHECKED, "fastmath": False}


class _LinkedLibrary(CPUCodeLibrary):  # type: ignore[misc]
    """Code that is linked into an entry's, and neither optimised nor turned into machine code by itself."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class _EntryLibrary(JITCodeLibrary):  # type: ignore[misc]
    """An entry with all that is linked into it. numba would optimise twice, first to count fewer references."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        passes, builder = self._codegen._module_pass_manager(slp_vectorize=False)
        passes.run(self._final_module, builder)


class _EntryCompiler(CompilerBase):  # type: ignore[misc]
    def define_pipelines(self) -> list[Any]:
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]

    def compile_extra(self, function: Any) -> Any:
        self.state.library = _EntryLibrary(self.state.targetctx.codegen(), function.__qualname__)
        self.state.library.enable_object_caching()
        collecting = gc.isenabled()
        gc.disable()  # millions of objects, hardly any of them garbage
        try:
            return super().compile_extra(function)
        finally:
            if collecting:
                gc.enable()


class _LinkedCompiler(CompilerBase):  # type: ignore[misc]
    def define_pipelines(self) -> list[Any]:
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]

    def compile_extra(self, function: Any) -> Any:
        self.state.library = _LinkedLibrary(self.state.targetctx.codegen(), function.__qualname__)
        self.state.flags.no_compile = True
        # numba knows compiled functions by a builtin that Python would call; here it is a key, and nothing else.
        result = super().compile_extra(function)._replace(entry_point=[function.__qualname__].index)
        self.state.targetctx.insert_user_function(result.entry_point, result.fndesc, [result.library])
        return result


def _inner(function: Function, **options: Any) -> Function:
    # All arrays belong to the entry's caller: counting references would cost a locked instruction in every call.
    options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False}
    compiled = numba.njit(pipeline_class=_LinkedCompiler, **_OPTIONS, **options)(function)
    template = compiled.get_call_template

    def plain(args: Any, kws: Any) -> Any:
        """numba would compile a function anew for each constant that it is called with."""
        return template([types.unliteral(a) for a in args], {name: types.unliteral(a) for name, a in kws.items()})

    compiled.get_call_template = plain
    return compiled  # type: ignore[no-any-return]


def kernel(function: Function) -> Function:
    """A kernel: called by other kernels and by entries, not by Python."""
    return _inner(function)


def inline(function: Function) -> Function:
    """A few instructions that are copied to where they are used."""
    return _inner(function, forceinline=True)


def entry(function: Function) -> Function:
    """A function that Python calls."""
    return numba.njit(pipeline_class=_EntryCompiler, **_OPTIONS)(function)  # type: ignore[no-any-return]


@intrinsic  # type: ignore[untyped-decorator]
def stay_apart(context: Any) -> Any:
    """Keep the function that says this one function: LLVM would copy a large one to each of its uses."""

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), lower
