"""Verify a bundle wherever it lies: its files, its signature, its manifest, then what its model computes.

A model may be code, so the order matters: nothing in the bundle is interpreted before its checksums hold (and its
signature, where a key is given), and the model is loaded only in a process of its own, without this project, its
environment variables or its secrets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from storage.errors import BundleError
from storage.seal import SIGNATURE, SUMS, check_signature, check_sums, read_manifest
from storage.trust import Statement
from tasks.extensions import RUNTIMES

_CHECKER = Path(__file__).with_name("checker.py")

_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "LANG", "OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY")


@dataclass(frozen=True)
class VerificationReport:
    """What a verification found, up to its last ``stage``; ``problem`` is "" if all is good.

    ``differences`` gives each output's largest absolute difference from the golden one, ``changed`` the share of golden
    rows whose first choice is another one (None if the model ranks nothing), ``expires_at`` when a signed
    ``current.json`` does.
    """

    path: Path
    stage: Literal["pointer", "files", "signature", "manifest", "model"]
    problem: str = ""
    sha256sums: str = ""
    signature: Literal["valid", "not checked", "none"] = "none"
    workload: str = ""
    version: str = ""
    differences: dict[str, float] = field(default_factory=dict)
    changed: float | None = None
    expires_at: datetime | None = None

    @property
    def ok(self) -> bool:
        """Whether the bundle may be used."""
        return not self.problem


def verify(
    path: Path, keys: Sequence[Ed25519PublicKey] = (), *, statement: Statement | None = None, timeout_s: float = 600.0
) -> VerificationReport:
    """Verify the bundle in a folder.

    Without `keys` and `statement`, a bundle is held against itself: whoever rewrites a file and ``SHA256SUMS`` with it
    is found out only by a signature.

    Parameters
    ----------
    keys
        One of these must have signed the bundle.
    statement
        What was signed about the current bundle, in place of the bundle's own signature: it must be this one.
    timeout_s
        Seconds that the model may take to load and run.
    """
    report = VerificationReport(path, "files")
    try:
        sha256sums = check_sums(path)
        report = replace(report, sha256sums=sha256sums, stage="signature")
        report = replace(report, signature=_signature(path, keys, statement, sha256sums), stage="manifest")
        manifest = read_manifest(path, sha256sums)
        report = replace(report, workload=manifest["workload"]["name"], version=manifest["version"])
        if statement and (report.workload, report.version) != (statement.workload, statement.version):
            raise BundleError(f"{path}: it is {report.workload} {report.version}, another than was signed.")
        report = replace(report, stage="model")
        return _run_model(path, report, manifest["model"]["runtime"], timeout_s)
    except BundleError as error:
        return replace(report, problem=str(error))


def checker_source(runtime: str) -> str:
    """The program that checks a runtime's bundles with nothing of this project: a bundle's ``verify.py``.

    Raises
    ------
    BundleError
        There is no such runtime here, or it cannot be handed over.
    """
    checker = RUNTIMES[runtime].checker if runtime in RUNTIMES else ""
    if not checker:
        raise BundleError(
            f'The bundle is for the runtime "{runtime}", which this version cannot check.',
            hint="Verify it with the nightquant that made it, or run its own verify.py.",
        )
    # Within a function, so that nothing is imported before the checksums hold, or missing packages are reported.
    package, _, module = checker.rpartition(".")
    opening = textwrap.indent(files(package).joinpath(f"{module}.py").read_text(encoding="utf-8"), "    ")
    return (
        f"{_CHECKER.read_text(encoding='utf-8')}\n\ndef load(files, manifest):\n{opening}\n"
        "    return open_model(files, manifest)\n\n\n"
        'if __name__ == "__main__":\n    sys.exit(main(sys.argv[1:], load))\n'
    )


def _signature(
    path: Path, keys: Sequence[Ed25519PublicKey], statement: Statement | None, sha256sums: str
) -> Literal["valid", "not checked", "none"]:
    if statement is not None:
        if statement.sha256sums != sha256sums:
            what = f"its {SUMS} is not the one of {statement.version}, which the signed current.json names"
            raise BundleError(f"{path}: {what}.", hint="Do not use it; fetch that bundle.")
        return "valid"
    if not keys:
        return "not checked" if (path / SIGNATURE).is_file() else "none"
    check_signature(path, keys, sha256sums)
    return "valid"


def _run_model(path: Path, report: VerificationReport, runtime: str, timeout_s: float) -> VerificationReport:
    """Run a bundle's model on its golden inputs in a clean process, and add what it computed to the report.

    Raises
    ------
    BundleError
        The process died or took too long.
    """
    # The bundle's own verify.py is never run: this is the copy that came with nightquant.
    command = [sys.executable, "-I", "-W", "ignore", "-c", checker_source(runtime), str(path.absolute()), "--json"]
    command.append(f"--sums={report.sha256sums}")  # the folder may be another one by now
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise BundleError(f"{path}: the model did not finish within {timeout_s:g} s.") from error
    try:
        found = json.loads(done.stdout.decode().splitlines()[-1])
        differences, changed, problem = found["differences"], found["changed"], found["problem"]
        if not (problem or (found["ok"] and done.returncode == 0)):
            problem = "it is not good"
    except (ValueError, IndexError, KeyError, TypeError) as error:
        tail = done.stderr.decode(errors="replace").strip()[-500:]
        death = f"{path}: the process that loaded the model died with code {done.returncode}. {tail}".strip()
        raise BundleError(death) from error
    return replace(report, differences=differences, changed=changed, problem=problem and f"{path}: {problem}.")
