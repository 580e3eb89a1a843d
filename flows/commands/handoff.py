"""``nightquant handoff``: the bundles, for those who deploy them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from flows.commands import format_option, store_option, user_name
from storage.bundles import BundleStore
from storage.seal import check_sums, export_bundle
from tasks.bundle.verify import VerificationReport
from tasks.bundle.verify import verify as verify_bundle


@click.group()
def command() -> None:
    """List, show, verify, export or roll back bundles.

    \b
    Example:
      nightquant handoff list
      nightquant handoff verify nightquant-store/handoff/word-lm/2026-11-21-0123456789ab
    """


@command.command("list")
@click.argument("workload", required=False)
@format_option("table", "json")
@store_option
def list_bundles(workload: str | None, format: str, store: str) -> None:
    """List every bundle, or those of one WORKLOAD.

    \b
    Example:
      nightquant handoff list word-lm
    """
    bundles = BundleStore(store)
    if workload is not None:
        bundles.require(workload)
    rows = [
        {
            "workload": entry.workload,
            "version": entry.version,
            "state": "current" if entry.is_current else "withdrawn" if entry.is_withdrawn else "",
            "location": bundles.root.uri(entry.location),
        }
        for entry in bundles.entries(workload)
    ]
    if format == "json":
        click.echo(json.dumps(rows, indent=1))
        return
    if not rows:
        click.echo(f"No bundles in {store} yet: a night makes one of each workload with a promoted candidate.")
    for row in rows:
        click.echo(f"{row['workload']:<16} {row['version']}  {row['state']:<9}  {row['location']}")


@command.command()
@click.argument("workload")
@click.argument("version", required=False)
@click.option("--history", is_flag=True, help="Show how it came to be current, as JSON.")
@click.option("--manifest", is_flag=True, help="Show the manifest, as JSON.")
@store_option
def show(workload: str, version: str | None, history: bool, manifest: bool, store: str) -> None:
    """Show the model card of WORKLOAD's current bundle, or of VERSION.

    \b
    Example:
      nightquant handoff show word-lm
      nightquant handoff show word-lm --history
    """
    bundles = BundleStore(store)
    chosen = bundles.require(workload, version)
    if history:
        pointer = bundles.pointer(workload)
        click.echo(pointer.model_dump_json(indent=1) if pointer is not None else "{}")
        return
    folder = bundles.local_folder(workload, chosen)
    check_sums(folder)
    click.echo((folder / ("manifest.json" if manifest else "MODEL_CARD.md")).read_text(encoding="utf-8"))


@command.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--public-key",
    type=click.Path(path_type=Path, dir_okay=False),
    help="PEM file of the Ed25519 key that must have signed it.",
)
@format_option("text", "json")
@click.pass_context
def verify(context: click.Context, path: Path, public_key: Path | None, format: str) -> None:
    """Verify the bundle in the folder PATH: files, signature, manifest, then what the model computes.

    Nothing is loaded before the checksums hold, and the model only in a process of its own. Exit code 1: refused.

    \b
    Example:
      nightquant handoff verify word-lm-2026-11-21-0123456789ab --public-key signing-key.pub
    """
    report = verify_bundle(path, public_key)
    shown = asdict(report) | {"path": str(report.path), "ok": report.ok}
    click.echo(json.dumps(shown, indent=1) if format == "json" else _as_text(report))
    context.exit(0 if report.ok else 1)


def _as_text(report: VerificationReport) -> str:
    if not report.ok:
        return f"REFUSED at the {report.stage}: {report.problem}"
    lines = [f"good: {report.workload} {report.version}", f"  SHA256SUMS  {report.sha256sums}"]
    lines.append(f"  signature   {report.signature}")
    lines += [f"  {name:<10}  differs by at most {value:.3g}" for name, value in report.differences.items()]
    return "\n".join(lines)


@command.command()
@click.argument("workload")
@click.option("--to", "version", metavar="VERSION", help="The bundle to go to (default: the one before).")
@click.option("--reason", required=True, help="Why; it is kept in the history.")
@click.option("--by", metavar="NAME", help="Who (default: the user's name).")
@store_option
def rollback(workload: str, version: str | None, reason: str, by: str | None, store: str) -> None:
    """Make an earlier bundle of WORKLOAD current again.

    What was current is withdrawn: no night promotes it again by itself; rolling back --to it does.

    \b
    Example:
      nightquant handoff rollback word-lm --reason "worse on our traffic"
    """
    pointer = BundleStore(store).roll_back(workload, version, by=by or user_name(), reason=reason)
    click.echo(f"{workload}: current is {pointer.version}.")
    if pointer.withdrawn:
        click.echo(f"Withdrawn: {', '.join(pointer.withdrawn)}.")


@command.command()
@click.argument("workload")
@click.argument("version", required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="FILE.zip or FILE.tar.zst.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@store_option
def export(workload: str, version: str | None, output: Path | None, force: bool, store: str) -> None:
    """Write WORKLOAD's current bundle, or VERSION, into one file for carrying away.

    \b
    Example:
      nightquant handoff export word-lm -o word-lm.zip
    """
    bundles = BundleStore(store)
    chosen = bundles.require(workload, version)
    name = f"{workload}-{chosen}"
    target = output or Path(f"{name}.tar.zst")
    export_bundle(bundles.local_folder(workload, chosen), target, name=name, overwrite=force)
    click.echo(str(target))
