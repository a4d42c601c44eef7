"""Start a program that ends when whoever started it is gone: ``python -m uldp.runtimes.flower.launch PROGRAM ...``."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask Linux for a signal when the parent dies, then become the program. Elsewhere it is only started."""
    parent = int(sys.argv[1])
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            raise SystemExit("uldp: who started this has gone")
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
