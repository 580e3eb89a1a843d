"""The ``eager`` runtime, and the specs that it supports."""

from __future__ import annotations

from tasks.runtimes.base import WITHOUT_GROUPS, Maker, Opener, Runtime


class Eager(Runtime):
    """The converted module, which cannot run without nightquant, so the candidate is measured but never published."""

    distributions = ("torch",)
    limits = (WITHOUT_GROUPS,)
    runs_engine = True
    hands_over = False

    def maker(self) -> Maker:
        """Import and create the maker."""
        from tasks.runtimes.eager.make import EagerMaker

        return EagerMaker()

    def opener(self) -> Opener:
        """Import and create the opener."""
        from tasks.runtimes.eager.open import EagerOpener

        return EagerOpener()
