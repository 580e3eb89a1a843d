"""``nightquant workloads``: list or check workload files."""

from __future__ import annotations

import click

from flows.options import format_option, workload_option


@click.command()
@workload_option
@format_option("table", "json")
def command(workload: tuple[str, ...], format: str) -> None:
    """List the workloads with their recipes, or check your own workload files.

    \b
    Example:
      nightquant workloads
      nightquant workloads --workload my-model.toml
    """
    from flows.request import NightlyRequest

    found = NightlyRequest(workloads=workload).load_workloads()
    if format == "json":
        click.echo("[" + ",\n".join(one.model_dump_json() for one in found) + "]")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Workloads")
    for heading in ("workload", "description", "data", "model", "candidates", "baseline"):
        table.add_column(heading, overflow="fold")
    for one in found:
        table.add_row(
            one.name,
            one.description,
            one.data.kind,
            one.model.kind,
            "\n".join(one.candidates()),
            one.benchmark.baseline,
        )
    Console().print(table)
