"""A report's figures: who is first and by how much, how far others trail, time and memory against length."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attnlab import figures
from attnlab.figures import MARKERS, Drawn, Style
from attnlab.figures import styles as styles_of
from attnlab.report.analysis import Analysis
from attnlab.report.tables import MARKS, first_names, lead_text, part_of, part_of_heads, readable
from attnlab.stats.analysis import Cell, Group
from attnlab.stats.groups import place_text
from attnlab.stats.ranking import Lead, Ranking, Sure
from attnlab.stats.verdicts import Verdict
from attnlab.text import bytes_text, counted, listed, number_text, percent, seconds_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

#: of a cell of a heat map, in inches; and part of a tie's colour that is left
_CELL, _PALE = (1.9, 0.72), 0.16
#: the edge of a cell
_EDGES = {Sure.DECIDED: "-", Sure.ALONE: "-", Sure.CLOSE: "--", Sure.TIE: "--", Sure.NO_INTERVAL: ":"}
#: letters of the smaller size that fit into a line of it
_LETTERS = 26
#: groups of workloads that are drawn
MOST_GROUPS = 3
#: an interval whose ends are this many times apart is drawn as a dotted line: it tells nothing
_TELLS_NOTHING = 20.0
#: points from a panel to its legend, which the words of the axis stand above
_LEGEND_BELOW = 34
#: a speedup from which on cells are no darker
_DARKEST = 8.0
#: more panels than this are not drawn in one figure, which then says so
_MOST_PANELS = 6
_HEIGHT, _WIDTHS = 4.6, {1: 8.0, 2: 11.5, 3: 14.0}

Curve = dict[int, float]
Value = Callable[[Cell, str], float | None]
Guides = Mapping[str, Callable[[Cell], float]]
Panel = tuple[Group, int, dict[str, Curve]]


def heat_maps(analysis: Analysis) -> dict[str, Drawn]:
    """By name: ``winners`` and ``speedups`` of the first groups, numbered from the second on."""
    drawn = {}
    for number, group in enumerate(analysis.groups[:MOST_GROUPS], start=1):
        shown = readable(group)
        suffix = f"-{number}" if number > 1 else ""
        part = "" if shown is group else f": {part_of(group)}"
        if shown.won:
            drawn[f"winners{suffix}"] = _winners(analysis, shown, part)
        if any(one.won.over_baseline for one in shown.won):
            drawn[f"speedups{suffix}"] = _speedups(analysis, shown, part)
    return drawn


def _winners(analysis: Analysis, group: Group, part: str) -> Drawn:
    styles = styles_of(analysis.names)
    figure, axes = _map(group, f"The fastest{part}")
    counts: dict[str, list[int]] = {}
    for one in group.won:
        won, colour = one.won, styles[one.won.name].colour
        decided = won.sure is Sure.DECIDED
        counts.setdefault(won.name, [0, 0])[not decided] += 1
        number = "alone" if won.ahead is None else lead_text(won.ahead)
        if won.sure in (Sure.CLOSE, Sure.TIE):
            number += f"\n{MARKS[won.sure]} {first_names(won, skip=1)}"
        elif won.sure is Sure.NO_INTERVAL:
            number += " ? no interval"
        ground = colour if decided else figures.mixed(colour, _PALE)
        _square(axes, group, one, ground, won.name, number, won.sure)
    said = [
        f"{name} at {sum(both)}, {_of_these(both[0], sum(both))}"
        for name, both in sorted(counts.items(), key=lambda item: -sum(item[1]))
    ]
    title = f" ({group.name})" if group.name else ""
    says = f"Heat map of who is fastest at {counted(len(group.won), 'size')}{title}: {'; '.join(said)}."
    return Drawn(figure, f"{says} Drawn are{part[1:]}; the tables have all." if part else says)


def _of_these(decided: int, every: int) -> str:
    if decided == every:
        return "decided" if every == 1 else "all decided"
    return "not decided" if decided == 0 else f"{decided} of them decided"


def _over_baseline(analysis: Analysis, one: Cell) -> Lead | None:
    """The winner's lead over the baseline: 1 where that is the winner itself, None where it has no time."""
    if one.won.over_baseline is not None:
        return one.won.over_baseline
    return Lead(analysis.baseline, 1.0, None, None) if analysis.baseline in one.first else None


