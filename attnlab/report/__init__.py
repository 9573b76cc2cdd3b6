"""From stored results to a page that a person reads.

`write` makes ``report.md`` and its figures, `verdict_text` the verdict for a terminal. Both read nothing but
the run, so that a report can be made again from its folder at any time. matplotlib is loaded by `write` only.
"""

from __future__ import annotations

from attnlab.program.store import Run
from attnlab.report import layout, sentences
from attnlab.report.analysis import analyse
from attnlab.report.page import write

__all__ = ["verdict_text", "write"]


def verdict_text(run: Run) -> str:
    """The warnings and the verdict as plain text, a paragraph a sentence, for a terminal."""
    analysis = analyse(run)
    lines = [f"Warning: {one}" for one in sentences.warnings(analysis)]
    for heading, some in sentences.verdict(analysis):
        lines += [f"{heading}:"] if heading else []
        lines += [f"- {one}" for one in some]
    lines.append(sentences.footnote(analysis))
    return "\n".join(layout.plain(one) for one in lines)
