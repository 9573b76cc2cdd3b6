"""The same comparisons by attnlab and by other benchmark tools: who claims what is not so, and how far ratios are off.

``python benchmarks peers``, on a machine that does nothing else, after ``pip install -c constraints.txt -e .[peers]``.
Every trial goes into ``benchmarks/peers.json`` as soon as it is measured, and what is there is not measured again: an
interrupted run goes on where it stopped, and every run stops by itself after ``--minutes``. One round of everything
takes about twelve minutes, ten trials ten such runs. The page ``benchmarks/peers.md`` and the figure
``docs/figures/peers.svg`` are made anew from the store each time; ``--minutes 0`` makes them and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from common import HOME, REPOSITORY, command_line, page, say, table
from peer_scores import RULES, quantile, score
from peer_tools import PAIRS, PATIENCE, TOOLS, Pair, version

from attnlab import figures
from attnlab.environment import environment
from attnlab.race.selftest import background_load

#: kinds of background load
CONDITIONS = {"idle": "idle", "cpu": "beside a busy loop"}
Trials = list[dict[str, Any]]
Store = dict[str, Any]


# -- measuring --------------------------------------------------------------------------------------------------------


def save(store: Store, file: Path) -> None:
    """Write the store, a trial a line, in one step."""
    head = json.dumps({name: value for name, value in store.items() if name != "trials"}, indent=1)
    lines = ",\n  ".join(json.dumps(one) for one in store["trials"])
    beside = file.with_suffix(".partial")
    beside.write_text(
        f'{head.removesuffix("}").rstrip()},\n "trials": [\n  {lines}\n ]\n}}\n', encoding="utf-8"
    )
    beside.replace(file)


def measured(trial: int, condition: str, pair: Pair, tool: str, seconds: float) -> dict[str, Any]:
    """One trial, to be stored; its ``failed`` tells why there is no ratio."""
    one: dict[str, Any] = {"trial": trial, "condition": condition, "pair": pair.name, "tool": tool}
    beside = background_load(condition, 10 * PATIENCE)
    with tempfile.TemporaryDirectory(prefix="peers-") as folder, beside:
        one |= {"at": datetime.now(UTC).isoformat(timespec="seconds"), "load": round(os.getloadavg()[0], 2)}
        started = time.monotonic()
        try:
            told = TOOLS[tool](pair, seconds, Path(folder))
        except (RuntimeError, OSError, ValueError, KeyError) as fault:
            told = {"failed": f"{type(fault).__name__}: {fault}"}
    return {**one, "spent_s": round(time.monotonic() - started, 2), **told}


def measure(asked: argparse.Namespace, store: Store) -> Iterator[None]:
    """All that is missing, one after the other, so that a run that stops early has about as much of everything."""
    done = {(one["trial"], one["condition"], one["pair"], one["tool"]) for one in store["trials"]}
    for trial, pair, condition, tool in product(range(asked.trials), PAIRS, CONDITIONS, asked.tools):
        if (trial, condition, pair.name, tool) not in done:
            store["trials"].append(measured(trial, condition, pair, tool, store["seconds"]))
            say(", ".join(f"{name} {value}" for name, value in store["trials"][-1].items()))
            yield


# -- the page ---------------------------------------------------------------------------------------------------------


def judged(store: Store) -> Trials:
    """The stored trials of the pairs, each with its truth."""
    true = {pair.name: {"truth": pair.truth, "aa": pair.first == pair.second} for pair in PAIRS}
    return [one | true[one["pair"]] for one in store["trials"] if one["pair"] in true]


def of(trials: Trials, **wanted: str) -> Trials:
    """Those trials whose entries are as wanted."""
    return [one for one in trials if wanted.items() <= one.items()]


def percent(part: float) -> str:
    """A part of one in percent, to two figures; a dash for nan, and "30-fold" for what is off ten times or more."""
    if math.isnan(part):
        return "–"
    if part >= 9:
        return f"{1 + part:.2g}-fold" if part < 99 else f"{1 + part:.0f}-fold"
    return f"{part * 100:.2g} %" if part < 0.995 else f"{part * 100:.0f} %"


def told(store: Store, tools: Sequence[str]) -> Iterator[str]:
    """The page from its figure on."""
    trials = judged(store)
    yield "Versions: " + ", ".join(f"{tool} {store['versions'][tool]}" for tool in tools) + "."
    yield "## What was compared"
    yield (
        "All at b=1, d=64, float32. `slowed=P` waits after each call for P % of its time, which makes the truth known. "
        "Every tool but attnlab runs with malloc as the system sets it; attnlab keeps its workers' heap."
    )
    head = ("pair", "first", "second", "workload", "truth")
    yield table(
        head,
        [(p.name, f"`{p.first}`", f"`{p.second}`", f"h={p.heads}, n={p.length}", p.truth) for p in PAIRS],
    )
    yield "## How each tool was read"
    yield "\n".join(f"- **{tool}**, {rule.name}: {rule.says}." for tool in tools for rule in RULES[tool])
    yield (
        "A claim in A/A is false. In A/B it is right or wrong by the truth's side of 1. “Off by” is "
        "exp|ln(ratio / truth)| − 1."
    )
    for condition, title in CONDITIONS.items():
        if here := of(trials, condition=condition):
            yield f"## Machine {title}"
            yield from _condition_told(here, tools)


def _condition_told(trials: Trials, tools: Sequence[str]) -> Iterator[str]:
    """The scores of each tool and each way to read it, and the ratios that it told."""
    head = ("tool", "read by", "false claims in A/A", "A/A: off by, median", "95th percentile")
    head += ("A/B: off the truth by, median", "winner right", "wrong", "no claim", "seconds", "failed")
    rows: list[Sequence[object]] = []
    for tool in tools:
        for rule in RULES[tool]:
            one = score(of(trials, tool=tool), rule)
            off = (quantile(one.aa_off, 0.5), quantile(one.aa_off, 0.95), quantile(one.ab_off, 0.5))
            counts = (f"{one.right} of {one.ab}", one.wrong, one.ab - one.right - one.wrong)
            ends = (f"{quantile(one.spent, 0.5):.1f}", one.failed)
            rows.append(
                (tool, rule.name, f"{one.false_claims} of {one.aa}", *map(percent, off), *counts, *ends)
            )
    yield table(head, rows)
    yield "Ratios, second over first: median (range)."
    rows = []
    for pair in PAIRS:
        mine = of(trials, pair=pair.name)
        cells = []
        for tool in tools:
            ratios = [one["ratio"] for one in of(mine, tool=tool) if one.get("ratio") is not None]
            span = f"{quantile(ratios, 0.5):.3f} ({min(ratios):.3f} to {max(ratios):.3f})" if ratios else "–"
            cells.append(span)
        rows.append((pair.name, f"{pair.truth:.3f}", *cells))
    yield table(("pair", "truth", *tools), rows)
    told = [one for one in of(trials, tool="attnlab") if "failed" not in one]
    if none := sum(one["ratio_low"] is None for one in told):
        why = "too few turns had a core to themselves"
        yield f"attnlab gave no interval and no verdict in {none} of {len(told)}: {why}."


def draw(store: Store, tools: Sequence[str], folder: Path) -> None:
    """``peers.svg`` and ``peers.png``: false claims in A/A, and how far ratios are off, by tool and condition."""
    figure, (left, right) = figures.new_figure(2, width=10.4, height=0.62 * len(tools) + 1.7, sharey=True)
    trials = judged(store)
    conditions = [one for one in CONDITIONS if of(trials, condition=one)]
    for number, condition in enumerate(conditions):
        shift, colour = 0.34 * (number - (len(conditions) - 1) / 2), (figures.BLUE, figures.ORANGE)[number]
        for row, tool in enumerate(tools):
            one = score(of(trials, tool=tool, condition=condition), RULES[tool][0])
            place, share = row + shift, one.false_claims / max(one.aa, 1)
            left.barh(place, share, 0.3, color=colour, label=None if row else CONDITIONS[condition])
            text = f"{one.false_claims} of {one.aa}" if one.aa else ""
            left.text(share + 0.02, place, text, va="center", fontsize=figures.SIZE - 2.5, color=colour)
            if off := one.aa_off + one.ab_off:
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
    figures.entitle(left, "A backend against itself: false claims", "share of A/A comparisons")
    figures.entitle(right, "How far the ratio is off the truth", "median, and line to the 95th percentile")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(folder / "peers.svg", metadata={"Date": None})
    figures.save(figure, folder / "peers.png")


def main() -> None:
    """Measure what is missing, and make the page and the figure."""
    parser = command_line(__doc__, out=HOME / "peers.json")
    parser.add_argument(
        "--tools", nargs="*", choices=list(TOOLS), default=[one for one in TOOLS if version(one)]
    )
    parser.add_argument("--trials", default=10, type=int, help="of each pair, tool and condition [10]")
    parser.add_argument("--seconds", default=10.0, type=float, help="that a tool is given for a pair [10]")
    parser.add_argument("--minutes", default=12.0, type=float, help="after which no comparison is begun [12]")
    asked = parser.parse_args()
    store: Store = {"seconds": asked.seconds, "versions": {}, "trials": []}
    if asked.out.exists():
        store |= json.loads(asked.out.read_text(encoding="utf-8"))
    until = time.monotonic() + 60 * asked.minutes
    steps = measure(asked, store)
    while time.monotonic() < until and next(steps, ...) is None:
        store |= {"measured": str(datetime.now(UTC).date()), "machine": environment()}
        store["versions"] |= {tool: version(tool) for tool in asked.tools}
        save(store, asked.out)
    tools = [tool for tool in TOOLS if of(store["trials"], tool=tool)]
    draw(store, tools, REPOSITORY / "docs" / "figures")
    said = (
        f"`{asked.out.name}` holds every trial. Each tool was given about {store['seconds']:g} s of wall-clock time "
        "for a pair, start-up included, and took what the tables say."
    )
    parts = [
        said,
        "![False claims and ratio errors of each tool](../docs/figures/peers.svg)",
        *told(store, tools),
    ]
    text = page(
        "The same work by other benchmark tools", "peers", *parts, at=(store["measured"], store["machine"])
    )
    asked.out.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
