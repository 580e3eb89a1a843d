"""Verify this bundle: first the checksums of all files, then the model's outputs.

Usage: ``python verify.py [FOLDER] [--json]``. Exit code 0 means that the bundle is as published; 1 means that the
bundle must not be deployed. This script needs Python 3.10 or later and the model's runtime. The script does not check
``model.sig``; ``MODEL_CARD.md`` shows how to check the signature.
"""

import hashlib
import json
import os
import re
import stat
import struct
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

# The dtype and the struct format character of each safetensors type.
KINDS = {
    "F64": ("float64", "d"),
    "F32": ("float32", "f"),
    "F16": ("float16", "e"),
    "I64": ("int64", "q"),
    "I32": ("int32", "i"),
    "U8": ("uint8", "B"),
}
Tensor = tuple[str, list[int], bytes]
Loader = Callable[[dict[str, bytes], dict[str, Any]], Callable[[list[Tensor]], list[Tensor]]]
PLAIN = re.compile("[A-Za-z0-9][A-Za-z0-9._-]*")


class Refused(Exception):  # noqa: N818
    """Error raised for a bundle that must not be used."""


def read_whole(folder: Path, expected: str = "") -> dict[str, bytes]:
    """Read the folder's files and check the bytes against ``SHA256SUMS``; later steps use only the returned bytes."""
    files: dict[str, bytes] = {}
    for name in sorted(path.name for path in folder.iterdir()):
        # Do not follow symbolic links, and do not block on pipes.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with os.fdopen(os.open(folder / name, flags), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode) or not PLAIN.fullmatch(name):
                raise Refused(f"{name!r} is not a regular file, or its name is not allowed; fetch the bundle again")
            files[name] = stream.read()
    sums, _ = files.pop("SHA256SUMS", b""), files.pop("model.sig", None)
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items()]
    if "".join(lines).encode() != sums or not files or expected not in ("", hashlib.sha256(sums).hexdigest()):
        wrong = {line[66:].strip() for line in {*lines} ^ {*sums.decode("latin-1").splitlines(keepends=True)}}
        names = ", ".join(sorted(wrong - {""}))
        problem = f"does not match {names}" if names else "is missing or was changed"
        raise Refused(f"SHA256SUMS {problem}; fetch the bundle again")
    return files


def read_tensors(content: bytes) -> dict[str, Tensor]:
    """Read a safetensors file; return a (dtype, shape, bytes) tuple for each tensor, keyed by name."""
    # The file consists of an 8-byte header length, a JSON header, and the data.
    start = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    for name, entry in json.loads(content[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            dtype, code = KINDS[entry["dtype"]]
            raw = content[start + begin : start + end]
            if len(raw) != prod(entry["shape"]) * struct.calcsize(code) or not raw:
                raise Refused(f"the golden tensor {name} has the wrong length; fetch the bundle again")
            tensors[name] = (dtype, list(entry["shape"]), raw)
    return tensors


def numbers_of(dtype: str, values: bytes) -> tuple[float, ...]:
    """Unpack a tensor's values."""
    code = next(code for name, code in KINDS.values() if name == dtype)
    return struct.unpack(f"<{len(values) // struct.calcsize(code)}{code}", values)


def largest_difference(dtype: str, left: bytes, right: bytes) -> float:
    """Return the largest absolute difference between two tensors' values; return NaN if any difference is NaN."""
    differences = [abs(a - b) for a, b in zip(numbers_of(dtype, left), numbers_of(dtype, right), strict=True)]
    return float("nan") if any(value != value for value in differences) else max(differences)


def top_predictions(shape: list[int], dtype: str, values: bytes) -> list[int]:
    """Return the index of each row's highest value; a row extends along the last axis."""
    numbers = numbers_of(dtype, values)
    rows = [numbers[start : start + shape[-1]] for start in range(0, len(numbers), shape[-1])]
    return [row.index(max(row)) for row in rows]


def run_cases(files: dict[str, bytes], load_model: Loader) -> tuple[dict[str, float], list[bool]]:
    """Run the model on every golden case; return largest differences, and whether top-1 predictions are the same."""
    manifest, golden = json.loads(files["manifest.json"]), read_tensors(files["golden.safetensors"])
    call, expected = load_model(files, manifest), manifest["model"]["outputs"]
    worst, same = {entry["name"]: 0.0 for entry in expected}, []
    for number in range(manifest["golden"]["cases"]):
        prefix = f"{number}." if number else ""
        outputs = call([golden[prefix + entry["golden"]] for entry in manifest["model"]["inputs"]])
        if len(outputs) != len(expected):
            raise Refused(f"the model returns {len(outputs)} outputs instead of {len(expected)}")
        for index, ((dtype, shape, values), entry) in enumerate(zip(outputs, expected, strict=True)):
            name, right = entry["name"], golden[prefix + entry["golden"]]
            if (dtype, list(shape)) != right[:2]:
                raise Refused(
                    f"output {name} has dtype {dtype} and shape {list(shape)} instead of "
                    f"dtype {right[0]} and shape {right[1]}"
                )
            difference = largest_difference(dtype, values, right[2])
            if not difference <= worst[name] and worst[name] == worst[name]:  # NaN counts as the largest difference
                worst[name] = difference
            if index == 0 and manifest["golden"]["chooses"]:
                pairs = (top_predictions(list(shape), dtype, raw) for raw in (values, right[2]))
                same += [prediction == reference for prediction, reference in zip(*pairs, strict=True)]
    return worst, same


def judge(files: dict[str, bytes], differences: dict[str, float], same: list[bool]) -> str:
    """Describe how the outputs differ from the golden outputs, or return ``""`` if they match within tolerance."""
    for entry in json.loads(files["manifest.json"])["model"]["outputs"]:
        if not differences[entry["name"]] <= entry["tolerance"]:
            amount = f"{differences[entry['name']]:.6g}, but the tolerance is {entry['tolerance']:.6g}"
            return f"output {entry['name']} differs by {amount}"
    changed = same.count(False)
    return f"the top-1 prediction differs in {changed} of {len(same)} golden rows" if changed else ""


def main(arguments: list[str], load_model: Loader) -> int:
    """Verify the bundle, print the result, and return the exit code."""
    here = str(Path(sys.argv[0]).resolve().parent)
    folder = Path(next((word for word in arguments if word[:7] not in ("--json", "--sums=")), here))
    expected = next((word[7:] for word in arguments if word.startswith("--sums=")), "")  # digest of SHA256SUMS
    report: dict[str, Any] = {"ok": False, "problem": "", "differences": {}, "changed": None}
    try:
        files = read_whole(folder, expected)
        differences, same = run_cases(files, load_model)
        problem = judge(files, differences, same)
        changed = same.count(False) / len(same) if same else None
        report.update(differences=differences, changed=changed, problem=problem, ok=not problem)
    except (Refused, OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, struct.error) as error:
        report["problem"] = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
    summary = ", ".join(f"{name} differs by at most {value:.3g}" for name, value in report["differences"].items())
    text = f"good: {summary}" if report["ok"] else f"REFUSED: {report['problem']}"
    sys.stdout.write((json.dumps(report) if "--json" in arguments else text) + "\n")
    return 0 if report["ok"] else 1
