"""Speed and memory of tokenization beside the plain definition, plain Arrow and ``wc -w``.

Makes its own text: words of a Zipf-like distribution in lines like WikiText's, the same for a seed; with ``--like``,
the frequent words and the line ends are those of a real text. Each method runs in a process of its own; CPU seconds
count all its threads and, for every method alike, neither the start of Python nor imports; peak memory is the process's
whole resident set. All methods run in every round; the table has the median of the rounds, and for CPU seconds and for
the ratio within a round its extremes as well.

``plain`` goes through the text once and keeps its ids in lists. ``arrow`` splits blocks of 8 MiB with
``utf8_split_whitespace``, encodes each with ``dictionary_encode``, maps the dictionaries to ids in Python and writes
the ids to files. ``nightquant`` also counts the words and writes the vocabulary. It is an error if their ids differ.

    python benchmarks/tokenization.py --megabytes 14
    python benchmarks/tokenization.py --megabytes 500 --like path/to/train.txt
    python benchmarks/tokenization.py --directory path/to/corpus
    python benchmarks/tokenization.py --against path/to/checkout/of/another/commit
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MEGABYTE = 1_000_000
ROOT = Path(__file__).resolve().parent.parent
SHARES = {"train": 0.9, "valid": 0.05, "test": 0.05}
_TOKENS_AT_ONCE = 1 << 20
_ARROW_BLOCK_BYTES = 8 << 20
_LETTERS = np.frombuffer(b"etaoinshrdlucmfwypvbgkjqxz", dtype=np.uint8)


class Row(TypedDict):
    """What was measured of one run."""

    cpu_s: float
    wall_s: float
    peak_rss_bytes: int
    ids: str


def main() -> None:
    """Print one line for each method."""
    options = _options()
    sys.path.insert(0, str(options.root))
    if options.only:
        print(json.dumps(_measured(METHODS[options.only], options.directory)))
        return
    with tempfile.TemporaryDirectory(prefix="tokenize-") as made:
        folder = options.directory or Path(made)
        if options.directory is None:
            make_corpus(folder, options.megabytes * MEGABYTE, options.seed, options.like)
        runs = {name: (name, ROOT) for name in METHODS}
        if options.against:
            runs["against"] = ("nightquant", options.against)
        size = sum(path.stat().st_size for path in _texts(folder).values())
        print(f"{size / MEGABYTE:.1f} MB, {options.repeat} rounds")
        rounds = [{name: _run_alone(*run, folder) for name, run in runs.items()} for _ in range(options.repeat)]
        if len({row["ids"] for found in rounds for row in found.values() if row["ids"]}) != 1:
            raise SystemExit("the methods' ids differ")
        _print(rounds, size)


def _print(rounds: Sequence[dict[str, Row]], size: int) -> None:
    print(f"{'method':<11} {'CPU s':>21} {'wall s':>7} {'MB/CPU s':>9} {'peak MiB':>9} {'CPU s / nightquant':>21}")
    for name in rounds[0]:
        rows = [found[name] for found in rounds]
        cpu = [row["cpu_s"] for row in rows]
        wall = statistics.median(row["wall_s"] for row in rows)
        peak = max(row["peak_rss_bytes"] for row in rows) / 2**20
        ratios = [found[name]["cpu_s"] / found["nightquant"]["cpu_s"] for found in rounds]
        speed = size / MEGABYTE / statistics.median(cpu)
        print(f"{name:<11} {_spread(cpu):>21} {wall:7.2f} {speed:9.1f} {peak:9.0f} {_spread(ratios):>21}")


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def make_corpus(folder: Path, size: int, seed: int, like: Path | None = None) -> None:
    """Write train.txt, valid.txt and test.txt of about `size` bytes in all, with the words of the text `like` first."""
    generator = np.random.default_rng(seed)
    # The vocabularies of WikiText-2 (14 MB) and WikiText-103 (500 MB) lie on this curve.
    words = _words(generator, int(33_000 * (size / (14 * MEGABYTE)) ** 0.58), like)
    shares = np.cumsum(1 / (np.arange(len(words)) + 2.7) ** 1.05)
    for split, share in SHARES.items():
        left = int(size * share)
        with (folder / f"{split}.txt").open("wb") as text:
            while left > 0:
                drawn = generator.random(min(_TOKENS_AT_ONCE, left // 6 + 1)) * shares[-1]
                piece = b" " + b" ".join(words[np.searchsorted(shares, drawn)].tolist()) + b" \n"
                left -= text.write(piece)


def _words(generator: np.random.Generator, count: int, like: Path | None) -> npt.NDArray[np.object_]:
    """Distinct words, the frequent ones short, two in a hundred ranks a line end and a few not ASCII."""
    words: dict[bytes, None] = {}
    if like:
        # Between single spaces, so that line ends are words like others.
        words = dict.fromkeys(word for word, _ in Counter(like.read_bytes().split(b" ")).most_common(count))
    while len(words) < count:
        length = max(1, int(generator.normal(1.6 + 0.62 * np.log(len(words) + 1), 1.5)))
        word = generator.choice(_LETTERS, length).tobytes()
        words[word + "é".encode() if generator.random() < 0.01 else word] = None
    listed: list[bytes] = list(words)
    if not like:
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


def _arrow(folder: Path) -> Sequence[npt.ArrayLike]:
    ids: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="tokenize-") as made:
        for split, path in _texts(folder).items():
            with path.open("rb") as text, (Path(made) / split).open("wb") as encoded:
                while block := b"".join(text.readlines(_ARROW_BLOCK_BYTES)):
                    lines = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b" <eos> ")
                    # Between two points, for what Arrow splits off at the ends of a text may be empty.
                    words = pc.utf8_split_whitespace(pa.array([b". " + lines + b" ."], pa.string())).values[1:-1]
                    found = words.dictionary_encode()
                    of_block = [ids.setdefault(word, len(ids)) for word in found.dictionary.to_pylist()]
                    encoded.write(np.array(of_block, dtype=np.int32)[found.indices.to_numpy()].data)
        return [np.memmap(Path(made) / split, dtype=np.int32, mode="r") for split in _texts(folder)]


def _nightquant(folder: Path) -> Sequence[npt.ArrayLike]:
    from tasks.data.corpus import tokenize

    with tempfile.TemporaryDirectory(prefix="tokenize-") as made:
        lengths, _ = tokenize(_texts(folder), Path(made))
        # What is mapped stays when the files go.
        return [np.load(Path(made) / f"{split}.tokens.npy", mmap_mode="r") for split in lengths]


def _wc(folder: Path) -> Sequence[npt.ArrayLike]:
    subprocess.run(["wc", "-w", *map(str, _texts(folder).values())], check=True, stdout=subprocess.DEVNULL)
    return []


METHODS: MappingProxyType[str, Callable[[Path], Sequence[npt.ArrayLike]]] = MappingProxyType(
    {"plain": _plain, "arrow": _arrow, "nightquant": _nightquant, "wc -w": _wc}
)


def _texts(folder: Path) -> dict[str, Path]:
    from tasks.data.corpus import find_texts

    return find_texts(folder)


def _run_alone(name: str, root: Path, folder: Path) -> Row:
    command = [sys.executable, __file__, "--only", name, "--root", str(root), "--directory", str(folder)]
    row: Row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return row


def _measured(method: Callable[[Path], Sequence[npt.ArrayLike]], folder: Path) -> Row:
    from tasks.data import corpus  # noqa: F401 - imports are not what is measured

    wall, cpu = time.perf_counter(), _cpu_seconds()
    encoded = method(folder)
    wall, cpu = time.perf_counter() - wall, _cpu_seconds() - cpu
    peak = _peak_bytes()
    return Row(cpu_s=cpu, wall_s=wall, peak_rss_bytes=peak, ids=_digest(encoded))


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
    parser.add_argument("--like", type=Path, help="a text whose words come first in the made corpus")
    parser.add_argument("--against", type=Path, help="a checkout whose tokenizer is measured as well")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=METHODS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.against and not (options.against / "tasks").is_dir():
        parser.error(f"{options.against} is no checkout")
    return options


if __name__ == "__main__":
    main()
