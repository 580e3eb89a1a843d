"""``python -m flows`` is ``nightquant``."""

from flows.cli import main

# Worker processes import the main module again, under another name.
if __name__ == "__main__":
    main()