def _speedups(analysis: Analysis, group: Group, part: str) -> Drawn:
    leads = [(one, lead) for one in group.won if (lead := _over_baseline(analysis, one)) is not None]
    figure, axes = _map(group, f"How many times as fast as {analysis.baseline} the fastest is{part}")
    for one, lead in leads:
        depth = 0.06 + 0.94 * min(1.0, max(0.0, math.log(max(lead.ratio, 1e-9)) / math.log(_DARKEST)))
        interval = lead_text(lead).partition(" ")[2]
        told = interval or ("the baseline itself" if lead.ratio == 1.0 else "no interval")
        sure = Sure.DECIDED if interval or lead.ratio == 1.0 else Sure.NO_INTERVAL
        if interval and (lead.low or 0.0) <= 1 + one.margin:
            sure = Sure.TIE
        ground = figures.mixed(figures.BLUE, depth)
        _square(axes, group, one, ground, f"{number_text(lead.ratio)} ×", told, sure)
    least, most = (pick(leads, key=lambda one: one[1].ratio) for pick in (min, max))
    says = (
        f"Heat map of the fastest contender's speed over {analysis.baseline}: from {_at(*least)} to {_at(*most)}, "
        "intervals in brackets."
    )
    return Drawn(figure, f"{says} Drawn are{part[1:]}; the tables have all." if part else says)


def _at(one: Cell, lead: Lead) -> str:
    return f"{lead_text(lead)} times at {place_text(one.workload)}"


def _map(group: Group, title: str) -> tuple[Figure, Axes]:
    """Empty axes with a column a head count and a row a length."""
    columns, rows = len(group.heads), len(group.lengths)
    width, height = columns * _CELL[0] + 0.9, rows * _CELL[1] + 1.0
    figure, (axes,) = figures.new_figure(width=max(width, 4.8), height=height)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_xticks(range(columns), [counted(count, "head") for count in group.heads])
    axes.set_yticks(range(rows), [f"n = {n}" for n in group.lengths])
    axes.tick_params(length=0)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    # a map of one column is narrower than its title
    title += "\n(dashed: not decided; dotted: no interval)"
    figure.suptitle(title, fontsize=figures.SIZE, fontweight="bold", color=figures.BLACK)
    figures.lay_out(figure)  # before its cells, which change nothing about it and take long
    return figure, axes


def _square(axes: Axes, group: Group, one: Cell, ground: str, name: str, below: str, sure: Sure) -> None:
    from matplotlib.patches import Rectangle

    heads, n = one.at
    x, y = group.heads.index(heads), group.lengths.index(n)
    look: dict[str, Any] = {"facecolor": ground, "edgecolor": figures.BLACK, "linestyle": _EDGES[sure]}
    width = 0.8 if _EDGES[sure] == "-" else 1.8
    axes.add_patch(Rectangle((x - 0.47, y - 0.45), 0.94, 0.9, linewidth=width, **look))
    style: dict[str, Any] = {"ha": "center", "va": "center", "in_layout": False, "linespacing": 1.15}
    style["color"] = figures.ink(ground)
    for line in below.splitlines():
        if len(line) > _LETTERS:
            sign, after = ("[", "\n[") if "=" in line else (", ", ",\n")
            below = below.replace(line, line.replace(sign, after, 1))
    lines = 1 + below.count("\n")
    up, size = min(0.1 * lines, 0.29), figures.SIZE - (2.5 if lines < 3 else 3.5)
    axes.text(x, y - up, name, fontsize=_fitting(name, figures.SIZE - 0.5, 0.88), fontweight="bold", **style)
    axes.text(x, y + 0.28 - 0.45 * up, below, fontsize=_fitting(below, size), **style)


def _fitting(text: str, most: float, room: float = 1.0) -> float:
    """The size of letters, in points and at most `most`, at which the longest line of `text` fits into a cell.

    room : the part of a cell's letters that fit; bold ones are wider.
    """
    return min(most, room * _LETTERS * (figures.SIZE - 2.5) / max(1, *map(len, text.splitlines())))


# -- how far the others trail ------------------------------------------------------------------------


