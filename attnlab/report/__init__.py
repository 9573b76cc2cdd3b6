"""From stored results to a page that a person reads.

`content_of` reads and judges a run once; `write` makes of it ``report.md``, its figures and its tables, `verdict_text`
the verdict for a terminal. They read nothing but the run, so that a report can be made again from its folder at any
time. matplotlib is loaded where a figure is drawn only.
"""

from __future__ import annotations

from attnlab.report.formats import Content, content_of, in_words, write
from attnlab.runs.store import Run

__all__ = ["Content", "content_of", "in_words", "verdict_text", "write"]


def verdict_text(run: Run) -> str:
    """The verdict, its tables, the warnings and its sentences as plain text, for a terminal."""
    return in_words(content_of(run))
