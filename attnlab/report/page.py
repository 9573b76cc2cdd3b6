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
_WIDTH = 430


def page(frames: Frames, verdict: str) -> str:
    """The page as HTML; `verdict` is Markdown for its head."""
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    rounds, results = (
        frames.rounds,
        frames.results.sort_values("seconds", key=lambda one: one.isna(), kind="stable"),
    )
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
        grouped=results.group.nunique() > 1,
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
    winners = frames.winners.assign(first=frames.winners["first"].map(", ".join)).drop(
        columns=["not_compared", "same_kernel"]
    )
    return {"results": results, "winners": winners, "rounds": rounds}


def charts(frames: Frames) -> alt.VConcatChart:
    """Curves against length, speedups with intervals at one size, the map of the fastest, and the raw rounds.

    One choice of group, head count and length holds for all of them.
    """
    import altair as alt

    timed = frames.results[frames.results.seconds.notna()]
    choices = [_choice(name, sorted(set(timed[name]))) for name in ("group", "heads", "n")]
    labels: dict[str, Any] = {"options": list(QUANTITIES), "labels": list(QUANTITIES.values())}
    quantity = alt.param("quantity", value="seconds", bind=alt.binding_select(name="curves show ", **labels))
    only = alt.selection_point(fields=["contender"], bind="legend", name="only")
    legend = alt.Legend(
        orient="top", columns=5, title="click to show one, shift-click for more", titleLimit=400
    )
    names = list(dict.fromkeys(frames.rounds.contender))
    colour = alt.Color("contender:N", scale=alt.Scale(domain=names), legend=legend)
    faded = alt.when(only).then(alt.value(1.0)).otherwise(alt.value(0.08))
    first = _against_length(colour, faded).add_params(only) | _speedups(colour)
    made = alt.vconcat(first, _fastest(colour) | _rounds(colour, faded))
    made = made.add_params(*choices, quantity)
    made.resolve = alt.Resolve(scale={"shape": "independent"})
    return made


#: what is shown of the choices; and what a pointer shows of a contender
_HERE, _SIZE = "datum.group == group && datum.heads == heads", " && datum.n == n"
_TOLD = [f"{name}:N" for name in ("contender", "heads", "n", "kernel", "computes_in", "verdict")]
_TOLD += [f"{name}:Q" for name in ("seconds", *_SPEEDUP, "peak_bytes", "error")]


def _chart(data: str, title: str, **options: Any) -> alt.Chart:
    import altair as alt

    return alt.Chart(alt.NamedData(data), title=title, width=_WIDTH, **options)


def _log(base: int = 10) -> alt.Scale:
    import altair as alt

    return alt.Scale(type="log", base=base, nice=False, padding=12)


def _against_length(colour: alt.Color, faded: Any) -> Any:
    import altair as alt

    lines = _chart("results", "Against length, at the chosen head count", height=320).transform_filter(_HERE)
    lines = lines.transform_calculate(value="datum[quantity]")
    return (
        lines.transform_filter("isValid(datum.value) && datum.value > 0")
        .mark_line(point=True)
        .encode(
            alt.X("n:Q", scale=_log(2)),
            alt.Y("value:Q", scale=_log(), title=None, axis=alt.Axis(format="~s")),
            colour,
            alt.Shape("contender:N", legend=None),
            opacity=faded,
            tooltip=_TOLD,
        )
    )


def _speedups(colour: alt.Color) -> Any:
    import altair as alt

    title = "Speedup over the baseline at the chosen size, with 95 % interval"
    rows = _chart("results", title).transform_filter(_HERE + _SIZE)
    rows = rows.encode(alt.Y("contender:N", sort=None, title=None), colour)
    low, middle = (alt.X(f"{name}:Q", scale=_log(), title="speedup") for name in ("speedup_low", "speedup"))
    spans = rows.mark_rule().encode(low, alt.X2("speedup_high:Q"))
    return spans + rows.mark_point(filled=True, size=70).encode(middle, tooltip=_TOLD)


def _fastest(colour: alt.Color) -> Any:
    import altair as alt

    cells = _chart("winners", "The fastest at each size; pale where that is not decided")
    cells = cells.transform_filter("datum.group == group")
    cells = cells.encode(alt.X("heads:O", axis=alt.Axis(labelAngle=0)), alt.Y("n:O"))
    decided = alt.condition("datum.sure == 'decided'", alt.value(0.85), alt.value(0.3))
    told = ["first:N", "sure:N", "runner_up:N", *(f"{name}:Q" for name in _SPEEDUP), "workload:N"]
    boxes = cells.mark_rect(stroke="white").encode(colour, opacity=decided, tooltip=told)
    return boxes + cells.mark_text(fontSize=10).encode(alt.Text("contender:N"))


def _rounds(colour: alt.Color, faded: Any) -> Any:
    import altair as alt

    title = "Rounds at the chosen size; crosses were disturbed and do not count"
    marks = alt.Scale(domain=[False, True], range=["circle", "cross"])
    return (
        _chart("rounds", title, height=320)
        .transform_filter(_HERE + _SIZE)
        .mark_point()
        .encode(
            alt.X("round:Q"),
            alt.Y("seconds:Q", scale=_log(), axis=alt.Axis(format="~s")),
            colour,
            alt.Shape("disturbed:N", scale=marks, legend=None),
            opacity=faded,
            tooltip=["contender:N", "round:Q", "visit:Q", "seconds:Q", "disturbed:N"],
        )
    )


def _choice(name: str, values: list[Any]) -> alt.Parameter:
    """A select of one value of a column, the last at first: the largest size."""
    import altair as alt

    plain = [one.item() if hasattr(one, "item") else one for one in values] or [None]
    bind = alt.binding_select(options=plain, name=f"{name} ") if len(plain) > 1 else alt.Undefined
    return alt.param(name, value=plain[-1], bind=bind)