def trailing(analysis: Analysis) -> Drawn | None:
    """Time over that of the fastest with its interval, a row a contender, at the longest length of each head count.

    None where no two were compared.
    """
    panels = [(group, longest) for group in analysis.groups if (longest := _longest(readable(group)))][
        :MOST_GROUPS
    ]
    if not panels:
        return None
    names = [_rows(longest) for _, longest in panels]
    heights = [0.34 * len(some) + 1.4 for some in names]
    figure, every = figures.new_figure(
        1, len(panels), width=7.4, height=sum(heights), height_ratios=heights, sharex=True
    )
    styles = styles_of(analysis.names)
    for axes, (group, longest), rows in zip(every, panels, names, strict=True):
        _forest(axes, rows, longest, styles)
        shorter = [
            f"{counted(one.workload.heads, 'head')} at n = {one.workload.keys}"
            for one in longest
            if one.workload.keys < group.grid[one.workload.heads][-1]
        ]
        # a longer length was asked for, at which no two had an interval
        named = [group.name, f"{listed(shorter)}, not compared at longer ones" if shorter else ""]
        title = ": ".join(["Times as long as the fastest", *filter(None, named)])
        figures.entitle(axes, textwrap.fill(title, 70))
    told = all(
        _tells(one) for _, longest in panels for some in map(_compared, longest) for one in some.values()
    )
    every[-1].set_xlabel(
        f"time / time of the fastest, log scale, 95 % intervals{'' if told else ' (dotted: over 20-fold)'}",
        fontsize=figures.SIZE - 1,
    )
    says, first = _trailing_says(panels[0][1]), panels[0][0]
    if readable(first).heads != first.heads:
        says += f" Drawn are {part_of_heads(first)}."
    return Drawn(figure, says)


def _longest(group: Group) -> list[Ranking]:
    """Of each head count the ranking at the longest length at which two were compared."""
    compared = [cell for cell in group.ordered if cell.ranking is not None and cell.ranking.decided]
    return list({cell.at[0]: cell.ranking for cell in compared if cell.ranking is not None}.values())


def _compared(ranking: Ranking) -> dict[str, Verdict]:
    """The verdicts against the best, by contender."""
    return {one.contender: one.against_best for one in ranking.standings if one.against_best is not None}


def _rows(longest: Sequence[Ranking]) -> list[str]:
    """Contenders compared anywhere here, those that are fastest at most head counts on top."""
    logs: dict[str, list[float]] = {}
    for ranking in longest:
        logs.setdefault(ranking.best.contender, []).append(0.0)
        for name, verdict in _compared(ranking).items():
            logs.setdefault(name, []).append(math.log(verdict.ratio))
    return sorted(logs, key=lambda name: (sum(logs[name]) / len(logs[name]), name))


def _forest(axes: Axes, rows: Sequence[str], longest: Sequence[Ranking], styles: dict[str, Style]) -> None:
    from matplotlib.transforms import ScaledTranslation

    for place, ranking in enumerate(longest):
        label, marker = place_text(ranking.workload), MARKERS[place % len(MARKERS)]
        shift = min(0.22, 0.8 / len(longest)) * (place - (len(longest) - 1) / 2)  # within the row
        axes.plot([], [], marker, color=figures.GREY, markersize=5, label=label)
        verdicts = _compared(ranking)
        for name in (one.contender for one in ranking.standings):
            verdict = verdicts.get(name)
            if verdict is None and name != ranking.best.contender:
                continue
            y, colour = rows.index(name) + shift, styles[name].colour
            axes.plot(1.0 if verdict is None else verdict.ratio, y, marker, color=colour, markersize=5.5)
            if verdict is not None:
                ends = [[verdict.ratio - verdict.low], [verdict.high - verdict.ratio]]
                look = {"linewidth": 1.6} if _tells(verdict) else {"linewidth": 1.0, "linestyle": ":"}
                bar = axes.errorbar(verdict.ratio, y, xerr=ends, fmt="none", color=colour)
                bar.lines[2][0].set(**look)
    axes.axvline(1.0, color=figures.BLACK, linewidth=1.0, zorder=1)
    axes.set_xscale("log")
    # an interval of two pairs may span decades: it runs out of the figure, which is there for the others
    ratios = [verdict.ratio for ranking in longest for verdict in _compared(ranking).values()]
    axes.set_xlim(min(0.7, 0.85 * min(ratios)), max(2.5, 1.8 * max(ratios)))
    _plain_ticks(axes)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), rows)
    for text, name in zip(axes.get_yticklabels(), rows, strict=True):
        text.set_color(styles[name].colour)
    # so many points below the panel, however high it is: below the ticks, and below the last panel's words as well
    below = ScaledTranslation(0, -_LEGEND_BELOW / 72, axes.figure.dpi_scale_trans)
    style = {"loc": "upper center", "bbox_to_anchor": (0.4, 0), "bbox_transform": axes.transAxes + below}
    figures.legend(axes, ncols=min(3, len(longest)), **style)


