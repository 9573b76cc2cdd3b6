"""The page to explore a run: one HTML file with charts to filter and a table to sort, which needs no network.

The charts are made with Altair for Vega-Lite, whose JavaScript is inside the file. A content security policy in the
page forbids everything from elsewhere. Names and reasons are always shown as text: the data is JSON without tags, and
the template escapes what it puts into the table.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from attnlab.environment import cache_folder
from attnlab.errors import NotStored
from attnlab.race.visit import ROUNDS
from attnlab.report.frames import Frames, records
from attnlab.report.render import fill
from attnlab.text import write_whole
from attnlab.workload.result import Outcome

if TYPE_CHECKING:
    import altair as alt

PAGE = "explore.html"
#: most table rows of a page (of more, the first); most raw rounds of a page (of more, evenly spaced ones)
MOST_ROWS, MOST_ROUNDS = 4000, 40_000
#: columns of the results that the curves can show, with their labels
QUANTITIES = {
    "seconds": "time of one call (s)",
    "speedup": "speedup over the baseline",
    "peak_bytes": "peak memory (B)",
    "flops": "FLOP/s",
    "share_of_matmul": "share of the best matrix product",
    "error": "relative error",
}
#: columns in tooltips, each with its label and its d3 format
_SPEEDUP = {
    "speedup": ("speedup", ".3r"),
    "speedup_low": ("its interval from", ".3r"),
    "speedup_high": ("to", ".3r"),
}
_TOLD = {
    "seconds": ("time (s)", ".3s"),
    **_SPEEDUP,
    "peak_bytes": ("peak memory (B)", ".3s"),
    "error": ("relative error", ".2e"),
}


def page(frames: Frames, verdict: str) -> str:
    """The page as HTML; `verdict` is Markdown for its head."""
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    results = frames.results.sort_values("seconds", key=lambda one: one.isna(), kind="stable")
    results, absent = (results[(results.outcome == Outcome.UNAVAILABLE) == its] for its in (False, True))
    every = max(1, -(-len(frames.rounds) // MOST_ROUNDS))
    joined = frames.winners["first"].map(", ".join)
    data = {
        "results": frames.results[frames.results.seconds.notna()],
        "winners": frames.winners.assign(first=joined).drop(columns=["not_compared", "same_kernel"]),
        "rounds": frames.rounds.iloc[::every],
    }
    spec = charts(frames).to_dict() | {"datasets": {name: records(one) for name, one in data.items()}}
    head = MarkdownIt("commonmark", {"html": False}).enable("table").render(verdict)
    return fill(
        "explore.html.j2",
        title=frames.run.folder.resolve().name,
        head=Markup(head),  # markdown-it escapes HTML in it
        bundle=Markup(_bundle()),
        spec=Markup(json.dumps(spec, allow_nan=False).replace("<", "\\u003c")),  # no tag can begin there
        rows=list(results[:MOST_ROWS].itertuples()),
        grouped=results.group.nunique() > 1,
        left_out=max(0, len(results) - MOST_ROWS),
        absent=absent.contender.nunique(),
        every=every,
    )


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script. Making it takes two seconds, so it is kept in the cache folder."""
    import vl_convert

    kept = cache_folder() / f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError, ValueError):
        return kept.read_text(encoding="utf-8")
    script = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace(
        "</script", "<\\/script"
    )
    with suppress(OSError, NotStored):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, script.encode())
    return script


