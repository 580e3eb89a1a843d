"""``MODEL_CARD.md``: the manifest for people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.runtimes.base import Runtime

TEMPLATE = Path(__file__).with_name("card.md.j2")


def model_card(manifest: Mapping[str, object], runtime: Runtime, *, signed: bool) -> str:
    """Render the card; it says nothing that the manifest does not hold."""
    from jinja2 import ChainableUndefined, Environment

    # Markdown, never shown as HTML by this project; rows lack what was not measured, hence the lenient undefined.
    environment = Environment(
        autoescape=False, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=ChainableUndefined
    )
    environment.filters.update(bytes=_bytes, number=_number, seconds=_seconds)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    usage = environment.from_string(runtime.usage).render(m=manifest)
    return template.render(m=manifest, runtime=runtime, usage=usage, signed=signed)


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "–"


def _bytes(value: object) -> str:
    return f"{value / 1e6:.3f} MB" if isinstance(value, int | float) else "–"


def _seconds(value: object) -> str:
    return f"{value * 1e3:.4g} ms" if isinstance(value, int | float) else "–"
