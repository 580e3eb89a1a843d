"""Try every attack and print the counts."""

from __future__ import annotations

import argparse
import random
import tempfile
import warnings
from collections import Counter
from pathlib import Path

from benchmarks.attacks import ATTACKS
from benchmarks.attacks.outcome import bounded_memory


def main() -> None:
    """Try every attack and print the counts; the exit code is 1 if one got through."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=10_000, help="of each attack, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=ATTACKS, nargs="+", default=[*ATTACKS], help="kinds of attack")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "Detected pickle protocol")
    through = 0
    print(f"{'attack':<34}{'tried':>8}{'refused':>9}{'harmless':>10}{'through':>9}")
    for name in arguments.only:
        attack = ATTACKS[name]
        with tempfile.TemporaryDirectory(prefix="nightquant-") as folder, bounded_memory():
            counts = Counter(attack(random.Random(arguments.seed), arguments.tries, Path(folder)))
        through += counts["through"]
        numbers = f"{counts['refused']:>9}{counts['harmless']:>10}{counts['through']:>9}"
        print(f"{name:<34}{counts.total():>8}{numbers}", flush=True)
    raise SystemExit(1 if through else 0)


if __name__ == "__main__":
    main()
