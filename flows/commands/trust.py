"""``nightquant handoff verify`` and ``sign``: verify and sign bundles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from flows.commands import FILE, format_option, print_result, store_option, workload_argument
from flows.settings import load_settings
from storage.bundles import BundleStore
from storage.errors import BundleError, StoreError
from storage.pointer import CURRENT, read_current
from storage.seal import SUMS
from storage.signing import read_public_key
from tasks.bundle.verify import VerificationReport
from tasks.bundle.verify import verify as verify_bundle


@click.command()
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
    print_result(format, asdict(report) | {"ok": report.ok}, _lines(report))
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


@click.command()
@workload_argument
@click.argument("version", required=False)
@format_option("text", "json")
@store_option
def sign(workload: str, version: str | None, format: str, store: str) -> None:
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
    state = {"workload": workload, "version": chosen, "sha256sums": report.sha256sums, "is_current": signed is not None}
    current = "" if signed is None else ", which is current"
    line = f"{workload}: signed {chosen}{current}; SHA256SUMS has the digest {report.sha256sums}."
    print_result(format, state, [line])