def charts(frames: Frames) -> alt.VConcatChart:
    """Curves against length, speedups with intervals at one size, the map of the fastest, and the raw rounds.

    All charts share one choice of group, head count and length. At first it is the last group and the largest size.
    """
    import altair as alt

    timed = frames.results[frames.results.seconds.notna()]
    choices = []
    for name in ("group", "heads", "n"):
        values = sorted(set(timed[name].tolist())) or [None]
        bind = alt.binding_select(options=values, name=f"{name} ") if len(values) > 1 else alt.Undefined
        choices.append(alt.param(name, value=values[-1], bind=bind))
    labels: dict[str, Any] = {"options": list(QUANTITIES), "labels": list(QUANTITIES.values())}
    quantity = alt.param("quantity", value="seconds", bind=alt.binding_select(name="curves show ", **labels))
    only = alt.selection_point(fields=["contender"], bind="legend", name="only")
    title = "click to show one, shift-click for more"
    legend = alt.Legend(orient="top", columns=5, title=title, titleLimit=400)
    names = list(dict.fromkeys(frames.rounds.contender))
    colour = alt.Color("contender:N", scale=alt.Scale(domain=names), legend=legend)
    lines, spans, boxes, rounds = _panels(
        colour, alt.when(only).then(alt.value(1.0)).otherwise(alt.value(0.08))
    )
    made = alt.vconcat(lines.add_params(only) | spans, boxes | rounds).add_params(*choices, quantity)
    made.resolve = alt.Resolve(scale={"shape": "independent"})
    return made


def _panels(colour: alt.Color, faded: Any) -> tuple[Any, Any, Any, Any]:
    """The four charts. colour, faded : the colour and the opacity of a contender."""
    import altair as alt

    here, size = "datum.group == group && datum.heads == heads", " && datum.n == n"
    log: dict[str, Any] = {"type": "log", "base": 10, "nice": False, "padding": 12}
    told, of_cell = (
        [f"{name}:N" for name in names]
        + [alt.Tooltip(f"{name}:Q", title=title, format=form) for name, (title, form) in figures.items()]
        for names, figures in (
            (("contender", "heads", "n", "kernel", "verdict"), _TOLD),
            (("first", "sure", "runner_up", "workload"), _SPEEDUP),
        )
    )
    results, winners, rounds = (
        alt.Chart(alt.NamedData(name), width=430) for name in ("results", "winners", "rounds")
    )
    lines = (
        results.properties(title="Against length, at the chosen head count", height=320)
        .transform_filter(here)
        .transform_calculate(value="datum[quantity]")
        .transform_filter("isValid(datum.value) && datum.value > 0")
        .mark_line(point=True)
        .encode(
            alt.X("n:Q", scale={**log, "base": 2}),
            alt.Y("value:Q", scale=log, title=None, axis={"format": "~s"}),
            colour,
            alt.Shape("contender:N", legend=None),
            opacity=faded,
            tooltip=told,
        )
    )
    title = "Speedup over the baseline at the chosen size, where it has a 95 % interval"
    at_size = results.properties(title=title).transform_filter(here + size)
    at_size = at_size.encode(alt.Y("contender:N", sort=None, title=None), colour)
    low, middle = (alt.X(f"{name}:Q", scale=log, title="speedup") for name in ("speedup_low", "speedup"))
    spans = at_size.mark_rule().encode(low, alt.X2("speedup_high:Q"))
    spans += at_size.mark_point(filled=True, size=70).encode(middle, tooltip=told)
    cells = winners.properties(title="The fastest at each size; pale where that is not decided")
    cells = cells.transform_filter("datum.group == group")
    cells = cells.encode(alt.X("heads:O", axis={"labelAngle": 0}), alt.Y("n:O"))
    decided = alt.condition("datum.sure == 'decided'", alt.value(0.85), alt.value(0.3))
    boxes = cells.mark_rect(stroke="white").encode(colour, opacity=decided, tooltip=of_cell)
    boxes += cells.mark_text(fontSize=10).encode(alt.Text("contender:N"))
    title = "Each round, by visit, at the chosen size; crosses were disturbed and do not count"
    raw = rounds.properties(title=title, height=320).transform_filter(here + size)
    raw = raw.transform_calculate(
        place=f"datum.visit + datum.round % {ROUNDS} / 20"
    )  # the rounds of a visit are side by side
    marks = {"domain": [False, True], "range": ["circle", "cross"]}
    raw = raw.mark_point().encode(
        alt.X("place:Q", title="visit", axis={"tickMinStep": 1}),
        alt.Y("seconds:Q", scale=log, axis={"format": "~s"}),
        colour,
        alt.Shape("disturbed:N", scale=marks, legend=None),
        opacity=faded,
        tooltip=["contender:N", "round:Q", "visit:Q", "seconds:Q", "disturbed:N"],
    )
    return lines, spans, boxes, raw
