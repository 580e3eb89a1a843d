"""``python -m flows`` is ``nightquant``."""

from flows.cli import main

main()
