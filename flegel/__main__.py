"""The program `flegel`, and `python -m flegel` where no console script was installed.

Only imports and calls the command line: a Ctrl-C meanwhile ends it with one sentence, as it does later.
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
