"""``python -m uldp`` is the ``uldp`` command."""

from uldp.cli import main

if __name__ == "__main__":
    main()
