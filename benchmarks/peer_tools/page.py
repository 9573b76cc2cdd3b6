"""The page and the figure, made whole from the stored trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab import figures
from peer_tools.pairs import Pair, reference_ratio
from peer_tools.scoring import RULES, Rule, Score, quantile, score

CONDITIONS = {"idle": "idle", "hog": "beside a busy loop"}
Trials = Sequence[dict[str, Any]]


def truths(store: Mapping[str, Any], pairs: Sequence[Pair]) -> dict[str, float | None]:
    """The ratio that each pair really has: by construction, or from the long reference where that is complete."""
    found = {}
    for pair in pairs:
        told = store["references"].get(pair.name)
        known = told and told["first"] and told["second"]
        found[pair.name] = (
            reference_ratio(told["first"], told["second"])[0] if pair.truth is None and known else pair.truth
        )
    return found


def judged(store: Mapping[str, Any], pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """The stored trials of these pairs, each with its truth."""
    true, is_aa = truths(store, pairs), {pair.name: pair.is_aa for pair in pairs}
    return [
        {**one, "truth": true[one["pair"]], "aa": is_aa[one["pair"]]}
        for one in store["trials"]
        if one["pair"] in true
    ]


def of(trials: Trials, **wanted: str) -> list[dict[str, Any]]:
    """Those trials whose entries are as wanted."""
    return [one for one in trials if all(one[name] == value for name, value in wanted.items())]


def percent(part: float) -> str:
    """A part of one in percent, to two figures; a dash for nan, and "30-fold" for what is off ten times or more."""
    if math.isnan(part):
        return "–"
    if part >= 9:
        return f"{1 + part:.2g}-fold" if part < 99 else f"{1 + part:.0f}-fold"
    return f"{part * 100:.2g} %" if part < 0.995 else f"{part * 100:.0f} %"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *rows))


def scores_table(trials: Trials, tools: Sequence[str]) -> str:
    """A row for each tool and each way to read it."""
    head = (
        "tool", "read by", "false claims in A/A", "A/A: off by, median", "95th percentile",
        "A/B: off the truth by, median", "winner right", "wrong", "no claim", "seconds", "failed",
    )  # fmt: skip
    rows = []
    for tool in tools:
        mine = of(trials, tool=tool)
        for rule in RULES[tool] if mine else ():
            rows.append(_score_row(tool, rule, score(mine, rule)))
    return table(head, rows)


def _score_row(tool: str, rule: Rule, one: Score) -> tuple[str, ...]:
    figures = (percent(one.aa_median), percent(one.aa_95), percent(one.error))
    counts = (f"{one.right} of {one.ab}", str(one.wrong), str(one.undecided))
    return (
        tool,
        rule.name,
        f"{one.false_claims} of {one.aa}",
        *figures,
        *counts,
        f"{one.spent:.1f}",
        str(one.failed),
    )


def ratios_table(trials: Trials, tools: Sequence[str], pairs: Sequence[Pair], true: Mapping[str, Any]) -> str:
    """What each tool told of each pair: the median ratio and the range."""
    rows = []
    for pair in pairs:
        truth, row = true[pair.name], []
        for tool in tools:
            told = [
                one["ratio"]
                for one in of(trials, tool=tool, pair=pair.name)
                if "failed" not in one and one["ratio"] is not None
            ]
            text = f"{quantile(told, 0.5):.3f} ({min(told):.3f} to {max(told):.3f})" if told else "–"
            row.append(text)
        rows.append((pair.name, "–" if truth is None else f"{truth:.3f}", *row))
    return table(("pair", "truth", *tools), rows)


def markdown(store: Mapping[str, Any], pairs: Sequence[Pair], tools: Sequence[str], figure: str) -> str:
    """The whole page."""
    trials, true = judged(store, pairs), truths(store, pairs)
    where, versions = store["machine"], store["versions"]
    page = [
        "# The same work by other benchmark tools",
        f"{store['measured']}, {where['cpu']}, {where['cores']['logical']} cores, {where['python']}. "
        f"Made by `{store['command']}` from `{store['file']}`, which holds every trial. Each tool was given about "
        f"{store['seconds']:g} s of wall-clock time for a pair, start-up included, and took what the tables say.",
        f"![False claims and ratio errors of each tool]({figure})",
        "Versions: " + ", ".join(f"{tool} {versions[tool]}" for tool in tools if tool in versions) + ".",
    ]
    page += [f"Left out: {line}." for line in store.get("left_out", ())]
    page += [
        "## What was compared",
        _pairs_text(store, pairs),
        "## How each tool was read",
        _rules_text(tools),
    ]
    for condition, title in CONDITIONS.items():
        here = of(trials, condition=condition)
        if here:
            page += [
                f"## Machine {title}",
                scores_table(here, tools),
                "Ratios, second over first: median (range).",
            ]
            page += [ratios_table(here, tools, pairs, true), *_without_interval(here)]
    return "\n\n".join(page) + "\n"


def _without_interval(trials: Trials) -> list[str]:
    """How often attnlab gave no interval; its ratio is then only that of turns that were disturbed."""
    told = [one for one in of(trials, tool="attnlab") if "failed" not in one]
    none = sum(one["ratio_low"] is None for one in told)
    if not none:
        return []
    why = "too few turns had a core to themselves"
    return [f"attnlab gave no interval and no verdict in {none} of {len(told)}: {why}."]


def _pairs_text(store: Mapping[str, Any], pairs: Sequence[Pair]) -> str:
    rows = []
    for pair in pairs:
        told, how = store["references"].get(pair.name), "by construction"
        if pair.truth is None:
            how = "not measured yet"
            if told and told["first"] and told["second"]:
                ratio, error = reference_ratio(told["first"], told["second"])
                count = min(len(told["first"]), len(told["second"]))
                how = f"{ratio:.4f} ± {error * ratio:.4f} (standard error): {count} fresh processes a side, idle"
        shape = f"h={pair.heads}, n={pair.length}"
        rows.append((pair.name, f"`{pair.first}`", f"`{pair.second}`", shape, how))
    return (
        "All at b=1, d=64, float32. `slowed=P` waits after each call for P % of its time, which makes the truth known. "
        "Every tool but attnlab runs with malloc as the system sets it; attnlab keeps its workers' heap.\n\n"
        + table(("pair", "first", "second", "workload", "truth"), rows)
    )


def _rules_text(tools: Sequence[str]) -> str:
    lines = [f"- **{tool}**, {rule.name}: {rule.says}." for tool in tools for rule in RULES[tool]]
    return "\n".join(
        [
            *lines,
            "",
            "A claim in A/A is false. In A/B it is right or wrong by the truth's side of 1. "
            "“Off by” is exp|ln(ratio / truth)| − 1.",
        ]
    )


def draw(store: Mapping[str, Any], pairs: Sequence[Pair], tools: Sequence[str], folder: Path) -> list[Path]:
    """``peers.svg`` and ``peers.png``: false claims in A/A, and how far ratios are off, by tool and condition."""
    trials = judged(store, pairs)
    shown = [tool for tool in tools if of(trials, tool=tool)]
    conditions = [one for one in CONDITIONS if of(trials, condition=one)]
    figure, (left, right) = figures.new_figure(2, width=10.4, height=0.62 * len(shown) + 1.7, sharey=True)
    colours = {"idle": figures.BLUE, "hog": figures.ORANGE}
    for index, condition in enumerate(conditions):
        shift = (index - (len(conditions) - 1) / 2) * 0.34
        for row, tool in enumerate(shown):
            mine = of(trials, tool=tool, condition=condition)
            place, label = row + shift, CONDITIONS[condition] if row == 0 else None
            _false_claims(left, score(mine, RULES[tool][0]), place, colours[condition], label)
            _errors(right, mine, place, colours[condition])
    left.set_yticks(range(len(shown)), shown)
    left.set_ylim(len(shown) - 0.4, -0.6)
    left.set_xlim(0, 1.2)
    left.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    right.set_xscale("log")
    low, high = right.get_xlim()
    ticks = [one for one in (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0) if low <= one <= high]
    right.set_xticks(ticks, [f"{one * 100:g} %" for one in ticks])
    right.minorticks_off()
    figures.entitle(left, "A backend against itself: false claims", "share of A/A comparisons")
    figures.entitle(right, "How far the ratio is off the truth", "median, and line to the 95th percentile")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    vector = folder / "peers.svg"
    figure.savefig(vector, metadata={"Date": None})
    return [vector, figures.save(figure, folder / "peers.png")]


def _false_claims(axes: Any, one: Score, place: float, colour: str, label: str | None) -> None:
    """A bar and its count; a bar of nothing keeps its count."""
    axes.barh(place, 0 if math.isnan(one.false_share) else one.false_share, 0.3, color=colour, label=label)
    if one.aa:
        text = f"{one.false_claims} of {one.aa}"
        axes.text(one.false_share + 0.02, place, text, va="center", fontsize=figures.SIZE - 2.5, color=colour)


def _errors(axes: Any, trials: Trials, place: float, colour: str) -> None:
    """The median of all ratio errors, A/A and A/B, and a line to their 95th percentile."""
    from peer_tools.scoring import ratio_errors

    told = ratio_errors(one for one in trials if "failed" not in one and one["truth"] is not None)
    if told:
        middle, far = (max(1e-5, quantile(told, share)) for share in (0.5, 0.95))
        axes.plot([middle, far], [place, place], color=colour, linewidth=1.6)
        axes.plot([middle], [place], marker="o", color=colour, markersize=6)
