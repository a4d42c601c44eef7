"""``python -m uldp`` is the ``uldp`` command."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # Python has put the current folder first, where a file may be called like a package of ours (uldp.plugins).
        del sys.path[0]
    from uldp.cli import main

    main()
