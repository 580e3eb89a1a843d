"""What MkDocs needs to show the repository's own pages: links that leave docs/, and the pages they lead to.

In the repository ``docs/runtimes.md`` links ``../ARCHITECTURE.md``, and that page links ``docs/speed.md``. Both are
pages of one site, whose root is ``docs/``.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Pages beside README.md that belong to the site; README.md itself is what index.md is to the repository.
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
# What pages link to and a reader may copy.
FOLDERS = ("flows/workloads",)

_LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)#\s]+)(?P<rest>[^)]*\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and files from outside docs/."""
    paths = [ROOT / name for name in PAGES]
    paths += [path for folder in FOLDERS for path in sorted((ROOT / folder).iterdir()) if path.suffix == ".toml"]
    for path in paths:
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that lead from or to a file outside docs/ into links within the site."""
    source = page.file.src_uri
    in_repository = source if source in PAGES else f"docs/{source}"

    def moved(link: re.Match[str]) -> str:
        if ":" in link["target"]:
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(in_repository), link["target"]))
        in_site = posixpath.relpath(target.removeprefix("docs/"), posixpath.dirname(source) or ".")
        return f"{link['before']}{'index.md' if target == 'README.md' else in_site}{link['rest']}"

    return _LINK.sub(moved, markdown)
