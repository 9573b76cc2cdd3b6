"""The site asks for nothing from elsewhere: neither scripts, nor styles, fonts or pictures."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

LOG = logging.getLogger("mkdocs.plugins.offline")
#: what a browser fetches by itself; links are followed by people
FETCHED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"' >]+)""")


def on_post_build(config: MkDocsConfig) -> None:
    """Warn, and so end a strict build, where a page would fetch something.

    Pages that are opened from the disk look for the search index as a script; searching itself takes a server.
    """
    index = Path(config.site_dir, "search", "search_index.json")
    if index.exists():
        script = f"var __index = {index.read_text(encoding='utf-8')}"
        index.with_suffix(".js").write_text(script, encoding="utf-8")
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        for address in FETCHED.findall(page.read_text(encoding="utf-8")):
            LOG.warning("%s would fetch %s", page.relative_to(config.site_dir), address)
