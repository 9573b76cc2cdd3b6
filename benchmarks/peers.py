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
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from common import HOME, Store, command_line, load_beside, publish, table, table_of
from peer_tools import PAIRS, TOOLS, Pair, version

from attnlab.environment import environment
from attnlab.text import percent

#: kinds of background load
CONDITIONS = {"idle": "idle", "cpu": "beside a busy loop"}
OLD = " This attnlab is not today's, and its race was another: its rows do not tell how good today's is."
#: ``ratio`` (second over first), ``spent_s`` and what the tool told, as `peer_tools` stores it; or why it ``failed``
Trial = Mapping[str, Any]


def quartiles_apart(trial: Trial) -> bool:
    """the smaller median wins where the ranges between the quartiles do not overlap"""
    first, second = trial["first"], trial["second"]
    return bool(first["q3"] < second["q1"] or second["q3"] < first["q1"])


def trimmed_medians(trial: Trial) -> bool:
    """the medians differ as `Compare` prints them after `trim_significant_figures()`"""
    sides = trial["first"], trial["second"]
    digits = min(side["significant_figures"] for side in sides)
    return len({f"{side['median']:.{digits - 1}e}" for side in sides}) > 1


def significant(trial: Trial) -> bool:
    """`pyperf compare_to` finds the means significantly different (its t-test)"""
    return bool(trial["significant"])


def verdict(trial: Trial) -> bool:
    """`attnlab compare` says faster or slower"""
    return trial["verdict"] in ("faster", "slower")


#: when each tool claims a difference; the docstrings are told
RULES: dict[str, Callable[[Trial], bool]] = {
    "pytest-benchmark": quartiles_apart,
    "torch.utils.benchmark": trimmed_medians,
    "pyperf": significant,
    "attnlab": verdict,
}


def scored(trial: Trial) -> dict[str, Any]:
    """A trial with its truth, its claim, and by what part its ratio is off the truth."""
    (truth,) = (pair.truth for pair in PAIRS if pair.name == trial["pair"])
    ratio, claim = trial.get("ratio") or math.nan, 0
    if not trial.get("failed") and RULES[trial["tool"]](trial):
        claim = 1 if ratio > 1 else -1
    off = math.expm1(abs(math.log(ratio / truth)))
    return {"failed": None, **trial, "ratio": ratio, "truth": truth, "claim": claim, "off": off}


def row(every: pd.DataFrame) -> dict[str, object]:
    """The scores of a tool on a machine in one condition, and the ratios that it told."""
    good = every[every.failed.isna()].sort_values("trial")
    aa, ab = good[good.truth == 1], good[good.truth != 1]
    off = (aa.off.median(), aa.off.quantile(0.95), ab.off.median())
    shown = ["–" if math.isnan(one) else percent(one) for one in off]
    right = ab.claim == 1  # the second of such a pair is the slower one
    # the first and the second trial of a pair, the third and the fourth, and so on: two sittings
    twice = right.groupby([ab.pair, ab.trial // 2]).agg(["all", "size"]).query("size == 2")["all"]
    return {
        "false claims in A/A": f"{(aa.claim != 0).sum()} of {len(aa)}",
        "A/A: off by, median": shown[0],
        "95th percentile": shown[1],
        "A/B: off the truth by, median": shown[2],
        "ratios in A/B, median": f"{ab.ratio.median():.3f}",
        "range": f"{ab.ratio.min():.3f} to {ab.ratio.max():.3f}",
        "winner right": f"{right.sum()} of {len(ab)}",
        "wrong": (ab.claim == -1).sum(),
        "right twice in a row": f"{twice.sum()} of {len(twice)}",
        "seconds": f"{every.spent_s.median():.1f}",
        "failed": every.failed.count(),
    }


def told(trials: pd.DataFrame) -> Iterator[str]:
    """The page from what was compared on."""
    yield "## What was compared"
    yield (
        "All at b=1, d=64, float32. `slowed=P` waits after each call for P % of its time, which makes the truth known. "
        "Every tool but attnlab runs with malloc as the system sets it; attnlab keeps its workers' heap."
    )
    yield table(map(asdict, PAIRS))
    yield "## How each tool was read"
    yield "\n".join(f"- **{tool}**: {rule.__doc__}." for tool, rule in RULES.items())
    yield (
        "A claim in A/A is false. In A/B it is right or wrong by the truth's side of 1. “Off by” is "
        "exp|ln(ratio / truth)| − 1. “Right twice in a row” counts pairs of trials."
    )
    for condition, title in CONDITIONS.items():
        yield f"## Machine {title}"
        yield table_of(trials[trials.condition == condition], ["tool"], row)


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
    trials = pd.DataFrame([scored(one) for one in store.rows[1:] if one["tool"] in TOOLS])
    versions = trials.groupby("tool", sort=False).version.last()
    parts = [
        f"`{asked.out.name}` holds every trial. Each tool was given about {seconds:g} s of wall-clock time for a pair, "
        "start-up included, and took what the tables say.",
        f"Versions: {', '.join(map(' '.join, versions.items()))}."
        + OLD * (versions.attnlab != version("attnlab")),
        *told(trials),
    ]
    title, day = "The same work by other benchmark tools", trials["at"].max()[:10]
    publish(title, "peers", *parts, out=asked.out.with_suffix(".md"), at=(day, machine))
