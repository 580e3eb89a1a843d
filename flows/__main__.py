"""Run ``nightquant`` with ``python -m flows``."""

from flows.cli import main

# Worker processes import this module again under another name.
if __name__ == "__main__":
    main()
