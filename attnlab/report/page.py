"""The page to explore a run: one HTML file with charts to filter and a table to sort, which needs no network.

The charts are Vega-Lite's (made with Altair), its JavaScript is inside the file. A policy in the page forbids whatever
comes from elsewhere. Names and reasons are text wherever they stand: the data is JSON that holds no tag, the table is
filled by a template that escapes.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from attnlab.report.frames import Frames, records
from attnlab.report.render import fill

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

PAGE = "explore.html"
#: rows of the table, and raw rounds, that one page holds; of more the first, or evenly spaced ones
MOST_ROWS, MOST_ROUNDS = 4000, 40_000
#: what the curves may show: columns of the results, and how each is called
QUANTITIES = {
    "seconds": "time of one call (s)",
    "speedup": "speedup over the baseline",
    "peak_bytes": "peak memory (B)",
    "flops": "FLOP/s",
    "share_of_matmul": "share of the best matrix product",
    "error": "relative error",
}
_SPEEDUP = ("speedup", "speedup_low", "speedup_high")
_WIDTH = 460


def page(frames: Frames, verdict: str) -> str:
    """The page as HTML; `verdict` is Markdown for its head."""
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    results, rounds = frames.results, frames.rounds
    spec = charts(frames).to_dict()
    thinned = rounds.iloc[:: max(1, -(-len(rounds) // MOST_ROUNDS))]
    spec["datasets"] = {name: records(one) for name, one in _data(frames, thinned).items()}
    # no tag can begin within the data
    data = json.dumps(spec, allow_nan=False).replace("<", "\\u003c")
    head = MarkdownIt("commonmark", {"html": False}).enable("table").render(verdict)
    return fill(
        "explore.html.j2",
        title=frames.run.folder.resolve().name,
        head=Markup(head),  # markdown-it leaves HTML in it as text
        bundle=Markup(_bundle()),
        spec=Markup(data),
        rows=list(results[:MOST_ROWS].itertuples()),
        left_out=max(0, len(results) - MOST_ROWS),
        every=-(-len(rounds) // MOST_ROUNDS),
    )


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed, as one script."""
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace(
        "</script", "<\\/script"
    )


def _data(frames: Frames, rounds: pd.DataFrame) -> dict[str, pd.DataFrame]:
    results = frames.results[frames.results.seconds.notna()]
    winners = frames.winners.assign(first=frames.winners["first"].map(", ".join)).drop(columns="not_compared")
    return {"results": results, "winners": winners, "rounds": rounds}


def charts(frames: Frames) -> alt.VConcatChart:
    """Curves against length, speedups with intervals at one size, the map of the fastest, and the raw rounds.

    One choice of group, head count and length holds for all of them.
    """
    import altair as alt

    timed = frames.results[frames.results.seconds.notna()]
    group, heads, n = (_choice(name, sorted(set(timed[name]))) for name in ("group", "heads", "n"))
    quantity = alt.param(
        "quantity",
        value="seconds",
        bind=alt.binding_select(
            options=list(QUANTITIES), labels=list(QUANTITIES.values()), name="curves show "
        ),
    )
    only = alt.selection_point(fields=["contender"], bind="legend", name="only")
    colour = alt.Color(
        "contender:N", sort=list(frames.analysis.names), title="contender (click, shift-click)"
    )
    faded = alt.when(only).then(alt.value(1.0)).otherwise(alt.value(0.08))
    here, size = "datum.group == group && datum.heads == heads", " && datum.n == n"
    told = [f"{name}:N" for name in ("contender", "heads", "n", "kernel", "computes_in", "verdict")]
    told += [f"{name}:Q" for name in ("seconds", *_SPEEDUP, "peak_bytes", "error")]

    log = alt.Scale(type="log")
    curves = (
        alt.Chart(
            alt.NamedData("results"),
            title="Against length, at the chosen head count",
            width=_WIDTH,
            height=320,
        )
        .transform_filter(here)
        .transform_calculate(value="datum[quantity]")
        .transform_filter("isValid(datum.value) && datum.value > 0")
        .mark_line(point=True)
        .encode(
            alt.X("n:Q", scale=alt.Scale(type="log", base=2)),
            alt.Y("value:Q", scale=log, title=None, axis=alt.Axis(format="~s")),
            colour,
            alt.Shape("contender:N", legend=None),
            opacity=faded,
            tooltip=told,
        )
    )
    forest = (
        alt.Chart(
            alt.NamedData("results"),
            title="Speedup over the baseline at the chosen size, with 95 % interval",
            width=_WIDTH,
        )
        .transform_filter(here + size)
        .encode(alt.Y("contender:N", sort="-x", title=None), colour)
    )
    spans = forest.mark_rule().encode(
        alt.X("speedup_low:Q", scale=log, title="speedup"), alt.X2("speedup_high:Q")
    )
    dots = forest.mark_point(filled=True, size=70).encode(
        alt.X("speedup:Q", scale=log, title="speedup"), tooltip=told
    )
    cells = (
        alt.Chart(
            alt.NamedData("winners"),
            title="The fastest at each size; pale where that is not decided",
            width=_WIDTH,
        )
        .transform_filter("datum.group == group")
        .encode(alt.X("heads:O"), alt.Y("n:O"))
    )
    boxes = cells.mark_rect(stroke="white").encode(
        colour,
        opacity=alt.condition("datum.sure == 'decided'", alt.value(0.85), alt.value(0.3)),
        tooltip=["first:N", "sure:N", "runner_up:N", *(f"{name}:Q" for name in _SPEEDUP), "workload:N"],
    )
    words = cells.mark_text(fontSize=10).encode(alt.Text("contender:N"))
    rounds = (
        alt.Chart(
            alt.NamedData("rounds"),
            title="Rounds at the chosen size; crosses were disturbed and do not count",
            width=_WIDTH,
            height=320,
        )
        .transform_filter(here + size)
        .mark_point()
        .encode(
            alt.X("round:Q"),
            alt.Y("seconds:Q", scale=log, axis=alt.Axis(format="~s")),
            colour,
            alt.Shape(
                "disturbed:N", scale=alt.Scale(domain=[False, True], range=["circle", "cross"]), legend=None
            ),
            opacity=faded,
            tooltip=["contender:N", "round:Q", "visit:Q", "seconds:Q", "disturbed:N"],
        )
    )
    made = alt.vconcat(curves.add_params(only) | (spans + dots), (boxes + words) | rounds)
    made = made.add_params(group, heads, n, quantity)
    made.resolve = alt.Resolve(scale={"shape": "independent"})
    return made


def _choice(name: str, values: list[Any]) -> alt.Parameter:
    """A select of one value of a column, the last at first: the largest size."""
    import altair as alt

    plain = [one.item() if hasattr(one, "item") else one for one in values] or [None]
    return alt.param(name, value=plain[-1], bind=alt.binding_select(options=plain, name=f"{name} "))
