"""The `sta` command, also as `python -m sta`."""

import sys


def main() -> None:
    """Run it; Ctrl-C says nothing, not even while the command line is imported."""
    try:
        from sta.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
