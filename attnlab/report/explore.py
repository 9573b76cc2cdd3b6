"""Stored runs as one page to explore: a single HTML file that opens from disk and needs no network.

`write` makes the file. Everything in it is computed here, by the same analysis as the report's; the page's own
JavaScript (``assets/*.js``) only selects and draws. It draws with Observable Plot and d3, which stand in ``assets``.
"""

from __future__ import annotations

from attnlab.report.explore_page import LIMIT, PAGE, render, write

__all__ = ["LIMIT", "PAGE", "render", "write"]
