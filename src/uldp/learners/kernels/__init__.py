"""Compiled kernels that train one user at a time.

``program`` turns a model into a table of operations on one flat workspace; ``interpreter`` is the one compiled
function that runs it. The other modules hold the kernels: each is small, and its docstring is its formula.

*Why results are the same bits everywhere.* Every sum is taken in an order that follows from the shapes alone, every
fused multiply-add is written out (``simd.fma``), and exp, log, tanh and erf are written out too (``maths``). The
compiler is left no choice that changes a result: LLVM neither reorders nor contracts floating-point operations that
carry no fast-math flags, and theirs carry none.

*Why nothing passes from one user to the next.* Every value that a kernel reads was written for the same user before,
except in the gaps at the end of a row: what is computed from a gap is stored in a gap, or not at all
(``simd.store_tail``).
"""

from pathlib import Path
from typing import Final

from uldp.native.sources import Sources

#: Files without compiled functions; all others count.
ORDINARY: Final = (
    "__init__.py",
    "__main__.py",
    "chain.py",
    "forms.py",
    "layers.py",
    "program.py",
    "runner.py",
    "support.py",
    "workspace.py",
)

#: First of all: these are the files as this process imports them.
SOURCES: Final = Sources("kernels", (path for path in Path(__file__).parent.glob("*.py") if path.name not in ORDINARY))
