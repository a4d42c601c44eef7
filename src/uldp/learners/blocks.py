"""Layers of our own for models of ``nn.Sequential``. Like torch's standard layers, they have kernels.

>>> import torch
>>> from torch import nn
>>> model = nn.Sequential(Embedding(10, 4, columns=2), Residual(nn.Sequential(nn.Linear(9, 9), nn.ReLU())))
>>> model(torch.tensor([[3.0, 9.0, 0.5]])).shape
torch.Size([1, 9])
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from uldp.errors import ModelError
from uldp.limits import MAX_PARAMETERS, check_whole


class Residual(nn.Module):
    """y = x + f(x), for an f that keeps the shape of its input.

    >>> double = Residual(nn.Identity())
    >>> double(torch.ones(1, 2)).tolist()
    [[2.0, 2.0]]
    """

    def __init__(self, f: nn.Module) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.f(x.clone())  # layers that work in place would change x too
        if y.shape != x.shape:  # broadcasting would add them all the same
            change = f"features of shape {tuple(x.shape[1:])} into {tuple(y.shape[1:])}"
            raise ModelError(f"a Residual's layers turn {change}; they must keep the shape", location="model")
        return x + y


class Embedding(nn.Module):
    """Vectors for categories: the first ``columns`` of the features hold numbers of categories, all by default.

    Features are real numbers here, so ``nn.Embedding`` itself cannot take them. Each category c of 0..categories - 1
    has a row of ``dimension`` trained numbers, shared by the columns. A record becomes the rows of its categories side
    by side, then its other columns as they are: (records, columns * dimension + others).

    Fractions are dropped. A number below 0 or beyond the last category is an unknown category and gives zeros, as in
    one-hot encoding; NaN and infinity give NaN.

    >>> layer = Embedding(3, 2)
    >>> _ = layer.weight.data.copy_(torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]))
    >>> layer(torch.tensor([[2.0, 0.0], [-1.0, 3.0]])).tolist()
    [[4.0, 5.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
    """

    def __init__(self, categories: int, dimension: int, columns: int | None = None) -> None:
        super().__init__()
        self.categories = check_whole(categories, 1, MAX_PARAMETERS, "model.categories")
        self.dimension = check_whole(dimension, 1, MAX_PARAMETERS, "model.dimension")
        self.columns = None if columns is None else check_whole(columns, 1, MAX_PARAMETERS, "model.columns")
        self.weight = nn.Parameter(torch.randn(categories, dimension))

    def extra_repr(self) -> str:
        return f"{self.categories}, {self.dimension}, columns={self.columns}"

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 2 or x.shape[1] < (self.columns or 1):
            wanted = f"rows of at least {self.columns or 1} column(s)"
            raise ModelError(
                f"an Embedding takes {wanted}, not features of shape {tuple(x.shape[1:])}", location="model"
            )
        values, others = x.tensor_split([x.shape[1] if self.columns is None else self.columns], 1)
        known = (values >= 0) & (values < self.categories)
        rows = nn.functional.embedding(torch.where(known, values, 0.0).long(), self.weight)
        rows = torch.where(known[:, :, None], rows, 0.0)
        rows = torch.where(values.isfinite()[:, :, None], rows, math.nan)
        return torch.cat([rows.flatten(1), others], 1)
