"""Hooks for MkDocs: pages from outside docs/, their links, and a search that works when the site is opened from files.

In the repository ``docs/concepts.md`` links to ``../ARCHITECTURE.md``, and that page links to ``docs/speed.md``. The
site shows both pages, and its root is ``docs/``.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).parents[1]
# Pages beside README.md that belong to the site. The site's first page is index.md, not README.md.
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md")
# Folders outside docs/ whose TOML files pages link to.
FOLDERS = ("flows/workloads",)
# The theme starts its search worker as soon as it runs, so this script must come first.
SEARCH_SCRIPT = "search_from_files.js"

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


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load the search script before the theme's own scripts."""
    return output.replace("</head>", f'<script src="{get_relative_url(SEARCH_SCRIPT, page.url)}"></script></head>', 1)


def on_post_build(config: MkDocsConfig) -> None:
    """Write the search index as a script too, because a page opened from a file cannot fetch JSON."""
    folder = Path(config.site_dir) / "search"
    index = (folder / "search_index.json").read_text(encoding="utf-8")
    (folder / "search_index.js").write_text(f"var __index = {index};\n", encoding="utf-8")
