"""The command line. Nothing here is imported by the library."""

from __future__ import annotations


def main() -> None:
    """The entry point ``uldp``."""
    import sys

    try:
        from uldp.cli.app import app

        app()
    except KeyboardInterrupt:  # while modules are loaded
        print("stopped; nothing was started.", file=sys.stderr)
        raise SystemExit(130) from None
