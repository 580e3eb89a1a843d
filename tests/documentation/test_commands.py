"""Every command on a page is run as written, in the page's order, from a copy of the checkout.

The copy's built-in workloads and examples are made small, and their gates promote the smallest candidate, so that what
is handed over does not hang on how busy the machine is; the commands and all that they go through are the real ones.
A block that is not run has a comment before it that says why. docs/operations.md has a test of its own, since its
commands need a server and a worker beside them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from flows.cli import nightquant
from storage.bundles import BundleStore
from tasks.workload.workload import Workload
from tests.documentation.pages import MARKDOWN, ROOT, Block, Document
from tests.tasks.text_workloads import write_corpus

QUICKSTART = "docs/quickstart.md"
ELSEWHERE = {"docs/operations.md": "tests/flows/test_operations.py"}
# What has changed is history; it may name commands that are gone.
LIVING = [page for page in MARKDOWN if page.name != "CHANGELOG.md"]
BLOCKS = [block for page in LIVING for block in Document.read(page).shell]
RUN_HERE = {
    page: [block for block in BLOCKS if block.page == page and not block.not_run]
    for page in dict.fromkeys(block.page for block in BLOCKS if not block.not_run)
    if page not in ELSEWHERE
}
SOURCES = ("flows", "tasks", "storage", "docs", "benchmarks")
FILES = ("Makefile", "pyproject.toml", "constraints.txt", "README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")


def small(workload: str) -> str:
    """The same workload with little to train on and a gate that leaves nothing to chance."""
    for key, value in {"epochs": 1, "train": 512, "test": 256, "calibration_batches": 2}.items():
        workload = re.sub(rf"(?m)^{key} = \d+$", f"{key} = {value}", workload)
    return re.sub(r"(?s)\[gate\]\n.*", '[gate]\nobjective = "smallest"\n', workload)


def copy_checkout(folder: Path) -> Path:
    """What a clone holds, and an environment in .venv that counts as installed."""
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    for file in (*folder.glob("flows/workloads/*.toml"), *folder.glob("docs/examples/*.toml")):
        file.write_text(small(file.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / ".venv").mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        if (Path(sys.prefix) / name).exists():
            (folder / ".venv" / name).symlink_to(Path(sys.prefix) / name)
    for name in ("python", "installed", "installed-dev"):
        (folder / ".venv" / name).touch()
    return folder


def environment_of(checkout: Path) -> dict[str, str]:
    """What a reader's shell holds, with the copy's own code and nothing of this machine's settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "NIGHTQUANT_"))}
    return inherited | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(checkout),
        "PREFECT_HOME": str(checkout / ".prefect"),
        # Other tests keep the machine busy meanwhile.
        "NIGHTQUANT_SERVER_STARTUP_TIMEOUT_S": "300",
        "DO_NOT_TRACK": "1",
        "MPLBACKEND": "agg",
    }


