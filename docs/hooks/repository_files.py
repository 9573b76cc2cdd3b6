"""The site's pages that lie outside of `docs/`, and links between files of the repository as links between pages.

Every Markdown file is written for whoever reads the repository: its links are paths between files. Here those become
paths between pages; one that leads to no page of the site stays as it is, and the strict build refuses it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

#: of the repository, with their pictures: ``reports/reference/report.md`` becomes ``repository/reports/...``
INCLUDED = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/*.md",
    "benchmarks/*/*.md",
    "reports/README.md",
    "reports/reference/**/*.md",
    "reports/reference/**/*.png",
    "reports/h100/**/*.md",
    "reports/h100/**/*.png",
)
#: the README is the repository's first page, and `docs/index.md` the site's
INSTEAD = {"README.md": "index.md"}
ROOM = "repository/"
LINK = re.compile(r"(\]\()([^)\s#:]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """In the navigation ``folder/*.md`` stands for all pages that match and have no place of their own, by name."""
    nav = config.nav or []
    config.nav = _spelt(nav, Path(config.docs_dir), set(_named(nav)))
    return config


def _named(entry: Any) -> Iterator[str]:
    """The pages that have a place of their own."""
    if isinstance(entry, str):
        yield entry
    else:
        for one in entry.values() if isinstance(entry, dict) else entry:
            yield from _named(one)


def _spelt(entry: Any, docs: Path, named: set[str]) -> Any:
    if isinstance(entry, dict):
        return {title: _spelt(inner, docs, named) for title, inner in entry.items()}
    if not isinstance(entry, list):
        return entry
    spelt: list[Any] = []
    for one in entry:
        if isinstance(one, str) and "*" in one:
            outside = one.startswith(ROOM)
            room, folder = (ROOM, docs.parent) if outside else ("", docs)
            found = folder.glob(one.removeprefix(ROOM))
            spelt += sorted({room + path.relative_to(folder).as_posix() for path in found} - named)
        else:
            spelt.append(_spelt(one, docs, named))
    return spelt


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that lie outside of the documentation's folder."""
    root = Path(config.docs_dir).parent
    for pattern in INCLUDED:
        for path in sorted(root.glob(pattern)):
            name = ROOM + path.relative_to(root).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files into links between pages, and let Markdown be read inside ``<details>``."""
    here = page.file.src_uri
    lies = here.removeprefix(ROOM) if here.startswith(ROOM) else f"docs/{here}"

    def moved(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(lies), match[2]))
        inside = INSTEAD.get(target) or (
            target.removeprefix("docs/") if target.startswith("docs/") else ROOM + target
        )
        if files.get_file_from_path(inside) is None:
            return match[0]
        return match[1] + posixpath.relpath(inside, posixpath.dirname(here) or ".")

    return LINK.sub(moved, markdown).replace("<details>", "<details markdown>")
