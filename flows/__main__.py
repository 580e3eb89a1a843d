"""Run ``nightquant`` with ``python -m flows``."""

from flows.cli import main

# Worker processes import this module but must not run `main`.
if __name__ == "__main__":
    main()