def _tells(verdict: Verdict) -> bool:
    """Whether its interval is narrow enough to say anything."""
    return verdict.high < _TELLS_NOTHING * verdict.low


def _plain_ticks(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 1.5, 2.0, 3.0, 5.0), numticks=20))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _trailing_says(longest: Sequence[Ranking]) -> str:
    """The largest workload with most pairs of processes in words: who is next to the fastest, and who is last."""
    ranking = max(
        longest,
        key=lambda one: (max(each.processes for each in _compared(one).values()), one.workload.score_bytes),
    )
    others = {
        name: verdict
        for name, verdict in _compared(ranking).items()
        if (one := ranking.of(name)) and one.implementation != ranking.best.implementation
    }
    at = f"at {place_text(ranking.workload)} {ranking.best.contender} has the least time"
    if not others:
        return f"Time over that of the fastest, with intervals: {at}; only other names of its kernel were compared."
    ends = dict.fromkeys(pick(others, key=lambda name: others[name].ratio) for pick in (min, max))
    ratios = {
        name: map(number_text, (others[name].ratio, others[name].low, others[name].high)) for name in ends
    }
    told = [f"{name} takes {ratio} [{low}, {high}]" for name, (ratio, low, high) in ratios.items()]
    return f"Time over that of the fastest, with intervals: {at}; {listed(told)} times as long."


# -- time and memory against length: a panel for each group of workloads and head count --------------


def latency(analysis: Analysis) -> Drawn | None:
    """Median seconds per call against n. None where no head count has two lengths."""

    def seconds(cell: Cell, name: str) -> float | None:
        standing = cell.standing(name)
        return None if standing is None else standing.seconds

    title = "Time of one call (median): lower is better"
    return _draw(analysis, seconds, figures.seconds_axis, title, {}, seconds_text)


def memory(analysis: Analysis) -> Drawn | None:
    """Peak bytes of a call against n, with the score matrix and the results, each known by arithmetic."""

    def peak(cell: Cell, name: str) -> float | None:
        return cell.measured[name].peak_bytes if name in cell.measured else None

    guides: Guides = {
        "score matrix": lambda cell: cell.workload.score_bytes,
        "results": lambda cell: cell.workload.output_bytes,
    }
    title = "Peak memory of one call: lower is better"
    return _draw(analysis, peak, figures.bytes_axis, title, guides, bytes_text)


def ceiling(analysis: Analysis) -> Drawn | None:
    """Achieved FLOP/s as a share of the best matrix product of this run, against n."""

    def share(cell: Cell, name: str) -> float | None:
        return cell.rates[name].compute if name in cell.measured and name in cell.rates else None

    title = "Share of the best matrix-multiply rate: higher is better"
    guides: Guides = {"best matrix product": lambda cell: 1.0}
    shares = (share(cell, name) for cell in analysis.cells for name in cell.measured)
    axis = partial(figures.share_axis, most=max(filter(None, shares), default=1.0))
    return _draw(analysis, share, axis, title, guides, percent)


