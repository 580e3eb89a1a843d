"""``nightquant doctor``: whether a benchmark on this machine can be trusted."""

from __future__ import annotations

import click

from flows.options import format_option, store_option

_COLOURS = {"ok": "green", "note": "yellow", "problem": "bold red"}


@click.command()
@store_option
@format_option("table", "json")
@click.pass_context
def command(context: click.Context, store: str, format: str) -> None:
    """Say what this machine is, whether int8 is fast on it, and whether its timings can be trusted.

    Exits with 0 only if a benchmark here can be trusted, else with 1.

    \b
    Example:
      nightquant doctor
      nightquant doctor --store /srv/nightquant --format json
    """
    import json
    from dataclasses import asdict

    from tasks.doctor import examine, trusted

    def waiting() -> None:
        click.echo("Another benchmark runs on this host: waiting for it.", err=True)

    checks = examine(store, on_wait=waiting)
    good = trusted(checks)
    if format == "json":
        click.echo(json.dumps({"trusted": good, "checks": [asdict(check) for check in checks]}, indent=1))
        context.exit(0 if good else 1)
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="Can a benchmark on this machine be trusted?")
    for heading in ("check", "", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        colour = _COLOURS[check.status]
        table.add_row(check.name, f"[{colour}]{check.status}[/]", escape(check.found), escape(check.advice))
    Console().print(table)
    click.echo("Yes: benchmarks here can be trusted." if good else "No: see what to do about each problem.")
    context.exit(0 if good else 1)
