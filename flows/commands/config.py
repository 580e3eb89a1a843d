"""``nightquant config``: the settings and where each comes from."""

from __future__ import annotations

import click

from flows.options import format_option


@click.command()
@format_option("table", "json")
def command(format: str) -> None:
    """Show every setting, its value and where it comes from; secrets are never shown.

    \b
    Example:
      nightquant config
      NIGHTQUANT_STORE=/srv/nightquant nightquant config
    """
    import json

    from flows.settings import Settings, load_settings, source_of

    settings = load_settings()
    shown = settings.model_dump(mode="json")
    if format == "json":
        click.echo(json.dumps(shown, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Settings (flag beats NIGHTQUANT_… variable beats nightquant.toml)")
    for heading in ("setting", "value", "from", "meaning"):
        table.add_column(heading, overflow="fold")
    for name, field in Settings.model_fields.items():
        table.add_row(name, str(shown[name]), source_of(name), field.description or "")
    Console().print(table)
