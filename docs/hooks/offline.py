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
    """Warn, and so end a strict build, where a page would fetch something."""
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        for address in FETCHED.findall(page.read_text(encoding="utf-8")):
            LOG.warning("%s would fetch %s", page.relative_to(config.site_dir), address)
