"""``nightquant handoff``: commands for people who deploy bundles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from flows.commands import (
    FILE,
    by_option,
    format_option,
    print_json,
    reason_option,
    store_option,
    workload_argument,
)
from flows.settings import load_settings
from storage.bundles import BundleStore
from storage.errors import BundleError, StoreError
from storage.pointer import CURRENT, Pointer, location_of, read_current
from storage.seal import SUMS, check_sums, read_public_key
from tasks.publish.verify import VerificationReport
from tasks.publish.verify import verify as verify_bundle


@click.group()
def command() -> None:
    """List, show, verify, sign, promote or roll back bundles.

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
            "location": bundles.root.uri(location_of(entry.workload, entry.version)),
        }
        for entry in bundles.entries(workload)
    ]
    if format == "json":
        print_json(rows)
        return
    for row in rows:
        click.echo(f"{row['workload']:<16} {row['version']}  {row['state']:<9}  {row['location']}")
    if not rows:
        click.echo(f"{store} has no bundles yet. A run builds a bundle for each workload with a promoted candidate.")


@command.command()
@workload_argument
@click.argument("version", required=False)
@click.option("--history", is_flag=True, help="Show the workload's promotions and rollbacks as JSON.")
@store_option
def show(workload: str, version: str | None, history: bool, store: str) -> None:
    """Show the model card of WORKLOAD's current bundle, or of the bundle VERSION.

    \b
    Example:
      nightquant handoff show word-lm
      nightquant handoff show word-lm --history
    """
    bundles = BundleStore(store)
    chosen = bundles.require(workload, version)
    if history:
        pointer = bundles.pointer(workload)
        print_json({} if pointer is None else pointer.model_dump(mode="json", exclude_none=True))
        return
    folder = bundles.local_folder(workload, chosen)
    check_sums(folder)
    click.echo((folder / "MODEL_CARD.md").read_text("utf-8"))


@command.command()
@workload_argument
@click.argument("version")
@reason_option("Record this reason in the history.")
@by_option
@store_option
def promote(workload: str, version: str, reason: str, by: str, store: str) -> None:
    """Make VERSION the current bundle of WORKLOAD, even if VERSION was withdrawn.

    The replaced bundle is not withdrawn. A later run replaces VERSION only if another candidate is clearly better,
    VERSION fails the gate, or the workload's checkpoint changes.

    \b
    Example:
      nightquant handoff promote word-lm 2026-11-21-0123456789ab --reason "known to work"
    """
    bundles = BundleStore(store, load_settings().signer())
    before = bundles.pointer(workload)
    _show_switch(before, bundles.promote_by_hand(workload, version, by=by, reason=reason))


@command.command()
@workload_argument
@click.option("--to", "version", metavar="VERSION", help="Make this bundle current (default: the previous bundle).")
@click.option("--from", "replacing", metavar="VERSION", help="Withdraw this bundle, but only if it is current.")
@reason_option("Record this reason in the history.")
@by_option
@store_option
def rollback(workload: str, version: str | None, replacing: str | None, reason: str, by: str, store: str) -> None:
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
    _show_switch(before, bundles.roll_back(workload, version, by=by, reason=reason, replacing=replacing))


def _show_switch(before: Pointer | None, pointer: Pointer) -> None:
    if before is not None and pointer.history == before.history:
        change = "nothing was changed" if pointer == before else "only its signature was renewed"
        click.echo(f"The bundle {pointer.version} is already current; {change}.", err=True)
    click.echo(f"{pointer.workload}: the current version is {pointer.version}.")
    if pointer.withdrawn:
        click.echo(f"Withdrawn: {', '.join(pointer.withdrawn)}.")


@command.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--public-key", type=FILE, help="Accept only signatures that match this P-256 public key (PEM file).")
@click.option("--workload", "-w", help="Accept only the bundle named in this workload's signed current.json.")
@click.option(
    "--state",
    type=FILE,
    help="Store each workload's highest serial number in this file, and refuse lower serial numbers.",
)
@format_option("text", "json")
@click.pass_context
def verify(
    context: click.Context, path: Path, public_key: Path | None, workload: str | None, state: Path | None, format: str
) -> None:
    """Verify the files, signature, manifest and model outputs of the bundle in the folder PATH.

    With --workload, PATH is a folder that contains current.json and several bundles, or a bundle next to current.json;
    the command then accepts only the current bundle. A separate process loads the model, but only after the checksums
    match. Exit code 1 means that the bundle was refused.

    \b
    Example:
      nightquant handoff verify word-lm-2026-11-21-0123456789ab --public-key signing-key.pub
      nightquant handoff verify mirror/handoff/word-lm --workload word-lm --public-key signing-key.pub --state seen.json
    """
    key = read_public_key(public_key) if public_key else None
    if workload is None:
        if state:
            raise click.UsageError("--state requires --workload.")
        report = verify_bundle(path, key)
    elif key is None:
        raise click.UsageError(
            "--workload requires --public-key, because only a signature proves that current.json is genuine. "
            "Add --public-key FILE."
        )
    else:
        # Only a bundle's own folder contains ``SHA256SUMS``.
        is_bundle = (path / SUMS).exists()
        try:
            pointer = read_current((path.absolute().parent if is_bundle else path) / CURRENT, workload, key, state)
        except (BundleError, StoreError) as error:
            report = VerificationReport(path, "pointer", str(error))
        else:
            report = verify_bundle(path if is_bundle else path / pointer.version, pointer=pointer)
    if format == "json":
        print_json(asdict(report) | {"ok": report.ok})
    else:
        click.echo("\n".join(_lines(report)))
    context.exit(0 if report.ok else 1)


def _lines(report: VerificationReport) -> Iterator[str]:
    if not report.ok:
        yield f"REFUSED at the {report.stage}: {report.problem}"
        return
    yield f"good: {report.workload} {report.version}"
    yield f"  SHA256SUMS  {report.sha256sums}"
    yield f"  signature   {report.signature}"
    if report.expires_at is not None:
        yield f"  current     {report.path}, valid until {report.expires_at:%Y-%m-%d %H:%M} UTC"
    yield from (f"  {name:<10}  differs by at most {value:.3g}" for name, value in report.differences.items())


@command.command()
@workload_argument
@click.argument("version", required=False)
@store_option
def sign(workload: str, version: str | None, store: str) -> None:
    """Sign WORKLOAD's current bundle, or the bundle VERSION, with the key in NIGHTQUANT_SIGNING_KEY.

    The command verifies the bundle and signs it. If the bundle is current, the command also signs current.json. Use
    this command if a bundle was built without a key, the key has changed, or a signature has expired. Inspect the
    bundle before you sign it.

    \b
    Example:
      nightquant handoff sign word-lm
    """
    bundles = BundleStore(store, load_settings().signer())
    bundles.pointers.require_signer()
    chosen = bundles.require(workload, version)
    report = verify_bundle(bundles.local_folder(workload, chosen))
    if not report.ok:
        raise BundleError(
            f"The bundle {chosen} of {workload} was not signed, because verification failed: {report.problem}",
            hint="Restore the bundle from a backup, or promote another bundle.",
        )
    signed = bundles.sign(workload, chosen, report.sha256sums)
    current = "" if signed is None else ", which is current"
    click.echo(f"{workload}: signed {chosen}{current}; the digest of SHA256SUMS is {report.sha256sums}.")
