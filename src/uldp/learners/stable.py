"""Does this machine compute one user's row alike, whoever else is in the chunk? (decision 0004)

The promise rests on matrix kernels that treat the items of a batch alike. On the processors we know they do; a short
trial at the start shows whether they do here.
"""

from __future__ import annotations

import functools

import torch

_SHAPES = ((1, 13, 1), (3, 30, 30), (7, 31, 2), (17, 5, 33), (64, 30, 10), (2, 320, 50))


@functools.cache
def rows_are_stable() -> bool:
    """Whether batched products of one item do not change, in any bit, with the item's place and the batch's size."""
    generator = torch.Generator().manual_seed(0)
    for records, inputs, outputs in _SHAPES:
        a = torch.randn((9, records, inputs), generator=generator)
        b = torch.randn((9, inputs, outputs), generator=generator)
        for left, right in ((a, b), (a.mT, torch.bmm(a, b))):
            whole = torch.bmm(left, right)
            for first, last in ((0, 2), (3, 5), (2, 9), (7, 9), (1, 6)):
                if not torch.equal(torch.bmm(left[first:last], right[first:last]), whole[first:last]):
                    return False
    return True
