"""Runtime ``eager``: the converted module called from Python, operator by operator.

There is no file that a deploy team could run without this project, so it is measured but never handed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.runtimes.base import Runtime

if TYPE_CHECKING:
    from tasks.runtimes.torch_modules import EagerMaker, EagerOpener


class Eager(Runtime):
    """Needs nothing but the converted module, which it shares."""

    distributions = ("torch",)
    hands_over = False
    runs_engine = True

    def maker(self) -> EagerMaker:
        """Import what converts modules."""
        from tasks.runtimes.torch_modules import EagerMaker

        return EagerMaker()

    def opener(self) -> EagerOpener:
        """Import what opens converted modules."""
        from tasks.runtimes.torch_modules import EagerOpener

        return EagerOpener()
