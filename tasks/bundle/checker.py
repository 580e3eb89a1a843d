"""Check this bundle: every byte first, then what the model computes.

Usage: python verify.py [FOLDER] [--json]. Exit code 0: all is as published; 1: not so, do not deploy it.
It needs Python 3.10 or later and what executes the model. It does not check SHA256SUMS.sig; MODEL_CARD.md says how
OpenSSL does.
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

# Names and format characters of the tensors' types.
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


def read_tensors(content: bytes) -> dict[str, Tensor]:
    """Read safetensors (eight bytes of length, a JSON header, then the tensors' bytes) as (dtype, shape, bytes)."""
    start = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    for name, entry in json.loads(content[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            dtype, code = KINDS[entry["dtype"]]
            raw = content[start + begin : start + end]
            if len(raw) != prod(entry["shape"]) * struct.calcsize(code) or not raw:
                raise Refused(f"the golden tensor {name} has the wrong length")
            tensors[name] = (dtype, list(entry["shape"]), raw)
    return tensors


def numbers_of(dtype: str, values: bytes) -> tuple[float, ...]:
    """Unpack a tensor's values."""
    code = next(code for name, code in KINDS.values() if name == dtype)
    return struct.unpack(f"<{len(values) // struct.calcsize(code)}{code}", values)


def largest_difference(dtype: str, left: bytes, right: bytes) -> float:
    """Largest absolute difference of two tensors' values; NaN is never close to anything."""
    differences = [abs(a - b) for a, b in zip(numbers_of(dtype, left), numbers_of(dtype, right), strict=True)]
    return float("nan") if any(value != value for value in differences) else max(differences)


def first_choices(shape: list[int], dtype: str, values: bytes) -> list[int]:
    """Index of the highest value along the last axis, row by row."""
    numbers = numbers_of(dtype, values)
    rows = [numbers[start : start + shape[-1]] for start in range(0, len(numbers), shape[-1])]
    return [row.index(max(row)) for row in rows]


def run_cases(files: dict[str, bytes], load_model: Loader) -> tuple[dict[str, float], list[bool]]:
    """Run the model on every golden case.

    Gives each output's largest difference from the golden one, and for each row whether its first choice is the golden
    one; no rows where the model ranks nothing.
    """
    manifest, golden = json.loads(files["manifest.json"]), read_tensors(files["golden.safetensors"])
    call, expected = load_model(files, manifest), manifest["model"]["outputs"]
    worst, same = {entry["name"]: 0.0 for entry in expected}, []
    for number in range(manifest["golden"]["cases"]):
        prefix = f"{number}." if number else ""
        outputs = call([golden[prefix + entry["golden"]] for entry in manifest["model"]["inputs"]])
        if len(outputs) != len(expected):
            raise Refused(f"the model gives {len(outputs)} outputs, not {len(expected)}")
        for index, ((dtype, shape, values), entry) in enumerate(zip(outputs, expected, strict=True)):
            name, right = entry["name"], golden[prefix + entry["golden"]]
            if (dtype, list(shape)) != right[:2]:
                raise Refused(f"output {name} is {dtype} {tuple(shape)}")
            difference = largest_difference(dtype, values, right[2])
            if not difference <= worst[name] and worst[name] == worst[name]:  # NaN comes through, and stays
                worst[name] = difference
            if index == 0 and manifest["golden"]["chooses"]:
                pairs = (first_choices(list(shape), dtype, each) for each in (values, right[2]))
                same += [ours == golden_choice for ours, golden_choice in zip(*pairs, strict=True)]
    return worst, same


def judge(files: dict[str, bytes], differences: dict[str, float], same: list[bool]) -> str:
    """Why the model's answers are not the golden ones; "" where they are."""
    for entry in json.loads(files["manifest.json"])["model"]["outputs"]:
        if not differences[entry["name"]] <= entry["tolerance"]:
            found = f"{differences[entry['name']]:.6g}; allowed are {entry['tolerance']:.6g}"
            return f"output {entry['name']} differs by {found}"
    changed = same.count(False)
    return f"the first choice is another one in {changed} of {len(same)} golden rows" if changed else ""


def main(given: list[str], load_model: Loader) -> int:
    """Check, say what was found, and give the exit code."""
    here = str(Path(sys.argv[0]).resolve().parent)
    folder = Path(next((word for word in given if word[:7] not in ("--json", "--sums=")), here))
    expected = next((word[7:] for word in given if word.startswith("--sums=")), "")  # what a signature was made of
    report: dict[str, Any] = {"ok": False, "problem": "", "differences": {}, "changed": None}
    try:
        files = read_whole(folder, expected)
        differences, same = run_cases(files, load_model)
        problem = judge(files, differences, same)
        changed = same.count(False) / len(same) if same else None
        report.update(differences=differences, changed=changed, problem=problem, ok=not problem)
    except (Refused, OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, struct.error) as error:
        report["problem"] = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
    found = ", ".join(f"{name} differs by at most {value:.3g}" for name, value in report["differences"].items())
    text = f"good: {found}" if report["ok"] else f"REFUSED: {report['problem']}"
    sys.stdout.write((json.dumps(report) if "--json" in given else text) + "\n")
    return 0 if report["ok"] else 1
