"""torch's initialisers with draws that are the same bits on every processor.

torch draws the same whole numbers everywhere, and turns them into uniform and normal numbers by code that depends on
the processor's instruction set: an initial model differed in the last bits. Here the whole numbers are torch's, and the
rest is written out. Uniform numbers are those that torch gives on a processor with fused multiply-add (but for one in
2^29, rounded twice); normal ones follow the same law as torch's and have other values.

Other draws are left to torch, and so are initialisers that compute with what they drew (``trunc_normal_``,
``orthogonal_``): those may differ between processors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from uldp.elementary import Floats, normal_pairs

_BITS: Final = {torch.float32: 24, torch.float64: 53}
_aten: Final = torch.ops.aten


def _words(count: int, bits: int, generator: torch.Generator | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    return torch.empty(count, dtype=torch.int64).random_(0, 2**bits, generator=generator).numpy()


def _fill(target: Tensor, values: Floats) -> Tensor:
    return target.copy_(torch.from_numpy(values).reshape(target.shape))


def _uniform(
    target: Tensor, low: float = 0.0, high: float = 1.0, *, generator: torch.Generator | None = None
) -> Tensor:
    bits = _BITS[target.dtype]
    real = np.float32 if target.dtype == torch.float32 else np.float64
    width = real(high) - real(low)
    # A product of two float32 is exact in float64, so that a float32 is rounded once here, as by a fused operation.
    fractions = _words(target.numel(), bits, generator).astype(np.float64) * 2.0**-bits
    return _fill(target, fractions * float(width) + float(real(low)))


def _normal(target: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
    pairs = (target.numel() + 1) // 2
    words = _words(2 * pairs, 53, generator).view(np.uint64)
    return _fill(target, normal_pairs(words[:pairs], words[pairs:])[: target.numel()] * std + mean)


_IN_PLACE: Final[dict[Any, Callable[..., Tensor]]] = {_aten.uniform_.default: _uniform, _aten.normal_.default: _normal}
_NEW: Final[dict[Any, Callable[..., Tensor]]] = {_aten.rand.default: _uniform, _aten.randn.default: _normal}


class WrittenOutDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, uniform and normal numbers of torch are drawn as this module says."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler for that, which takes two seconds."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _IN_PLACE and args[0].dtype in _BITS and args[0].device.type == "cpu":
            return _IN_PLACE[func](*args, **kwargs)
        found = func(*args, **kwargs)
        if func in _NEW and found.dtype in _BITS and found.device.type == "cpu":
            return _NEW[func](found)
        return found
