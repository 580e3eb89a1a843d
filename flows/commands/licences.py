"""``nightquant licences``: what is installed here, and under which terms."""

from __future__ import annotations

import re
from dataclasses import asdict

import click

from flows.commands import format_option, print_json
from tasks.packages import installed_packages

# Terms that ask something of who passes the package on, or that only a person can judge.
_CONDITIONS = re.compile(r"GPL|General Public|MPL|Mozilla|EPL|Eclipse|CDDL|EUPL|Propriet|NVIDIA", re.IGNORECASE)


@click.command()
@format_option("table", "json")
def command(format: str) -> None:
    """List every installed package with its version and the licence that it states.

    Those that ask something of who passes them on, and those that state nothing, are marked with a *. Nothing is
    fetched; docs/security.md says what they mean for users, and how known vulnerabilities are looked up.

    \b
    Example:
      nightquant licences
      nightquant licences --format json
    """
    rows = [
        asdict(each) | {"look": not each.licence or bool(_CONDITIONS.search(each.licence))}
        for each in installed_packages()
    ]
    if format == "json":
        print_json(rows)
        return
    for row in rows:
        mark = "*" if row["look"] else " "
        click.echo(f"{mark} {row['name']:<32} {row['version']:<18} {row['licence'] or 'not stated'}")
    click.echo(f"{len(rows)} packages, {sum(row['look'] for row in rows)} of them to look at (*).")
