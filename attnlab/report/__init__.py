"""From stored results to a page that a person reads.

`content_of` reads and judges a run once; `write` makes of it ``report.md``, its figures and its tables, `verdict_text`
the verdict for a terminal. They read nothing but the run, so that a report can be made again from its folder at any
time. matplotlib is loaded by `write` only.
"""

from __future__ import annotations

from attnlab.report import layout, sentences
from attnlab.report.analysis import Analysis, analyse
from attnlab.report.answer import Answer, answer_of
from attnlab.report.page import Content, content_of, write
from attnlab.runs.store import Run

__all__ = ["Content", "content_of", "verdict_text", "write"]


def verdict_text(run: Run) -> str:
    """The verdict, its tables, the warnings and its sentences as plain text, for a terminal."""
    analysis = analyse(run)
    return in_words(analysis, answer_of(analysis))


def in_words(analysis: Analysis, found: Answer) -> str:
    """The same of a run that is analysed already."""
    lines = [found.line, *(f"Warning: {one}" for one in sentences.warnings(analysis))]
    for group in found.groups:
        lines += ["", f"{group.name}: {group.line}"] if group.name else [""]
        lines += [group.text]
    lines += ["", found.legend] if found.legend else []
    lines += [f"- {one}" for one in found.sentences]
    return "\n".join(layout.plain(one) for one in lines)
