"""Columns of images: the path of a file in every cell, which becomes an image of an agreed size and colours."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from uldp.data import values
from uldp.data.cells import NO_RULES, CellRules
from uldp.data.files import FOLDER
from uldp.data.findings import ABSENT, REPLACED, UNREADABLE, CellProblem, Matrix, find
from uldp.data.vector_columns import ZERO

if TYPE_CHECKING:
    import pandas as pd
    from PIL import Image

IMAGE_ENDINGS: Final = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
CHANNELS: Final = {"grey": 1, "rgb": 3}
MAX_PIXELS: Final = 1 << 26
"""Of a file; a few kilobytes can claim to be far more."""
_FORMATS: Final = ("PNG", "JPEG", "BMP", "TIFF")
"""What is decoded: others have decoders that start programs, or that few people look at."""
_UNSCALED: Final = ("I", "F")  # numbers of which nobody knows which is white
_GREY: Final = ("1", "L", "LA", "I;16", "I;16B", "I;16L")
_LOOKED_AT: Final = 20  # files of each table, for a draft
_LARGEST_DRAFT: Final = 64  # pixels, of a proposed height or width


@dataclass(frozen=True)
class ImageColumn:
    """Images, each resized to (channels, height, width) and scaled to [-1, 1] by itself.

    Args:
        name: The column.
        height: In pixels.
        width: In pixels.
        channels: ``"grey"`` or ``"rgb"``.
        missing: ``"zero"`` if a missing image counts as an even grey.
        rules: What happens to a file that is no image.
    """

    name: str
    height: int
    width: int
    channels: str
    missing: str | None = None
    rules: CellRules = NO_RULES

    @property
    def norm(self) -> float:
        """No bound that says anything: models of images have steps of their own."""
        return math.inf

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image, as PyTorch has it."""
        return CHANNELS[self.channels], self.height, self.width

    def feature_names(self) -> tuple[str, ...]:
        colours = ("",) if self.channels == "grey" else ("red,", "green,", "blue,")
        return tuple(
            f"{self.name}[{colour}{row},{place}]"
            for colour in colours
            for row in range(self.height)
            for place in range(self.width)
        )

    def encode(self, column: pd.Series, outside: str = "error", silo: str = "") -> tuple[Matrix, list[CellProblem]]:
        """(rows, features), and what was wrong. A file decides about its own row only."""
        folder = _folder(column)
        matrix = np.zeros((len(column), math.prod(self.shape)))
        missing, unreadable = (np.zeros(len(column), dtype=np.bool_) for _ in range(2))
        for row, cell in enumerate(values.cells(column)):
            if values.is_missing(cell):
                missing[row] = True
            elif (pixels := self.read(cell, folder)) is None:
                unreadable[row] = True
            else:
                matrix[row] = pixels.ravel()
        what = f"no image file ({', '.join(_FORMATS)})"
        if outside == "missing":
            findings = find(REPLACED, column, unreadable, what)
            missing |= unreadable
        else:
            findings = find(UNREADABLE, column, unreadable, what)
        findings += [] if self.missing == ZERO else find(ABSENT, column, missing, "missing")
        return matrix, findings

    def read(self, cell: object, folder: Path) -> npt.NDArray[np.float64] | None:
        """The image in the file that a cell names; None if there is none."""
        image = open_image(cell, folder)
        if image is None:
            return None
        from PIL import Image

        plain = _plain(image, self.channels).resize((self.width, self.height), Image.Resampling.BILINEAR)
        pixels = np.asarray(plain, dtype=np.float64).reshape(self.height, self.width, -1)
        return np.asarray(np.moveaxis(pixels, -1, 0) / 127.5 - 1)

    def to_dict(self) -> dict[str, Any]:
        missing = {} if self.missing is None else {"missing": self.missing}
        size = {"size": [self.height, self.width], "channels": self.channels}
        return {"kind": "image"} | size | missing | self.rules.to_dict()


def open_image(cell: object, folder: Path) -> Image.Image | None:
    """The first picture of the file that a cell names, turned as the camera says; None if it cannot be had."""
    if not isinstance(cell, str):
        return None
    from PIL import Image, ImageOps

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they name the file
        try:
            path = folder / cell.strip()
            if not path.is_file():
                return None
            with Image.open(path, formats=_FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    return None
                image.load()
                return None if image.mode in _UNSCALED else ImageOps.exif_transpose(image)
        except Exception:  # decoders of damaged files raise whatever they run into
            return None


def _plain(image: Image.Image, channels: str) -> Image.Image:
    """With 8 bits a pixel in the agreed colours; what is transparent is black."""
    from PIL import Image

    if image.mode.startswith("I;16"):  # a plain conversion would make nearly all of it white
        scaled = np.asarray(image, dtype=np.float64) / 257
        image = Image.fromarray(scaled.round().astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        layered = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layered.size, (0, 0, 0, 255)), layered)
    return image.convert("L" if channels == "grey" else "RGB")


def propose_image(columns: Sequence[pd.Series], *, from_data: bool, partial: bool) -> dict[str, Any] | None:
    """What a draft says of a column that names image files; None if it does not.

    Args:
        columns: Its cells in every table that has it.
        from_data: Whether size and colours are proposed: those of most of the first files, at most 64 pixels a side.
        partial: Whether some tables do not have the column.
    """
    found = [[cell for cell in values.cells(column) if not values.is_missing(cell)] for column in columns]
    cells = [cell for table in found for cell in table]
    if not cells or not all(isinstance(cell, str) and cell.strip().lower().endswith(IMAGE_ENDINGS) for cell in cells):
        return None
    size: Any = []
    channels = ""
    if from_data and (images := _first_images(columns, found)):
        size = [min(side, _LARGEST_DRAFT) for side in Counter(one.size[::-1] for one in images).most_common(1)[0][0]]
        channels = "grey" if all(one.mode in _GREY for one in images) else "rgb"
    missing = {"missing": ZERO} if partial or len(cells) < sum(map(len, columns)) else {}
    return {"kind": "image", "size": size, "channels": channels} | missing


def _first_images(columns: Sequence[pd.Series], cells: Sequence[Sequence[object]]) -> list[Image.Image]:
    opened = (
        open_image(cell, _folder(column))
        for column, table in zip(columns, cells, strict=True)
        for cell in table[:_LOOKED_AT]
    )
    return [image for image in opened if image is not None]


def _folder(column: pd.Series) -> Path:
    return Path(column.attrs.get(FOLDER, ""))
