"""What layers hand on to each other, and what a layer becomes: the words in which a program is built."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from uldp.native.simd import LANES

Shape = tuple[int, ...]
IntArray = npt.NDArray[np.int64]


class NoKernelError(Exception):
    """The model has a layer, or a use of a layer, without a kernel."""


def ceiling(n: int) -> int:
    """Rounded up to whole vectors."""
    return -(-n // LANES) * LANES


@dataclass(frozen=True)
class Form:
    """What a layer hands on: ``channels`` numbers for each of ``pixels``; a table has one channel.

    ``height`` and ``width`` are there for images only. A flattened image keeps its order, channels last.
    """

    channels: int
    pixels: int
    height: int = 0
    width: int = 0

    @classmethod
    def table(cls, size: int) -> Form:
        return cls(1, size)

    @classmethod
    def image(cls, channels: int, height: int, width: int) -> Form:
        return cls(channels, height * width, height, width)

    @property
    def size(self) -> int:
        return self.channels * self.pixels

    @property
    def is_image(self) -> bool:
        return self.height > 0

    def torch_order(self) -> IntArray:
        """For each number, where torch has it: (channels, pixels) instead of (pixels, channels)."""
        return np.arange(self.size, dtype=np.int64).reshape(self.channels, self.pixels).T.reshape(-1)


@dataclass
class Operation:
    """One row in the making. ``per_record`` buffers grow with the tile, ``rooms`` do not.

    ``run`` numbers of an image's row are in a convolution's window: more than the image has where the border is wide.
    ``fork`` is the number of the operation at which the shortcut begins that ends here.
    """

    columns: dict[int, int]
    inputs: Form
    outputs: Form
    real: float = 0.0
    per_record: dict[int, int] = field(default_factory=dict)
    rooms: dict[int, int] = field(default_factory=dict)
    weight: IntArray | None = None
    bias: IntArray | None = None
    in_place: bool = False
    lists: int = 0
    run: int = 0
    products: int = 0
    fork: int | None = None
