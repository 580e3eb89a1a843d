"""Speed and memory of tokenization beside the plain definition and ``wc -w``.

Makes its own text: words of a Zipf-like distribution in lines like WikiText's, the same for a seed. Each method runs
in a process of its own; CPU seconds count all its threads and, for every method alike, neither the start of Python nor
imports; peak memory is the process's whole resident set. The plain definition goes through the text once and keeps its
ids in lists; nightquant also counts the words and writes ids and vocabulary to files. It is an error
if their ids differ.

    python benchmarks/tokenization.py --megabytes 14
    python benchmarks/tokenization.py --megabytes 500
    python benchmarks/tokenization.py --directory path/to/corpus
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

MEGABYTE = 1_000_000
SHARES = {"train": 0.9, "valid": 0.05, "test": 0.05}
_TOKENS_AT_ONCE = 1 << 20
_LETTERS = np.frombuffer(b"etaoinshrdlucmfwypvbgkjqxz", dtype=np.uint8)


def main() -> None:
    """Print one line for each method."""
    options = _options()
    if options.only:
        print(json.dumps(_measured(METHODS[options.only], options.directory)))
        return
    with tempfile.TemporaryDirectory(prefix="tokenize-") as made:
        folder = options.directory or Path(made)
        if options.directory is None:
            make_corpus(folder, options.megabytes * MEGABYTE, options.seed)
        size = sum(path.stat().st_size for path in _texts(folder).values())
        print(f"{size / MEGABYTE:.1f} MB, best of {options.repeat}, methods interleaved")
        print(f"{'method':<12} {'CPU s':>8} {'wall s':>8} {'MB/CPU s':>9} {'peak MiB':>9} {'x plain':>8}")
        rounds = [{name: _run_alone(name, folder) for name in METHODS} for _ in range(options.repeat)]
        if len({row["ids"] for found in rounds for row in found.values() if row["ids"]}) != 1:
            raise SystemExit("the methods' ids differ")
        best = {name: min((result[name] for result in rounds), key=lambda row: row["cpu_s"]) for name in METHODS}
        for name, row in best.items():
            print(
                f"{name:<12} {row['cpu_s']:8.2f} {row['wall_s']:8.2f} {size / MEGABYTE / row['cpu_s']:9.1f} "
                f"{row['peak_rss_bytes'] / 2**20:9.0f} {best['plain']['cpu_s'] / row['cpu_s']:8.2f}"
            )


def make_corpus(folder: Path, size: int, seed: int) -> None:
    """Write train.txt, valid.txt and test.txt of about `size` bytes in all."""
    generator = np.random.default_rng(seed)
    # The vocabularies of WikiText-2 (14 MB) and WikiText-103 (500 MB) lie on this curve.
    words = _words(generator, int(33_000 * (size / (14 * MEGABYTE)) ** 0.58))
    shares = np.cumsum(1 / (np.arange(len(words)) + 2.7) ** 1.05)
    for split, share in SHARES.items():
        left = int(size * share)
        with (folder / f"{split}.txt").open("wb") as text:
            while left > 0:
                drawn = generator.random(min(_TOKENS_AT_ONCE, left // 6 + 1)) * shares[-1]
                piece = b" " + b" ".join(words[np.searchsorted(shares, drawn)].tolist()) + b" \n"
                left -= text.write(piece)


def _words(generator: np.random.Generator, count: int) -> np.ndarray:
    """Distinct words, the frequent ones short, one in a hundred ranks a line end and a few not ASCII."""
    words: dict[bytes, None] = {}
    while len(words) < count:
        length = max(1, int(generator.normal(1.6 + 0.62 * np.log(len(words) + 1), 1.5)))
        word = generator.choice(_LETTERS, length).tobytes()
        words[word + "é".encode() if generator.random() < 0.01 else word] = None
    listed: list[bytes] = list(words)
    listed[20] = b"\n"
    listed[25] = b"\n \n"
    found = np.empty(count, dtype=object)
    found[:] = listed
    return found


def _plain(folder: Path) -> Sequence[npt.ArrayLike]:
    ids: dict[str, int] = {}
    encoded: list[list[int]] = []
    for path in _texts(folder).values():
        tokens = []
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                for word in [*line.split(), "<eos>"]:
                    if word not in ids:
                        ids[word] = len(ids)
                    tokens.append(ids[word])
        encoded.append(tokens)
    return encoded


def _nightquant(folder: Path) -> Sequence[npt.ArrayLike]:
    from tasks.domains.language_model.tokenize import tokenize

    with tempfile.TemporaryDirectory(prefix="tokenize-") as made:
        lengths = tokenize(_texts(folder), Path(made))
        # What is mapped stays when the files go.
        return [np.load(Path(made) / f"{split}.npy", mmap_mode="r") for split in lengths]


def _wc(folder: Path) -> Sequence[npt.ArrayLike]:
    subprocess.run(["wc", "-w", *map(str, _texts(folder).values())], check=True, stdout=subprocess.DEVNULL)
    return []


METHODS: MappingProxyType[str, Callable[[Path], Sequence[npt.ArrayLike]]] = MappingProxyType(
    {"plain": _plain, "nightquant": _nightquant, "wc -w": _wc}
)


def _texts(folder: Path) -> dict[str, Path]:
    from tasks.domains.language_model.corpus import find_texts

    return find_texts(folder)


def _run_alone(name: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--only", name, "--directory", str(folder)]
    row: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return row


def _measured(method: Callable[[Path], Sequence[npt.ArrayLike]], folder: Path) -> dict[str, float | str]:
    from tasks.prepare import tokenize  # noqa: F401 - imports are not what is measured

    wall, cpu = time.perf_counter(), _cpu_seconds()
    encoded = method(folder)
    measured = {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": _cpu_seconds() - cpu,
        "peak_rss_bytes": _peak_bytes(),
    }
    return {**measured, "ids": _digest(encoded)}


def _digest(encoded: Sequence[npt.ArrayLike]) -> str:
    digest = hashlib.sha256()
    for ids in encoded:
        digest.update(np.asarray(ids, dtype=np.int32).data)
    return digest.hexdigest() if encoded else ""


def _cpu_seconds() -> float:
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _peak_bytes() -> int:
    # Not ru_maxrss, which counts what the parent held when it started this process.
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this benchmark needs Linux")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=14)
    parser.add_argument("--directory", type=Path, help="a corpus to use in place of a made one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=METHODS, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
