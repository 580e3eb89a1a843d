"""Check this bundle: every byte first, then what the model computes. Needs Python 3.10 or later and torch alone.

Usage: python verify.py [FOLDER] [--json]. Exit code 0: all is as published; 1: not so, do not deploy it.
It does not check SHA256SUMS.sig; MODEL_CARD.md says how OpenSSL does.
"""

import hashlib
import io
import json
import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

KINDS = {"F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "U8": "uint8"}
PLAIN = re.compile("[A-Za-z0-9][A-Za-z0-9._-]*")


class Refused(Exception):  # noqa: N818
    """The bundle is not to be used."""


def read_whole(folder: Path, expected: str = "") -> dict[str, bytes]:
    """Read the folder's files and hold them against SHA256SUMS; what is used later is what was checked here."""
    files: dict[str, bytes] = {}
    for name in sorted(path.name for path in folder.iterdir()):
        # Neither a link nor a device nor a pipe is followed, and a pipe does not block.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with os.fdopen(os.open(folder / name, flags), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode) or not PLAIN.fullmatch(name):
                raise Refused(f"{name!r} is no regular file with a plain name")
            files[name] = stream.read()
    sums, _ = files.pop("SHA256SUMS", b""), files.pop("SHA256SUMS.sig", None)
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items()]
    if "".join(lines).encode() != sums or not files or expected not in ("", hashlib.sha256(sums).hexdigest()):
        wrong = {line[66:].strip() for line in {*lines} ^ {*sums.decode("latin-1").splitlines(keepends=True)}}
        raise Refused(f"files do not hold what SHA256SUMS says: {', '.join(sorted(wrong)) or 'SHA256SUMS itself'}")
    return files


def read_tensors(content: bytes) -> dict[str, Any]:
    """Read safetensors: eight bytes of length, a JSON header, then the tensors' bytes."""
    import torch

    start = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    for name, entry in json.loads(content[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            raw, dtype = bytearray(content[start + begin : start + end]), getattr(torch, KINDS[entry["dtype"]])
            if len(raw) != torch.Size(entry["shape"]).numel() * dtype.itemsize or not raw:
                raise Refused(f"the golden tensor {name} has the wrong length")
            tensors[name] = torch.frombuffer(raw, dtype=dtype).reshape(entry["shape"])
    return tensors


def compare(files: dict[str, bytes]) -> dict[str, float]:
    """Run the model on the golden inputs; give each output's largest difference from the golden one."""
    import torch

    manifest, golden = json.loads(files["manifest.json"]), read_tensors(files["golden.safetensors"])
    if manifest["engine"] is not None:  # weights are packed for it on loading
        torch.backends.quantized.engine = manifest["engine"]
    model = torch.jit.load(io.BytesIO(files[manifest["model"]["file"]]), "cpu")  # type: ignore[no-untyped-call]
    with torch.inference_mode():
        result = model(*(golden[entry["golden"]] for entry in manifest["model"]["inputs"]))
    outputs, expected = [result] if torch.is_tensor(result) else list(result), manifest["model"]["outputs"]
    if len(outputs) != len(expected):
        raise Refused(f"the model gives {len(outputs)} outputs, not {len(expected)}")
    found = {}
    for output, entry in zip(outputs, expected, strict=True):
        name, right = entry["name"], golden[entry["golden"]]
        if output.dtype != right.dtype or output.shape != right.shape:
            raise Refused(f"output {name} is {output.dtype} {tuple(output.shape)}")
        found[name] = float((output.double() - right.double()).abs().max())
        if not found[name] <= entry["tolerance"]:
            raise Refused(f"output {name} differs by {found[name]:.6g}; allowed are {entry['tolerance']:.6g}")
    return found


def main(given: list[str]) -> int:
    """Check, say what was found, and give the exit code."""
    folder = Path(next((one for one in given if one[:7] not in ("--json", "--sums=")), Path(__file__).resolve().parent))
    expected = next((one[7:] for one in given if one.startswith("--sums=")), "")  # what a signature was made of
    report: dict[str, Any] = {"ok": False, "problem": "", "differences": {}}
    try:
        report.update(differences=compare(read_whole(folder, expected)), ok=True)
    except (Refused, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        report["problem"] = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
    found = ", ".join(f"{name} differs by at most {value:.3g}" for name, value in report["differences"].items())
    text = f"good: {found}" if report["ok"] else f"REFUSED: {report['problem']}"
    sys.stdout.write((json.dumps(report) if "--json" in given else text) + "\n")
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
