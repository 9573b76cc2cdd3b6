"""Formulas become MathML while the site is built, which browsers draw without scripts or fonts from elsewhere."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

#: what pymdownx.arithmatex leaves of ``$...$`` and ``$$...$$``
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw the formulas of a page."""
    return FORMULA.sub(
        lambda match: convert(
            html.unescape(match[3]).strip(), display="block" if match[2] == "[" else "inline"
        ),
        content,
    )
