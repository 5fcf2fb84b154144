"""`python -m flegel` is the command line, also where no console script was installed."""

from __future__ import annotations

from flegel.cli import main

if __name__ == "__main__":
    main()
