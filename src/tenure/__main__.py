"""The `tenure` command, and `python -m tenure`.

A worker can be asked to stop from its first moment on, so its signal handlers are set before the
rest of the command line is imported.
"""

import sys
from importlib import import_module

from tenure.stop_signals import end_when_asked


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["worker"]:
        end_when_asked()
    import_module("tenure.cli.main").main()


if __name__ == "__main__":
    main()