def _draw(
    analysis: Analysis,
    value: Value,
    axis: Callable[[Axes], None],
    title: str,
    guides: Guides,
    written: Callable[[float], str],
) -> Drawn | None:
    """All panels with a curve in them, those of a row on one vertical axis; None where there is none."""
    panels_of = (
        (group, count, _curves(analysis, group, count, value))
        for group in analysis.groups
        for count in group.heads
    )
    every = [panel for panel in panels_of if any(len(curve) > 1 for curve in panel[2].values())]
    if not every:
        return None
    chosen = every[:_MOST_PANELS]
    each = {sum(one is group for one, _, _ in chosen) for group, _, _ in chosen}
    # the head counts of a group stand side by side, where every group has as many
    columns = each.pop() if each in ({2}, {3}) else min(len(chosen), 3)
    rows = -(-len(chosen) // columns)
    width = _WIDTHS[columns]
    inches = width / columns - 0.6
    figure, panels = figures.new_figure(columns, rows, width=width, height=_HEIGHT * rows, sharey="row")
    for spare in panels[len(chosen) :]:
        spare.remove()
    styles = styles_of(analysis.names)
    labels, early = [], False  # of each panel, yet to be moved apart; whether a curve ends before others
    for axes, (group, count, curves) in zip(panels, chosen, strict=False):
        lengths = sorted({n for curve in curves.values() for n in curve})
        figures.powers_of_two(axes, lengths, most=6)
        axis(axes)
        axes.margins(y=0.12)
        texts = [
            figures.guide(axes, lengths, [known(group.cells[count, n]) for n in lengths], text)
            for text, known in guides.items()
        ]
        labels.append((axes, texts + _curves_into(axes, curves, styles, lengths)))
        figures.make_room(axes, lengths, [*guides, *curves], inches)
        heading = ", ".join(filter(None, (counted(count, "head"), group.name)))
        figures.entitle(axes, textwrap.fill(heading, int(inches / 0.1)), "n, length")
        early |= any(max(curve) < lengths[-1] for curve in curves.values())
    left_out = f" (the first {len(chosen)} of {len(every)} panels)" if len(every) > len(chosen) else ""
    dotted = " (dotted: no value at these lengths)" if early else ""
    whole = textwrap.fill(title + left_out + dotted, int(figure.get_figwidth() / 0.12))
    figure.suptitle(whole, fontsize=figures.SIZE + 2)
    figures.settle(figure, labels)
    return Drawn(figure, _says(title, chosen, written))


def _says(title: str, panels: Sequence[Panel], written: Callable[[float], str]) -> str:
    """The panel with the longest length in words: least and most there."""
    group, count, curves = max(panels, key=lambda one: (max(max(curve) for curve in one[2].values()), one[1]))
    last = max(max(curve) for curve in curves.values())
    there = {name: curve[last] for name, curve in curves.items() if last in curve}
    least, most = min(there, key=there.__getitem__), max(there, key=there.__getitem__)
    place = ", ".join(filter(None, (f"n = {last}", counted(count, "head"), group.name)))
    figures = f"{written(there[least])} ({least})"
    if most != least:
        figures = f"from {figures} to {written(there[most])} ({most})"
    return f"{title}, against length. At {place}: {figures}."


def _curves_into(
    axes: Axes, curves: Mapping[str, Curve], styles: Mapping[str, Style], lengths: Sequence[int]
) -> list[Text]:
    """Draw `curves` and return their labels; earlier ones are broader, so that later ones do not hide them."""
    texts = []
    for place, (name, curve) in enumerate(curves.items()):
        style = styles[name]
        under = 1 - place / max(1, len(curves) - 1)
        # a length without a value is a gap, not a line drawn across it
        span = [n for n in lengths if min(curve) <= n <= max(curve)]
        axes.plot(
            span,
            [curve.get(n, float("nan")) for n in span],
            color=style.colour,
            marker=style.marker,
            linestyle=style.dashes,
            markersize=4.5 + 2.5 * under,
            linewidth=1.5 + 1.1 * under,
        )
        texts.append(figures.label(axes, lengths[-1], curve[max(curve)], name, style.colour))
        if max(curve) < lengths[-1]:
            figures.lead(axes, (max(curve), lengths[-1]), curve[max(curve)], style.colour)
    return texts


def _curves(analysis: Analysis, group: Group, count: int, value: Value) -> dict[str, Curve]:
    curves = {}
    for name in analysis.names:
        points = {n: value(group.cells[count, n], name) for n in group.grid[count]}
        curve = {n: float(y) for n, y in points.items() if y is not None and y > 0}
        if curve:
            curves[name] = curve
    return curves
