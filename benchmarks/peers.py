"""The same comparisons by attnlab and by other benchmark tools: false claims, and how far ratios are off.

``python benchmarks peers``, on a machine that does nothing else; ``pip install --group peers`` installs the others.
Every trial goes into ``benchmarks/peers.jsonl`` as soon as it is measured, and what is there is not measured again: an
interrupted run goes on where it stopped, and every run stops by itself after ``--minutes``. One round of everything
takes about twelve minutes, ten trials ten such runs. The page ``benchmarks/peers.md`` and its figure are made anew from
the store each time; ``--minutes 0`` makes them and measures nothing.

A claim is 1 where the second of a pair is called slower, -1 where it is called faster, and 0 where nothing is claimed.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from common import HOME, REPOSITORY, Store, command_line, load_beside, publish, table
from peer_tools import PAIRS, TOOLS, Pair, version

from attnlab import figure_style
from attnlab.environment import environment

#: kinds of background load
CONDITIONS = {"idle": "idle", "cpu": "beside a busy loop"}
OLD = " This attnlab is not today's, and its race was another: its rows do not tell how good today's is."
#: ``ratio`` (second over first), ``spent_s`` and what the tool told, as `peer_tools` stores it; or why it ``failed``
Trial = Mapping[str, Any]


# -- what a tool's figures claim to a reader --------------------------------------------------------------------------


def sign(first: float, second: float) -> int:
    return (second > first) - (second < first)


def quartiles_apart(trial: Trial) -> int:
    """the smaller median wins where the ranges between the quartiles do not overlap"""
    first, second = trial["first"], trial["second"]
    apart = first["q3"] < second["q1"] or second["q3"] < first["q1"]
    return sign(first["median"], second["median"]) if apart else 0


def trimmed_medians(trial: Trial) -> int:
    """the medians differ as `Compare` prints them after `trim_significant_figures()`"""
    sides = trial["first"], trial["second"]
    digits = min(side["significant_figures"] for side in sides)
    return sign(*(float(f"{side['median']:.{digits - 1}e}") for side in sides))


def significant(trial: Trial) -> int:
    """`pyperf compare_to` finds the means significantly different (its t-test)"""
    return sign(1.0, trial["ratio"]) if trial["significant"] else 0


def smaller(trial: Trial) -> int:
    """the smaller time in the plot wins"""
    return sign(1.0, trial["ratio"])


def verdict(trial: Trial) -> int:
    """`attnlab compare` says faster or slower"""
    return {"faster": -1, "slower": 1}.get(trial["verdict"], 0)


#: how each tool is read; the docstrings are told
RULES: dict[str, Callable[[Trial], int]] = {
    "pytest-benchmark": quartiles_apart,
    "torch.utils.benchmark": trimmed_medians,
    "pyperf": significant,
    "perfplot": smaller,
    "attnlab": verdict,
}


# -- the page ---------------------------------------------------------------------------------------------------------


def of(trials: Sequence[Trial], **wanted: object) -> list[Trial]:
    """Those trials whose entries are as wanted, and that did not fail."""
    return [one for one in trials if wanted.items() <= one.items() and "failed" not in one]


def off_truth(trials: Sequence[Trial]) -> list[float]:
    """How far each ratio is off the truth, as a part of it, the same either way round; of those that have one."""
    told = [one for one in trials if one["ratio"] is not None]
    return [math.expm1(abs(math.log(one["ratio"] / one["truth"]))) for one in told]


def quantile(values: Sequence[float], share: float) -> float:
    """By linear interpolation between order statistics; nan of nothing."""
    return float(np.quantile(values, share)) if values else math.nan


def percent(part: float) -> str:
    """A part of one in percent, to two figures; a dash for nan."""
    if math.isnan(part):
        return "–"
    return f"{part * 100:.2g} %" if part < 0.995 else f"{part * 100:.0f} %"


def told(trials: Sequence[Trial], tools: Sequence[str]) -> Iterator[str]:
    """The page from what was compared on."""
    yield "## What was compared"
    yield (
        "All at b=1, d=64, float32. `slowed=P` waits after each call for P % of its time, which makes the truth known. "
        "Every tool but attnlab runs with malloc as the system sets it; attnlab keeps its workers' heap."
    )
    yield table(
        ("pair", "first", "second", "workload", "truth"),
        [(p.name, f"`{p.first}`", f"`{p.second}`", f"h={p.heads}, n={p.length}", p.truth) for p in PAIRS],
    )
    yield "## How each tool was read"
    yield "\n".join(f"- **{tool}**: {RULES[tool].__doc__}." for tool in tools)
    yield (
        "A claim in A/A is false. In A/B it is right or wrong by the truth's side of 1. “Off by” is "
        "exp|ln(ratio / truth)| − 1."
    )
    for condition, title in CONDITIONS.items():
        if here := [one for one in trials if one["condition"] == condition]:
            yield f"## Machine {title}"
            yield table(HEAD, [row(here, tool) for tool in tools])
    none, ours = (
        sum(one["ratio_low"] is None for one in of(trials, tool="attnlab")),
        of(trials, tool="attnlab"),
    )
    if none := sum(one["ratio_low"] is None for one in ours):
        yield f"attnlab gave no interval and no verdict in {none} of {len(ours)}: too few quiet turns."


HEAD = (
    "tool",
    "false claims in A/A",
    "A/A: off by, median",
    "95th percentile",
    "A/B: off the truth by, median",
)
HEAD += ("ratios in A/B, median (range)", "winner right", "wrong", "no claim", "seconds", "failed")


def row(trials: Sequence[Trial], tool: str) -> tuple[object, ...]:
    """The scores of a tool on a machine in one condition, and the ratios that it told."""
    every, claim = [one for one in trials if one["tool"] == tool], RULES[tool]
    aa, ab = of(every, truth=1.0), [one for one in of(every) if one["truth"] != 1]
    off = (percent(quantile(off_truth(some), part)) for some, part in ((aa, 0.5), (aa, 0.95), (ab, 0.5)))
    ratios = [one["ratio"] for one in ab if one["ratio"] is not None]
    span = f"{quantile(ratios, 0.5):.3f} ({min(ratios):.3f} to {max(ratios):.3f})" if ratios else "–"
    right = [claim(one) * sign(1.0, one["truth"]) for one in ab]
    claims = f"{sum(claim(one) != 0 for one in aa)} of {len(aa)}"
    counts = (f"{right.count(1)} of {len(ab)}", right.count(-1), right.count(0))
    seconds = f"{quantile([one['spent_s'] for one in every], 0.5):.1f}"
    return (tool, claims, *off, span, *counts, seconds, len(every) - len(aa + ab))


def draw(trials: Sequence[Trial], tools: Sequence[str], folder: Path) -> None:
    """``peers.png``: false claims in A/A, and how far ratios are off, by tool and condition."""
    figure, (left, right) = figure_style.new_figure(
        2, width=10.4, height=0.62 * len(tools) + 1.7, sharey=True
    )
    conditions = [one for one in CONDITIONS if of(trials, condition=one)]
    for number, condition in enumerate(conditions):
        shift, colour = (
            0.34 * (number - (len(conditions) - 1) / 2),
            (figure_style.BLUE, figure_style.ORANGE)[number],
        )
        for row, tool in enumerate(tools):
            mine, claim = of(trials, tool=tool, condition=condition), RULES[tool]
            claims = [claim(one) != 0 for one in of(mine, truth=1.0)]
            place, share = row + shift, sum(claims) / max(len(claims), 1)
            left.barh(place, share, 0.3, color=colour, label=None if row else CONDITIONS[condition])
            text = f"{sum(claims)} of {len(claims)}" if claims else ""
            left.text(share + 0.02, place, text, va="center", fontsize=figure_style.SIZE - 2.5, color=colour)
            if off := off_truth(mine):
                middle, far = (max(1e-5, quantile(off, part)) for part in (0.5, 0.95))
                right.plot([middle, far], [place, place], color=colour, linewidth=1.6)
                right.plot([middle], [place], marker="o", color=colour, markersize=6)
    left.set_yticks(range(len(tools)), tools)
    left.set_ylim(len(tools) - 0.4, -0.6)
    left.set_xlim(0, 1.2)
    left.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    right.set_xscale("log")
    low, high = right.get_xlim()
    ticks = [10.0**power for power in range(-4, 3) if low <= 10.0**power <= high]
    right.set_xticks(ticks, [f"{one * 100:g} %" for one in ticks])
    right.minorticks_off()
    figure_style.entitle(left, "A backend against itself: false claims", "share of A/A comparisons")
    figure_style.entitle(
        right, "How far the ratio is off the truth", "median, and line to the 95th percentile"
    )
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure_style.save(figure, folder / "peers.png")


def measured(condition: str, pair: Pair, tool: str, seconds: float) -> dict[str, Any]:
    """One trial, to be stored; its ``failed`` tells why there is no ratio."""
    with tempfile.TemporaryDirectory(prefix="peers-") as folder, load_beside(condition):
        at, load = datetime.now(UTC).isoformat(timespec="seconds"), round(os.getloadavg()[0], 2)
        started = time.monotonic()
        try:
            found = TOOLS[tool](pair, seconds, Path(folder))
        except (RuntimeError, OSError, ValueError, KeyError) as fault:
            found = {"failed": f"{type(fault).__name__}: {fault}"}
    spent = round(time.monotonic() - started, 2)
    return {"at": at, "load": load, "version": version(tool), "spent_s": spent, **found}


def main() -> None:
    """Measure what is missing, and make the page and the figure."""
    parser = command_line(__doc__, out=HOME / "peers.jsonl")
    parser.add_argument(
        "--tools", nargs="*", choices=list(TOOLS), default=[one for one in TOOLS if version(one)]
    )
    parser.add_argument("--trials", default=10, type=int, help="of each pair, tool and condition [10]")
    parser.add_argument("--seconds", default=10.0, type=float, help="that a tool is given for a pair [10]")
    parser.add_argument("--minutes", default=12.0, type=float, help="after which no comparison is begun [12]")
    asked = parser.parse_args()
    store, until = Store(asked.out), time.monotonic() + 60 * asked.minutes
    if not store.rows:
        store.add(seconds=asked.seconds, machine=environment())
    seconds, machine = store.rows[0]["seconds"], store.rows[0]["machine"]
    # one after the other, so that a run that stops early has about as much of everything
    for trial, pair, condition, tool in product(range(asked.trials), PAIRS, CONDITIONS, asked.tools):
        key = {"trial": trial, "condition": condition, "pair": pair.name, "tool": tool}
        if time.monotonic() < until and store.lacks(**key):
            if environment()["cpu"] != machine["cpu"]:
                raise SystemExit(
                    f"{asked.out} was begun on {machine['cpu']}: go on there, or name another --out"
                )
            store.add(**key, **measured(condition, pair, tool, seconds))
    truth = {pair.name: pair.truth for pair in PAIRS}
    trials = [one | {"truth": truth[one["pair"]]} for one in store.rows[1:] if one["pair"] in truth]
    versions = {one["tool"]: one["version"] for one in trials}
    tools = [tool for tool in TOOLS if tool in versions]
    draw(trials, tools, REPOSITORY / "benchmarks" / "figures")
    parts = [
        f"`{asked.out.name}` holds every trial. Each tool was given about {seconds:g} s of wall-clock time for a pair, "
        "start-up included, and took what the tables say.",
        "![False claims and ratio errors of each tool](figures/peers.png)",
        "Versions: "
        + ", ".join(f"{tool} {versions[tool]}" for tool in tools)
        + "."
        + OLD * (versions.get("attnlab") != version("attnlab")),
        *told(trials, tools),
    ]
    title, last = "The same work by other benchmark tools", max(one["at"] for one in trials)
    publish(title, "peers", *parts, out=asked.out.with_suffix(".md"), at=(last[:10], machine))
