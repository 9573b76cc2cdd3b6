"""A run as a report shows it: judged, and every text in it fit to be shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attnlab.judge import analysis as judged
from attnlab.report.neutral import neutral
from attnlab.runs.store import Run


@dataclass(frozen=True, eq=False)
class Analysis(judged.Analysis):
    """What the results of `run` say, and the run itself."""

    run: Run


def analyse(run: Run, safe: Callable[[Run], Run] = neutral) -> Analysis:
    """Judge `run`; safe : what makes its texts fit to be shown, here in Markdown."""
    run = safe(run)
    return Analysis(**vars(run.judged()), run=run)
