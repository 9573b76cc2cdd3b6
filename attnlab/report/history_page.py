"""The history of one machine as a figure, `HISTORY`.png and .svg, and all machines' as Markdown, `HISTORY`.md.

The figure has a panel a workload over one axis of time: median seconds of a call as they were measured, a ring and a
percentage where a change point is, a line and its words where software changed. It holds a few workloads and
contenders, those with changes first; the page has all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab import figures
from attnlab.figures import Drawn
from attnlab.report.layout import Picture, Writing, evenly, markdown, shortened
from attnlab.runs.history import SMALLEST, History, Series
from attnlab.stats.change_points import ALPHA, FEWEST, LEAST
from attnlab.text import counted, number_text, percent, seconds_text
from attnlab.workload.workload import Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

HISTORY = "history"
#: of one figure: panels, and curves in each
_PANELS, _CURVES = 2, 6
#: inches, of 150 pixels: 1280 across; of a panel, of what stands above the panels, of a letter of a name, and of the
#: words above the first panel a letter and a row
_WIDTH, _HEIGHT, _ABOVE, _INCHES, _LETTER, _ROW = 1280 / 150, 2.05, 0.42, 0.087, 0.083, 13 / 72
#: of curves that are more than so many times apart a linear axis shows the upper one alone
_APART = 6.0
#: letters of what changed at one time, and rows of such words: for more there is the page's table
_LETTERS, _ROWS = 48, 4


def write(found: Sequence[History], out: Path) -> Path:
    """Write the page of the machines and their figures into `out`, and return the page. Raises OSError."""
    drawn = {one.machine: draw(one) for one in found if one.series and len(one.runs) > 1}
    pictures = Writing(drawn, out / "figures").finish()
    page = out / f"{HISTORY}.md"
    page.write_text(_page(found, pictures), encoding="utf-8")
    return page


# -- the page ----------------------------------------------------------------------------------------


_NOTE = f"""A time is the median of a run's rounds. Of histories in which nothing changed {percent(ALPHA)} show a change
point; a level lasts {LEAST} runs at least, and of fewer than {FEWEST} runs none can be told, nor below
{percent(SMALLEST)}. *Relative* changes were
looked for in the ratio to what the machine's other libraries did in the same run, so that its own drift cancels; where
the seconds did not change with it, another library moved. Software beside a change need not be its cause."""


def _page(found: Sequence[History], pictures: dict[str, Picture]) -> str:
    parts = ["# What changed from run to run"]
    for one in found:
        picture = [pictures[one.machine].link] if one.machine in pictures else []
        days = [_day(run.started) for run in one.runs]
        news = [(day, ", ".join(some)) for day, some in zip(days, one.news, strict=True) if some]
        span = " to ".join(dict.fromkeys((days[0], days[-1])))
        parts += [f"## {one.machine}", f"{span}: {summary(one)}.", *picture]
        parts += [markdown(["from", "software and variables"], news, left=2) if news else ""]
        parts += [_table(one) if any(each.changes for each in one.series) else ""]
    return "\n\n".join(filter(None, [*parts, _NOTE])) + "\n"


def summary(one: History) -> str:
    """How many runs there are, and how many contenders have a change point, where there are enough runs for any."""
    runs, changed = counted(len(one.runs), "run"), sum(bool(each.changes) for each in one.series)
    if len(one.runs) < FEWEST:
        return f"{runs}, of which no change point can be told: that takes {FEWEST}"
    return f"{runs}, {changed} of {len(one.series)} contenders at a workload have a change point"


def _table(one: History) -> str:
    """A row a change point; who has none is in ``attnlab history --json``."""
    rows: list[tuple[object, ...]] = []
    for each in one.series:
        ends = seconds_text(each.seconds[0]), seconds_text(each.seconds[-1])
        known = each.workload.label, each.contender, len(each.runs), *ends
        relative = " relative" if each.relative else ""
        for change in each.changes:
            size = step_text(change.ratio) + relative, step_text(change.seconds_ratio)
            rows.append((*known, _day(one.runs[change.run].started), *size, ", ".join(change.software)))
    head = "workload | contender | runs | first | last | changed on | by | in seconds | software there"
    return markdown(head.split(" | "), rows, left=2, narrow=True)


def step_text(ratio: float) -> str:
    """A ratio of times as a step: ``+5.1 %``, ``−12 %``."""
    return f"{'+' if ratio >= 1 else '−'}{number_text(abs(ratio - 1) * 100, 2)} %"


def _day(started: datetime) -> str:
    return f"{started:%Y-%m-%d %H:%M}"


# -- the figure --------------------------------------------------------------------------------------


def draw(one: History) -> Drawn:
    """The figure of one machine, and what it shows in words."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    by_workload: dict[Workload, list[Series]] = {}
    for each in one.series:
        by_workload.setdefault(each.workload, []).append(each)
    every = len(one.runs)
    one, panels = _alone(one, {workload: _first(some) for workload, some in _shown(by_workload).items()})
    longest = max(len(each.contender) for some in panels.values() for each in some)
    room = _WIDTH - figures.LEADER - _INCHES * longest
    told = _told(one, room - 1.0)  # which the times beside the axis take, about
    above = _ABOVE + _ROW * (1 + max((row for *_, row in told), default=-1))
    height = _HEIGHT * len(panels) + above
    figure, axes = figures.new_figure(1, len(panels), width=_WIDTH, height=height, sharex=True)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, 0, room / _WIDTH, 1 - above / height))
    labels = []
    for panel, (workload, some) in zip(axes, panels.items(), strict=True):
        labels.append((panel, _panel(panel, one, some)))
        there = len(by_workload[workload])
        part = f"  ({len(some)} of {there} contenders)" if there > len(some) else ""
        figures.entitle(panel, workload.label + part)
    for panel in axes:
        _software(panel, told, words=panel is axes[0])
    locator = AutoDateLocator(minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
    axes[-1].xaxis.set_major_locator(locator)
    axes[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    part = f"{len(one.runs)} of " if len(one.runs) < every else ""
    span = f"{part}{counted(every, 'run')} of one machine, {one.machine}"
    figure.text(
        0.01, 1 - 0.08 / height, f"Time of one call: {span}", ha="left", va="top",
        fontsize=figures.SIZE + 2, fontweight="bold", color=figures.BLACK,
    )  # fmt: skip
    dotted = any(each.runs[-1] < len(one.runs) - 1 for some in panels.values() for each in some)
    key = ["dashed: software or variables changed"] * bool(told) + ["dotted: not in the later runs"] * dotted
    axes[-1].set_xlabel("; ".join(key), fontsize=figures.SIZE - 2, loc="left", labelpad=14)
    figures.settle(figure, labels)
    at = " and at ".join(workload.label for workload in panels)
    return Drawn(figure, f"{span}: median time of a call over date at {at}")


def _shown(by_workload: Mapping[Workload, list[Series]]) -> dict[Workload, list[Series]]:
    """The workloads of which most contenders changed; else of those in most runs the largest, and others evenly."""
    changed = {workload: sum(bool(each.changes) for each in some) for workload, some in by_workload.items()}
    runs = {workload: max(len(each.runs) for each in some) for workload, some in by_workload.items()}
    often = [
        workload for workload in by_workload if changed[workload] or 2 * runs[workload] > max(runs.values())
    ]
    order = sorted(often, key=lambda workload: workload.score_bytes, reverse=True)
    first = sorted(filter(changed.get, order), key=lambda workload: -changed[workload])[:_PANELS]
    rest = evenly([workload for workload in order if workload not in first], _PANELS - len(first))
    return {workload: by_workload[workload] for workload in [*first, *rest]}


def _first(some: Sequence[Series]) -> list[Series]:
    """Those that are drawn: who changed, then who is in most runs, then who is fast."""
    return sorted(some, key=lambda each: (not each.changes, -len(each.runs), each.seconds[-1]))[:_CURVES]


def _panel(panel: Axes, one: History, some: Sequence[Series]) -> list[Text]:
    """The curves of a panel, each with its name at its end; those names."""
    dates: list[Any] = [run.started for run in one.runs]
    look, texts = figures.styles([each.contender for each in some]), []
    panel.margins(x=0.02)
    ends = [each.seconds[-1] for each in some]
    if max(ends) > _APART * min(ends):
        figures.seconds_axis(panel)
    else:
        panel.set_ylim(0, 1.12 * max(seconds for each in some for seconds in each.seconds))
        figures.seconds_ticks(panel)
    for each in some:
        colour, marker = look[each.contender].colour, look[each.contender].marker
        x = [dates[at] for at in each.runs]
        panel.plot(x, each.seconds, color=colour, marker=marker, markersize=4, linewidth=1.6)
        for change in each.changes:
            at = dates[change.run], each.seconds[each.runs.index(change.run)]
            panel.plot(*at, "o", markersize=11, fillstyle="none", color=colour)
            panel.annotate(
                step_text(change.ratio), at, xytext=(0, 9), textcoords="offset points", color=colour,
                fontsize=figures.SIZE - 1, fontweight="bold", ha="center", va="bottom", zorder=5,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0},
            )  # fmt: skip
        texts.append(figures.label(panel, dates[-1], each.seconds[-1], each.contender, colour))
        if x[-1] != dates[-1]:
            figures.lead(panel, (x[-1], dates[-1]), each.seconds[-1], colour)
    return texts


def _alone(
    one: History, panels: Mapping[Workload, Sequence[Series]]
) -> tuple[History, dict[Workload, list[Series]]]:
    """The history of the runs that the panels show, and these as they are numbered there."""
    shown = sorted({run for some in panels.values() for each in some for run in each.runs})
    place = {run: at for at, run in enumerate(shown)}
    found = {
        workload: [
            replace(
                each,
                runs=tuple(place[run] for run in each.runs),
                changes=tuple(replace(change, run=place[change.run]) for change in each.changes),
            )
            for each in some
        ]
        for workload, some in panels.items()
    }
    return replace(one, runs=tuple(one.runs[run] for run in shown)), found


def _told(one: History, width: float) -> list[tuple[datetime, str, bool, int]]:
    """When software or variables changed, the words for it, whether they end there, and their row from below.

    width : of the axis, in inches. Words that would meet stand in rows of their own, as far as there are any.
    """
    first, last = one.runs[0].started, one.runs[-1].started
    whole = max(last - first, timedelta(seconds=1))
    taken: list[tuple[int, float, float]] = []
    found = []
    for run, news in zip(one.runs, one.news, strict=True):
        if news:
            text = shortened(", ".join(news), _LETTERS)
            at = width * ((run.started - first) / whole)
            late, long = at > width / 2, _LETTER * (len(text) + 2)
            low, high = (at - long, at) if late else (at, at + long)
            beside = {row for row, left, right in taken if left < high and low < right}
            row = min(set(range(_ROWS)) - beside, default=0)
            text = "" if row in beside else text
            taken.append((row, low, high))
            found.append((run.started, text, late, row))
    return found


def _software(panel: Axes, told: Sequence[tuple[datetime, str, bool, int]], *, words: bool) -> None:
    """A line where software or variables changed; with `words` above the panel what did."""
    for when, text, late, row in told:
        at: Any = when
        panel.axvline(at, color=figures.GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        panel.annotate(
            text if words else "", (at, 1), (-3 if late else 3, 18 + 72 * _ROW * row),
            ("data", "axes fraction"), "offset points", color=figures.GREY, fontsize=figures.SIZE - 2,
            ha="right" if late else "left", va="bottom", annotation_clip=False, in_layout=False,
        )  # fmt: skip
