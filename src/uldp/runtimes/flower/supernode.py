"""Flower's SuperNode as a program that ends when its work does.

Where a TLS handshake fails, as in a network that comes and goes, Flower's main thread ends and another one keeps the
process: a node that looks alive and takes no message. Here the process ends, and ``join`` starts another.
"""

from __future__ import annotations

import os
import sys

from uldp.errors import first_line


def main() -> None:
    """Be ``flower-supernode`` until it ends, one way or the other."""
    from flwr.supernode.cli import flower_supernode

    code = 1
    try:
        flower_supernode()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        print(f"ERROR: the node has ended: {first_line(error)}", flush=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
