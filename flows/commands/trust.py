"""``nightquant handoff verify`` and ``sign``: verify and sign bundles."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import click

from flows.commands import FILE, age_option, format_option, print_result, store_option, workload_argument
from flows.settings import load_settings
from storage.bundles import BundleStore
from storage.errors import BundleError
from storage.pointer import stated
from storage.seal import SUMS
from storage.trust import public_keys
from tasks.bundle.verify import VerificationReport
from tasks.bundle.verify import verify as verify_bundle


def _min_version(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if value and not re.fullmatch(r"\d{4}-\d{2}-\d{2}(-[0-9a-f]{12})?", value):
        raise click.BadParameter(
            f"{value!r} is neither a version nor a date; give a version or a date, for instance 2026-11-21"
        )
    return value


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--public-key",
    type=FILE,
    multiple=True,
    help="Accept signatures that match this Ed25519 public key (PEM file); repeatable.",
)
@click.option("--workload", "-w", help="Accept only the bundle named in this workload's signed current.json.")
@click.option(
    "--pointer",
    type=FILE,
    help="Read this current.json (default: the file in PATH, or next to PATH if PATH is a bundle).",
)
@click.option(
    "--threshold",
    type=click.IntRange(min=1),
    default=1,
    help="Require valid signatures that match at least this many of the public keys.",
)
@click.option(
    "--min-version", default="", callback=_min_version, help="Refuse bundles that are older than this version or date."
)
@age_option("--max-age", help="Refuse signatures that are older than AGE, for instance 26h.")
@click.option(
    "--state",
    type=FILE,
    help="Store each workload's highest serial number in this file, and refuse lower serial numbers.",
)
@format_option("text", "json")
@click.pass_context
def verify(
    context: click.Context,
    path: Path,
    public_key: tuple[Path, ...],
    workload: str | None,
    pointer: Path | None,
    threshold: int,
    min_version: str,
    max_age: dt.timedelta | None,
    state: Path | None,
    format: str,
) -> None:
    """Verify the files, signature, manifest and model outputs of the bundle in the folder PATH.

    With --workload, PATH can also be a folder that contains current.json and several bundles; the command then verifies
    the current bundle. A separate process loads the model, but only after the checksums match. Exit code 1 means that
    the bundle was refused.

    \b
    Example:
      nightquant handoff verify word-lm-2026-11-21-0123456789ab --public-key signing-key.pub
      nightquant handoff verify mirror/handoff/word-lm --workload word-lm --public-key signing-key.pub --state seen.json
    """
    keys = public_keys(public_key)
    if workload is None:
        if pointer or threshold > 1 or min_version or max_age or state:
            raise click.UsageError("--pointer, --threshold, --min-version, --max-age and --state require --workload.")
        report = verify_bundle(path, keys)
    else:
        if not keys:
            raise click.UsageError(
                "--workload requires --public-key, because only a signature proves that current.json is genuine. "
                "Add --public-key FILE."
            )
        # Only a bundle's own folder contains ``SHA256SUMS``.
        has_bundles = not (path / SUMS).exists() and (path / "current.json").exists()
        pointer = pointer or (path if has_bundles else path.absolute().parent) / "current.json"
        try:
            statement = stated(
                pointer, workload, keys, threshold=threshold, min_version=min_version, max_age=max_age, state=state
            )
        except BundleError as error:
            report = VerificationReport(path, "pointer", str(error))
        else:
            report = verify_bundle(path / statement.version if has_bundles else path, statement=statement)
            report = replace(report, expires_at=statement.expires_at)
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
@click.option(
    "--public-key",
    type=FILE,
    multiple=True,
    help="Sign only if current.json already has a signature that matches this public key; repeatable.",
)
@format_option("text", "json")
@store_option
def sign(workload: str, version: str | None, public_key: tuple[Path, ...], format: str, store: str) -> None:
    """Sign WORKLOAD's current bundle, or the bundle VERSION, with the key in NIGHTQUANT_SIGNING_KEY.

    The command verifies the bundle and signs its list of files. If the bundle is current, the command also signs
    current.json. Use this command if a bundle was built without a key, the key has changed, or a signature has expired.
    Inspect the bundle before you sign it.

    \b
    Example:
      nightquant handoff sign word-lm
      nightquant handoff sign word-lm --public-key night.pub
    """
    bundles, trusted = BundleStore(store, load_settings().signer()), public_keys(public_key)
    bundles.pointers.require_signer()
    if public_key and version:
        raise click.UsageError(
            "--public-key cannot be used with VERSION, because --public-key applies only to the current bundle. "
            "Omit VERSION."
        )
    chosen = bundles.require(workload, version)
    pointer = bundles.pointer(workload)
    statement = pointer.statement(trusted) if trusted and pointer is not None else None
    report = verify_bundle(bundles.local_folder(workload, chosen), statement=statement)
    if not report.ok:
        raise BundleError(
            f"The bundle {chosen} of {workload} was not signed, because verification failed: {report.problem}",
            hint="Restore the bundle from a backup, or promote another bundle.",
        )
    signed = (
        bundles.sign(workload, chosen, report.sha256sums)
        if statement is None
        else bundles.pointers.cosign(workload, trusted, report.sha256sums)
    )
    state = {"workload": workload, "version": chosen, "sha256sums": report.sha256sums, "is_current": signed is not None}
    current = "" if signed is None else ", which is current"
    line = f"{workload}: signed {chosen}{current}; SHA256SUMS has the digest {report.sha256sums}."
    print_result(format, state, [line])