def run_page(page: str, checkout: Path) -> str:
    """Run the page's blocks in one shell, in the copy `checkout`; give what it printed."""
    blocks = "\n".join(f": {shlex.quote(str(block))}\n{block.text}" for block in RUN_HERE[page])
    script = f"set -eEo pipefail\ntrap 'echo \"failed: $BASH_COMMAND\" >&2' ERR\n{blocks}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=checkout,
        env=environment_of(checkout),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def first_day(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A checkout in which somebody followed the quickstart, and what was printed meanwhile."""
    checkout = copy_checkout(tmp_path_factory.mktemp("quickstart"))
    return checkout, run_page(QUICKSTART, checkout)


@pytest.fixture
def checkout(first_day: tuple[Path, str], tmp_path: Path) -> Path:
    """Another checkout with a copy of that store."""
    shutil.copytree(first_day[0] / "nightquant-store", tmp_path / "nightquant-store", symlinks=True)
    return copy_checkout(tmp_path)


def two_bundles(checkout: Path) -> None:
    """For "Handing over": a second bundle of word-lm, which replaces the first by being under another licence."""
    built_in = checkout / "flows" / "workloads" / "word-lm.toml"
    text = built_in.read_text(encoding="utf-8").replace("PSF License", "another licence")
    built_in.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "flows", "nightly", "--workload", "word-lm", "--profile", "quick"]
    subprocess.run(command, cwd=checkout, env=environment_of(checkout), check=True, capture_output=True)
    assert len(BundleStore(str(checkout / "nightquant-store")).entries("word-lm")) == 2


def images_and_weights(checkout: Path) -> None:
    """For "Your model": what a reader has already, photos/ and classifier.pth."""
    import torch
    from PIL import Image

    for number in range(120):
        colour = (200, 60, 40) if number % 2 else (40, 60, 200)
        file = checkout / "photos" / ("brick" if number % 2 else "sea") / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((64, 64), 20 + number).convert("RGB").point(lambda v: v // 2).save(file)
        with Image.open(file) as image:
            Image.blend(image, Image.new("RGB", image.size, colour), 0.5).save(file)
    namespace: dict[str, Callable[..., torch.nn.Module]] = {}
    exec((checkout / "docs" / "examples" / "classifier.py").read_text(encoding="utf-8"), namespace)
    torch.save(namespace["build"](classes=2).state_dict(), checkout / "classifier.pth")


def corpus_and_checkpoint(checkout: Path) -> None:
    """For "The word language model": a corpus, and weights of the tutorial's model for its words."""
    import torch

    from tasks.domains.language_model.model import WordLanguageModel

    corpus = write_corpus(checkout / "wikitext-2")
    words = {word for file in corpus.iterdir() for word in file.read_text(encoding="utf-8").split()}
    model = WordLanguageModel(len(words) + 1, embedding_size=512, hidden_size=256, layers=5, dropout=0.5)
    torch.save(model.state_dict(), checkout / "word_lm.pth")
    shutil.copy(checkout / "docs" / "examples" / "wikitext.toml", checkout)


# What a reader of the page has before its first command, besides a checkout with a night in its store.
BEFORE: dict[str, Callable[[Path], None]] = {
    "docs/handoff.md": two_bundles,
    "docs/your-model.md": images_and_weights,
    "docs/word-lm.md": corpus_and_checkpoint,
}


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(1800)
def test_the_quickstart_leads_from_a_checkout_to_a_verified_bundle(first_day: tuple[Path, str]) -> None:
    checkout, printed = first_day
    assert {entry.workload for entry in BundleStore(str(checkout / "nightquant-store")).entries()} == {
        "lstm-demo",
        "resnet18",
        "word-lm",
    }
    assert (checkout / "report.html").stat().st_size > 10_000
    assert re.search(r"^good: ", printed, re.M)


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", [page for page in RUN_HERE if page != QUICKSTART])
def test_the_commands_of_a_page_run_as_written(page: str, checkout: Path) -> None:
    if page in BEFORE:
        BEFORE[page](checkout)
    run_page(page, checkout)


def test_the_pages_that_are_run_elsewhere_are_read_there() -> None:
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


def whole_lines(text: str) -> Iterator[str]:
    """The lines of a block; those between two quotation marks are one."""
    begun = ""
    for line in text.splitlines(keepends=True):
        begun += line
        try:
            shlex.split(begun, comments=True)
        except ValueError:
            continue
        yield begun
        begun = ""


def commands_shown() -> Iterator[tuple[str, list[str]]]:
    """(place, words) of every command of this project on a page, in prose and in blocks, run or not."""
    for page in LIVING:
        document = Document.read(page)
        lines = [(page.name, code) for code in document.prose_code]
        lines += [(str(block), line.removeprefix("$ ")) for block in document.shell for line in whole_lines(block.text)]
        for place, line in lines:
            if re.match(r"(?:\.venv/bin/)?(?:nightquant|python|make) \S", line):
                yield place, shlex.split(line.replace("\n", " "), comments=True)


def test_every_subcommand_and_option_on_a_page_exists() -> None:
    seen = 0
    for place, (program, *words) in commands_shown():
        if not program.endswith("nightquant"):
            continue
        command: click.Command | None = nightquant
        context = click.Context(nightquant)
        while isinstance(command, click.Group) and words:
            command = command.get_command(context, words.pop(0))
        assert command is not None, place
        command.make_parser(context).parse_args(words)  # click.NoSuchOption, where it has none of that name
        seen += 1
    assert seen > 40


@pytest.mark.slow
def test_every_module_and_target_on_a_page_exists() -> None:
    targets = set(re.findall(r"(?m)^([\w./-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
    seen = 0
    for place, (program, *words) in commands_shown():
        if program == "make":
            assert words[0] in targets, place
        elif program == "python" and (words[0] == "-m" or words[0].endswith(".py")):
            name = words[1] if words[0] == "-m" else words[0].removesuffix(".py").replace("/", ".")
            if not name.startswith(("benchmarks.", "tests.")):
                continue
            source = Path(str(import_module(name).__file__)).read_text(encoding="utf-8")
            assert all(f'"{word}"' in source for word in words if word.startswith("--")), place
        seen += 1
    assert seen > 10


def test_every_block_that_is_not_run_is_one_that_cannot_be() -> None:
    """Each is named here, so that a marker is not the easy way out."""
    assert [f"{block.page}: {_first_command(block)}" for block in BLOCKS if block.not_run] == [
        "docs/dashboard.md: python -m tests.documentation.test_dashboard nightquant-store",
        "docs/operations.md: make .venv/installed",
        "docs/operations.md: pip install 'nightquant[dask,s3]'",
        "docs/scale.md: python -m benchmarks.scale --write docs/scale.md",
        "docs/tokenization.md: $ python benchmarks/tokenization.py --megabytes 500 --repeat 5 --like train.txt "
        "--against before",
        "docs/tokenization.md: $ python benchmarks/tokenization.py --megabytes 14 --repeat 15 --like train.txt "
        "--against before",
        "docs/word-lm.md: python benchmarks/word_lm.py --data PATH --checkpoint FILE --write docs/word-lm.md",
        "CONTRIBUTING.md: make test",
    ]


def _first_command(block: Block) -> str:
    return block.text.splitlines()[0].partition(" #")[0].rstrip()


def test_the_sections_that_your_model_shows_are_those_of_its_examples() -> None:
    page = (ROOT / "docs" / "your-model.md").read_text(encoding="utf-8")
    shown = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", page, re.S)]
    first, second = (
        tomllib.loads((ROOT / "docs" / "examples" / name).read_text(encoding="utf-8"))
        for name in ("classifier.toml", "photos.toml")
    )
    assert [list(part) for part in shown] == [["model"], ["checkpoint"], ["data"]]
    assert shown[0]["model"] == first["model"]
    assert shown[1]["checkpoint"] == second["checkpoint"]
    assert shown[2]["data"].items() >= second["data"].items()
    Workload.model_validate(second | shown[2])
