"""Whatever is changed in a bundle is noticed, by nightquant and by the bundle's own program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from storage.errors import BundleError
from storage.seal import check_sums
from tasks.publish.checker import Refused, read_whole
from tasks.publish.verify import checker_source, verify

SUMS = "SHA256SUMS"


def _any(folder: Path, random: Random) -> Path:
    return random.choice(sorted(folder.iterdir()))


def _flip(folder: Path, random: Random) -> None:
    path = _any(folder, random)
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def _remove(folder: Path, random: Random) -> None:
    _any(folder, random).unlink()


def _rename(folder: Path, random: Random) -> None:
    path = _any(folder, random)
    path.rename(path.with_name(random.choice(["x-", "."]) + path.name))


def _add(folder: Path, random: Random) -> None:
    name = random.choice(["extra.bin", ".hidden", "torch.py", "sitecustomize.py", "model.ts~", "ä", "a b"])
    (folder / name).write_bytes(random.randbytes(random.randrange(9)))


def _add_special(folder: Path, random: Random) -> None:
    make: list[Callable[[Path], object]] = [
        Path.mkdir,
        os.mkfifo,
        lambda path: path.symlink_to("model.ts"),
        lambda path: path.symlink_to("/etc/hostname"),
        lambda path: path.symlink_to("nowhere"),
    ]
    random.choice(make)(folder / "extra")


def _link(folder: Path, random: Random) -> None:
    path = _any(folder, random)
    outside = folder.parent / f"outside-{folder.name}-{path.name}"
    path.rename(outside)
    path.symlink_to(outside)


def _edit_manifest(folder: Path, random: Random) -> None:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    for output in manifest["model"]["outputs"]:
        output["tolerance"] = 10.0 ** random.randint(1, 9)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")


def _edit_sums(folder: Path, random: Random) -> None:
    lines = (folder / SUMS).read_text(encoding="ascii").splitlines(keepends=True)
    which = random.randrange(len(lines))
    changed = [
        lines[:which] + lines[which + 1 :],
        [*lines, lines[which]],
        lines[::-1],
        [*lines[:which], lines[which].upper(), *lines[which + 1 :]],
        [*lines, "0" * 64 + "  ../outside\n"],
        [line.replace("  ", " *") for line in lines],
        ["\n", *lines],
    ]
    (folder / SUMS).write_text("".join(random.choice(changed)), encoding="ascii")


MUTATIONS = (_flip, _remove, _rename, _add, _add_special, _link, _edit_manifest, _edit_sums)


def _copy(published: Path, target: Path) -> Path:
    shutil.copytree(published, target)
    for path in target.iterdir():
        path.chmod(0o644)
    return target


@pytest.mark.parametrize("mutate", MUTATIONS)
@pytest.mark.slow
def test_both_implementations_refuse_every_mutation(
    mutate: Callable[[Path, Random], None], published: Path, tmp_path: Path
):
    for seed in range(20):
        folder = _copy(published, tmp_path / f"bundle-{seed}")
        mutate(folder, Random(seed))
        with pytest.raises(BundleError):
            check_sums(folder)
        with pytest.raises((Refused, OSError)):
            read_whole(folder)


@pytest.mark.parametrize("mutate", [_flip, _add])
@pytest.mark.slow
def test_a_mutation_is_refused_before_torch_is_imported(
    mutate: Callable[[Path, Random], None], published: Path, tmp_path: Path
):
    folder = _copy(published, tmp_path / "bundle")
    mutate(folder, Random(0))
    report = verify(folder)
    assert (report.ok, report.stage) == (False, "files")
    # Without site-packages there is no torch: had it got that far, this would be a traceback.
    command = [sys.executable, "-I", "-S", "-c", checker_source("torchscript"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("REFUSED")
