"""``nightquant handoff``: commands for people who deploy bundles."""

from __future__ import annotations

import json
from pathlib import Path

import click

from flows.commands import (
    by_option,
    complete_workload,
    format_option,
    print_json,
    print_result,
    reason_option,
    store_option,
    workload_argument,
)
from flows.commands.trust import sign, verify
from flows.settings import load_settings
from storage.bundles import BundleStore
from storage.copies import export_bundle
from storage.pointer import Pointer
from storage.seal import MANIFEST, check_sums, read_file


@click.group()
def command() -> None:
    """List, show, verify, sign, export, promote or roll back bundles.

    \b
    Example:
      nightquant handoff list
      nightquant handoff verify nightquant-store/handoff/word-lm/2026-11-21-0123456789ab
    """


command.add_command(verify)
command.add_command(sign)


@command.command("list")
@click.argument("workload", required=False, shell_complete=complete_workload)
@format_option("table", "json")
@store_option
def list_bundles(workload: str | None, format: str, store: str) -> None:
    """List all bundles, or only the bundles of WORKLOAD.

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
    lines = [f"{row['workload']:<16} {row['version']}  {row['state']:<9}  {row['location']}" for row in rows]
    none = f"{store} has no bundles yet. A run builds a bundle for each workload with a promoted candidate."
    print_result(format, rows, lines or [none])


@command.command()
@workload_argument
@click.argument("version", required=False)
@click.option("--history", is_flag=True, help="Show the workload's promotions and rollbacks as JSON.")
@click.option("--manifest", is_flag=True, help="Show the bundle's manifest as JSON.")
@format_option("text", "json")
@store_option
def show(workload: str, version: str | None, history: bool, manifest: bool, format: str, store: str) -> None:
    """Show the model card of WORKLOAD's current bundle, or of the bundle VERSION.

    The JSON output also contains the manifest and the history.

    \b
    Example:
      nightquant handoff show word-lm
      nightquant handoff show word-lm --history
    """
    bundles = BundleStore(store)
    chosen = bundles.require(workload, version)
    pointer = bundles.pointer(workload)
    switches = {} if pointer is None else pointer.model_dump(mode="json", exclude_none=True)
    if history:
        print_json(switches)
        return
    folder = bundles.local_folder(workload, chosen)
    sums = check_sums(folder)
    card, document = (read_file(folder, name, sums).decode() for name in ("MODEL_CARD.md", MANIFEST))
    if format == "json" and not manifest:
        print_json({"version": chosen, "card": card, "manifest": json.loads(document), "current": switches})
        return
    click.echo(document if manifest else card)


@command.command()
@workload_argument
@click.argument("version")
@reason_option("Record this reason in the history.")
@by_option
@format_option("text", "json")
@store_option
def promote(workload: str, version: str, reason: str, by: str, format: str, store: str) -> None:
    """Make VERSION the current bundle of WORKLOAD, even if VERSION was withdrawn.

    The replaced bundle is not withdrawn. A later run replaces VERSION only if another candidate is clearly better,
    VERSION fails the gate, or the workload's checkpoint changes.

    \b
    Example:
      nightquant handoff promote word-lm 2026-11-21-0123456789ab --reason "known to work"
    """
    bundles = BundleStore(store, load_settings().signer())
    before = bundles.pointer(workload)
    _show_switch(before, bundles.promote_by_hand(workload, version, by=by, reason=reason), format)


@command.command()
@workload_argument
@click.option("--to", "version", metavar="VERSION", help="Make this bundle current (default: the previous bundle).")
@click.option("--from", "replacing", metavar="VERSION", help="Withdraw this bundle, but only if it is current.")
@reason_option("Record this reason in the history.")
@by_option
@format_option("text", "json")
@store_option
def rollback(
    workload: str, version: str | None, replacing: str | None, reason: str, by: str, format: str, store: str
) -> None:
    """Make an earlier bundle of WORKLOAD current again.

    The command withdraws the replaced bundle, and later runs do not promote a withdrawn bundle. To make a withdrawn
    bundle current again, use `rollback --to` or `promote`. If the bundle specified with --from is not the current
    bundle, or the bundle specified with --to is already current, the command changes nothing.

    \b
    Example:
      nightquant handoff rollback word-lm --reason "worse on our traffic"
      nightquant handoff rollback word-lm --from 2026-11-21-0123456789ab --reason "worse on our traffic"
    """
    bundles = BundleStore(store, load_settings().signer())
    before = bundles.pointer(workload)
    _show_switch(before, bundles.roll_back(workload, version, by=by, reason=reason, replacing=replacing), format)


def _show_switch(before: Pointer | None, pointer: Pointer, format: str) -> None:
    if before is not None and pointer.history == before.history:
        change = "nothing was changed" if pointer == before else "only its signature was renewed"
        click.echo(f"The bundle {pointer.version} is already current; {change}.", err=True)
    lines = [f"{pointer.workload}: the current version is {pointer.version}."]
    lines += [f"Withdrawn: {', '.join(pointer.withdrawn)}."] if pointer.withdrawn else []
    print_result(format, pointer.model_dump(mode="json", exclude_none=True), lines)


@command.command()
@workload_argument
@click.argument("version", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write the zip file to this path (default: WORKLOAD-VERSION.zip).",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@format_option("text", "json")
@store_option
def export(workload: str, version: str | None, output: Path | None, force: bool, format: str, store: str) -> None:
    """Write WORKLOAD's current bundle, or the bundle VERSION, to a zip file.

    \b
    Example:
      nightquant handoff export word-lm -o word-lm.zip
    """
    bundles = BundleStore(store)
    chosen = bundles.require(workload, version)
    name = f"{workload}-{chosen}"
    target = output or Path(f"{name}.zip")
    export_bundle(bundles.local_folder(workload, chosen), target, name=name, overwrite=force)
    print_result(format, {"workload": workload, "version": chosen, "file": target}, [str(target)])
