"""The same comparisons by attnlab and by other benchmark tools: false claims, and how far ratios are off.

``python benchmarks peers``, on a machine that does nothing else; ``pip install --group peers`` installs the others.
Every trial goes into ``benchmarks/peers.jsonl`` as soon as it is measured, and what is there is not measured again: an
interrupted run goes on where it stopped, and every run stops by itself after ``--minutes``. One round of everything
takes about twelve minutes, ten trials ten such runs. ``benchmarks/peers.md`` is made anew from the store each time;
``--minutes 0`` measures nothing. Another machine needs another ``--out``.

A claim is 1 where the second of a pair is called slower, -1 where it is called faster, and 0 where nothing is claimed.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from common import HOME, Store, command_line, load_beside, publish, table
from peer_tools import PAIRS, TOOLS, Pair, version

from attnlab.environment import environment

#: kinds of background load
CONDITIONS = {"idle": "idle", "cpu": "beside a busy loop"}
OLD = " This attnlab is not today's, and its race was another: its rows do not tell how good today's is."
#: ``ratio`` (second over first), ``spent_s`` and what the tool told, as `peer_tools` stores it; or why it ``failed``
Trial = Mapping[str, Any]
HEAD = (
    "tool",
    "false claims in A/A",
    "A/A: off by, median",
    "95th percentile",
    "A/B: off the truth by, median",
)
HEAD += (
    "ratios in A/B, median (range)",
    "winner right",
    "wrong",
    "right twice in a row",
    "seconds",
    "failed",
)


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


def verdict(trial: Trial) -> int:
    """`attnlab compare` says faster or slower"""
    return {"faster": -1, "slower": 1}.get(trial["verdict"], 0)


#: how each tool is read; the docstrings are told
RULES: dict[str, Callable[[Trial], int]] = {
    "pytest-benchmark": quartiles_apart,
    "torch.utils.benchmark": trimmed_medians,
    "pyperf": significant,
    "attnlab": verdict,
}


def percent(part: float) -> str:
    """A part of one in percent, to two figures; a dash for nan."""
    return "–" if math.isnan(part) else f"{part * 100:.2g} %" if part < 0.995 else f"{part * 100:.0f} %"


def row(tool: str, every: pd.DataFrame) -> tuple[object, ...]:
    """The scores of a tool on a machine in one condition, and the ratios that it told."""
    good = every[every.failed.isna()].sort_values("trial")
    aa, ab = good[good.truth == 1], good[good.truth != 1]
    off = (aa.off.median(), aa.off.quantile(0.95), ab.off.median())
    span = f"{ab.ratio.median():.3f} ({ab.ratio.min():.3f} to {ab.ratio.max():.3f})" if len(ab) else "–"
    right = ab.claim == (ab.truth > 1).map({True: 1, False: -1})
    # the first and the second trial of a pair, the third and the fourth, and so on: two sittings
    twice = right.groupby([ab.pair, ab.trial // 2]).agg(["all", "size"]).query("size == 2")["all"]
    counts = (
        f"{right.sum()} of {len(ab)}",
        (ab.claim != 0).sum() - right.sum(),
        f"{twice.sum()} of {len(twice)}",
    )
    claims = f"{(aa.claim != 0).sum()} of {len(aa)}"
    return (
        tool,
        claims,
        *map(percent, off),
        span,
        *counts,
        f"{every.spent_s.median():.1f}",
        every.failed.count(),
    )


def told(trials: pd.DataFrame) -> Iterator[str]:
    """The page from what was compared on."""
    yield "## What was compared"
    yield (
        "All at b=1, d=64, float32. `slowed=P` waits after each call for P % of its time, which makes the truth known. "
        "Every tool but attnlab runs with malloc as the system sets it; attnlab keeps its workers' heap."
    )
    cells = [(p.name, f"`{p.first}`", f"`{p.second}`", f"h={p.heads}, n={p.length}", p.truth) for p in PAIRS]
    yield table(("pair", "first", "second", "workload", "truth"), cells)
    yield "## How each tool was read"
    yield "\n".join(f"- **{tool}**: {rule.__doc__}." for tool, rule in RULES.items())
    yield (
        "A claim in A/A is false. In A/B it is right or wrong by the truth's side of 1. “Off by” is "
        "exp|ln(ratio / truth)| − 1. “Right twice in a row” counts pairs of trials."
    )
    for condition, title in CONDITIONS.items():
        here = dict(iter(trials[trials.condition == condition].groupby("tool")))
        yield f"## Machine {title}"
        yield table(HEAD, [row(tool, here[tool]) for tool in TOOLS if tool in here])


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
    """Measure what is missing, and make the page."""
    parser = command_line(__doc__, out=HOME / "peers.jsonl")
    parser.add_argument("--tools", nargs="*", default=[one for one in TOOLS if version(one)])
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
            store.add(**key, **measured(condition, pair, tool, seconds))
    truth = {pair.name: pair.truth for pair in PAIRS}
    known = (one for one in store.rows[1:] if one["pair"] in truth and one["tool"] in TOOLS)
    trials = pd.DataFrame([{"failed": None, "ratio": None, **one} for one in known])
    trials["truth"], trials["ratio"] = trials.pair.map(truth), trials.ratio.astype(float)
    trials["off"] = [math.expm1(abs(math.log(one.ratio / one.truth))) for one in trials.itertuples()]
    rules = (one.failed or RULES[one.tool](one._asdict()) for one in trials.itertuples())
    trials["claim"] = [one if isinstance(one, int) else 0 for one in rules]
    versions = dict(zip(trials.tool, trials.version, strict=True))
    listed = ", ".join(f"{tool} {versions[tool]}" for tool in TOOLS if tool in versions)
    parts = [
        f"`{asked.out.name}` holds every trial. Each tool was given about {seconds:g} s of wall-clock time for a pair, "
        "start-up included, and took what the tables say.",
        f"Versions: {listed}." + OLD * (versions.get("attnlab") != version("attnlab")),
        *told(trials),
    ]
    title, day = "The same work by other benchmark tools", trials["at"].max()[:10]
    publish(title, "peers", *parts, out=asked.out.with_suffix(".md"), at=(day, machine))
