"""The program `flegel`, and `python -m flegel` where no console script was installed.

Only waits for the command line to be imported and made up: a Ctrl-C meanwhile ends it as quietly as later.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point."""
    try:
        from flegel.cli.main import main as command_line

        command_line()
    except KeyboardInterrupt:
        print("flegel: interrupted.", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
