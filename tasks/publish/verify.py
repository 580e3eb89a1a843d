"""Verify a bundle in any folder: the files, the signature, the manifest, and then the model's outputs.

A model may contain executable code. Therefore, the manifest is not parsed and the model is not loaded until the
checksums match and, if a key is given, the signature is valid. The model is loaded in a separate process, which cannot
access nightquant's modules, secrets or environment variables.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from storage.errors import BundleError
from storage.pointer import Pointer
from storage.seal import SIGNATURE, SUMS, check_sums, read_manifest, signed_sums
from tasks.runtimes.base import runtime_named
from tasks.workload.recipe import RUNTIMES

_CHECKER = Path(__file__).with_name("checker.py")
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "LANG", "OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY")
Signature = Literal["valid", "not checked", "none"]


@dataclass(frozen=True)
class VerificationReport:
    """Result of a verification that ended at ``stage``; ``problem`` is ``""`` if the bundle is good.

    ``differences`` contains each output's largest absolute difference from the golden output. ``changed`` is the
    fraction of golden rows with a different top-1 prediction (None if the model does not rank classes).
    """

    path: Path
    stage: Literal["pointer", "files", "signature", "manifest", "model"]
    problem: str = ""
    sha256sums: str = ""
    signature: Signature = "none"
    workload: str = ""
    version: str = ""
    differences: dict[str, float] = field(default_factory=dict)
    changed: float | None = None
    expires_at: datetime | None = None

    @property
    def ok(self) -> bool:
        """Whether the bundle passed the verification."""
        return not self.problem


def verify(
    path: Path,
    key: EllipticCurvePublicKey | None = None,
    *,
    pointer: Pointer | None = None,
    timeout_s: float = 600.0,
) -> VerificationReport:
    """Verify the bundle in a folder, and its signature if a `key` is given; load the model for at most `timeout_s`.

    With a `pointer`, whose signature was checked before, the pointer must name the bundle. Otherwise, only a signature
    reveals that an attacker has rewritten both a file and ``SHA256SUMS``.
    """
    report = VerificationReport(path, "files")
    try:
        sha256sums = check_sums(path)
        report = replace(report, sha256sums=sha256sums, stage="signature")
        report = replace(report, signature=_signature(path, key, pointer, sha256sums), stage="manifest")
        manifest = read_manifest(path)
        report = replace(report, workload=manifest["workload"]["name"], version=manifest["version"])
        report = replace(report, stage="model", expires_at=pointer.expires_at if pointer else None)
        return _run_model(path, report, manifest["model"]["runtime"], timeout_s)
    except BundleError as error:
        return replace(report, problem=str(error))


def checker_source(runtime: str) -> str:
    """Return the source of ``verify.py``, which verifies a runtime's bundles without nightquant."""
    if runtime not in RUNTIMES or not RUNTIMES[runtime].hands_over:
        raise BundleError(
            f'This version of nightquant cannot check bundles for the "{runtime}" runtime.',
            hint="Verify the bundle with the version of nightquant that built it, or run the bundle's verify.py.",
        )
    # Put the loader's code in a function, so that its imports run only after the checksums match, and so that import
    # errors are reported.
    package, _, module = runtime_named(runtime).module("check").rpartition(".")
    opening = textwrap.indent(files(package).joinpath(f"{module}.py").read_text(encoding="utf-8"), "    ")
    return (
        f"{_CHECKER.read_text(encoding='utf-8')}\n\ndef load(files, manifest):\n{opening}\n"
        "    return open_model(files, manifest)\n\n\n"
        'if __name__ == "__main__":\n    sys.exit(main(sys.argv[1:], load))\n'
    )


def _signature(path: Path, key: EllipticCurvePublicKey | None, pointer: Pointer | None, sha256sums: str) -> Signature:
    if pointer is not None:
        if pointer.sha256sums != sha256sums:
            raise BundleError(
                f"The bundle in {path} is not version {pointer.version}, which the signed current.json names.",
                hint=f"Do not use this bundle; fetch version {pointer.version}.",
            )
        return "valid"
    signature = path / SIGNATURE
    if key is None:
        return "not checked" if signature.is_file() else "none"
    content = signature.read_bytes() if signature.is_file() else b""
    # The list that was signed must be the list that was used to check the files.
    if signed_sums(path, (path / SUMS).read_bytes(), content, key) != sha256sums:
        raise BundleError(f"{path}: {SUMS} changed while it was being read.", hint="Do not use the bundle.")
    return "valid"


def _run_model(path: Path, report: VerificationReport, runtime: str, timeout_s: float) -> VerificationReport:
    """Run a bundle's model on the golden inputs in a clean process, and add the result to the report."""
    # Run nightquant's copy of ``verify.py``, never the bundle's copy.
    command = [sys.executable, "-I", "-W", "ignore", "-c", checker_source(runtime), str(path.absolute()), "--json"]
    command.append(f"--sums={report.sha256sums}")  # the folder may have been replaced since `check_sums` ran
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    try:
        process = subprocess.run(command, env=environment, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise BundleError(
            f"The model in {path} did not finish within {timeout_s:g} s.", hint="Try again on an idle host."
        ) from error
    try:
        result = json.loads(process.stdout.decode().splitlines()[-1])
        differences, changed, problem = result["differences"], result["changed"], result["problem"]
        if not (problem or (result["ok"] and process.returncode == 0)):
            problem = "the check failed without a reason"
    except (ValueError, IndexError, KeyError, TypeError) as error:
        tail = process.stderr.decode(errors="replace").strip()[-500:]
        death = f"{path}: the process that loaded the model died with code {process.returncode}. {tail}".strip()
        raise BundleError(death) from error
    return replace(report, differences=differences, changed=changed, problem=problem and f"{path}: {problem}.")
