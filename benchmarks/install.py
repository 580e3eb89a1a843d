"""What an installation takes, and what the extra `runtimes` adds to it, in seconds and MB.

    python -m benchmarks.install

Installs this checkout with uv into a new virtual environment, first alone and then with the extra, compiled to bytecode
and with constraints.txt, as `make nightly` does. What lies in uv's cache is not downloaded again, and is linked into
the environment instead of copied where both are on one file system; `--no-cache` downloads all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
STEPS = {"nightquant": str(ROOT), "nightquant[runtimes]": f"{ROOT}[runtimes]"}


def main() -> None:
    """Install and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-cache", action="store_true", help="download every package")
    options = ["--no-cache"] if parser.parse_args().no_cache else []
    uv = str(Path(sys.executable).parent / "uv")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
        site = next(Path(folder).glob("lib/python*/site-packages"))
        packages, megabytes = installed(site)
        print("| | seconds | MB | packages |\n|---|---:|---:|---:|")
        for name, target in STEPS.items():
            began = time.perf_counter()
            subprocess.run(
                [uv, "pip", "install", "--quiet", *options, "--python", f"{folder}/bin/python", "--compile-bytecode",
                 "--constraint", str(ROOT / "constraints.txt"), "--editable", target],
                check=True,
            )  # fmt: skip
            seconds, before, size = time.perf_counter() - began, packages, megabytes
            packages, megabytes = installed(site)
            print(f"| {name} | {seconds:.0f} | +{megabytes - size:.0f} | +{packages - before} |", flush=True)


def installed(site: Path) -> tuple[int, float]:
    """How many distributions there are, and how many MB all files have."""
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(1 for _ in distributions(path=[str(site)])), size / 1e6


if __name__ == "__main__":
    main()
