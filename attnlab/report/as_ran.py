"""What was asked of each contender beside what ran, who was left out, and what of the environment changes a time."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attnlab import units
from attnlab.judge.groups import place_text
from attnlab.judge.verdicts import pay_off
from attnlab.problem.result import Invariance, Outcome, Result
from attnlab.report.analysis import Analysis
from attnlab.report.layout import NONE, markdown, shortened

_OUTCOMES = {
    Outcome.DECLINED: "declined",
    Outcome.UNAVAILABLE: "not available here",
    Outcome.WRONG: "wrong",
    Outcome.OVER_BUDGET: "over budget, not tried",
    Outcome.CRASHED: "crashed",
    Outcome.TIMED_OUT: "timed out",
}


@dataclass(frozen=True)
class AsRan:
    """One contender as it ran in a run: its measured results, and the facts of its process."""

    name: str
    results: tuple[Result, ...]
    facts: Mapping[str, Any]

    @property
    def precision(self) -> str:
        """Inputs, what is computed in where that is another, and the modes of its library."""
        pairs = dict.fromkeys((one.workload.dtype, one.computes_in) for one in self.results)
        said = [dtype if lower is None else f"{dtype}, computed in {lower}" for dtype, lower in pairs]
        modes = self.facts.get("modes")
        said += [f"{name} {value}" for name, value in modes.items()] if isinstance(modes, Mapping) else []
        return "; ".join(said)

    @property
    def threads(self) -> str:
        """As asked, and as the thread pools of its process tell."""
        settings = self.name.partition("[")[2].rstrip("]").split(",")
        asked = next((one for one in settings if one.startswith("threads=")), "as many as the library takes")
        pools = self.facts.get("pools") or ()
        counts = sorted({int(one["num_threads"]) for one in pools if one.get("num_threads")})
        return f"{asked}: {', '.join(map(str, counts))}" if counts else asked

    @property
    def kernels(self) -> str:
        """What ran, and what was asked for where that did not."""
        ran = dict.fromkeys(one.kernel for one in self.results if one.kernel)
        fallen = dict.fromkeys(one.asked_kernel for one in self.results if one.fell_back)
        said = "; ".join(map(str, ran)) or "not told"
        return said + "".join(f" (**asked for {one}**)" for one in fallen)


def as_ran(analysis: Analysis) -> list[AsRan]:
    """Each contender that was measured."""
    known = analysis.run.environment.get("contenders")
    facts = known if isinstance(known, Mapping) else {}
    every = {
        name: tuple(cell.measured[name] for cell in analysis.cells if name in cell.measured)
        for name in analysis.names
    }
    return [AsRan(name, results, facts.get(name) or {}) for name, results in every.items() if results]


def contenders(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """What was asked of each beside what ran, as plain values."""
    for one in as_ran(analysis):
        told = {
            "threads_asked_and_in_pools": one.threads,
            "precision": one.precision,
            "what_ran": one.kernels,
        }
        yield {"contender": one.name, **told}


def overview(analysis: Analysis) -> str:
    """A short row a contender: in how many workloads it has a time, its set-up, and whether its answers repeat."""
    ready = {row["contender"]: row for row in setups(analysis)}
    rows = []
    for one in as_ran(analysis):
        found = ready.get(one.name, {})
        first, paid = found.get("first_s"), found.get("pays_off_calls")
        bits = [
            same for each in in_order(analysis) if each.contender == one.name for same in each.same.values()
        ]
        rows.append(
            [
                f"`{one.name}`",
                f"{len(one.results)} of {sum(one.name in cell.answers for cell in analysis.cells)}",
                NONE if first is None else units.seconds_text(first),
                f"after {paid:,} calls" if paid else NONE,
                f"{sum(bits)} of {len(bits)}" if bits else NONE,
            ]
        )
    headers = ["contender", "measured at", "set-up", "pays off", "the same bits"]
    known = [at for at in range(len(headers)) if any(row[at] != NONE for row in rows)]
    return markdown([headers[at] for at in known], [[row[at] for at in known] for row in rows])


def in_order(analysis: Analysis) -> Iterable[Invariance]:
    """What was asked of the same bits, in the order of the contenders."""
    asked = analysis.run.invariance
    return (one for name in analysis.names for one in asked if one.contender == name)


def setups(analysis: Analysis) -> list[dict[str, Any]]:
    """What each contender takes to get ready in a group, in a fresh process and for a further workload, in seconds.

    Beside its call at its largest workload, and after how many of these a set-up has paid off. That of the slowest
    group comes first.
    """
    rows = []
    for group in analysis.groups:
        samples: dict[str, tuple[list[float], list[float]]] = {}
        for cell in group.cells.values():
            for name, result in cell.measured.items():
                found = result.measurement("setup")
                for seconds, fresh in (
                    zip(found.samples, found.columns["fresh"], strict=True) if found else ()
                ):
                    samples.setdefault(name, ([], []))[0 if fresh else 1].append(seconds)
        medians = {name: [_median(one) for one in both] for name, both in samples.items()}
        slower = {name: max(filter(None, both), default=None) for name, both in medians.items()}
        for name in filter(medians.__contains__, analysis.names):
            cells = [cell for cell in group.cells.values() if name in cell.measured]
            cell = max(cells, key=lambda one: (one.at[1], one.at[0]))
            known = {one: took for one in cell.measured if (took := slower.get(one)) is not None}
            paid = pay_off(list(cell.measured.values()), name, known)
            latency = cell.measured[name].latency
            rows.append(
                {
                    "contender": name,
                    "group": group.name,
                    "first_s": medians[name][0],
                    "further_s": medians[name][1],
                    "call_s": None if latency is None else latency.median,
                    "heads": cell.at[0],
                    "n": cell.at[1],
                    "pays_off_calls": paid.calls if paid else None,
                    "pays_off_against": paid.against if paid else None,
                }
            )
    return sorted(rows, key=lambda row: row["first_s"] or 0.0)


def _median(samples: list[float]) -> float | None:
    return statistics.median(samples) if samples else None


def fallbacks(analysis: Analysis) -> list[str]:
    """A sentence for each contender of which something else ran than it asked for."""
    found: dict[tuple[str, str | None, str | None], str] = {}
    for cell in analysis.cells:
        for name, one in cell.measured.items():
            if one.fell_back:
                found.setdefault((name, one.asked_kernel, one.kernel), place_text(cell.workload))
    return [
        f"`{name}` asked for {asked}, but {ran} ran, at {place} first: its figures are those of what ran."
        for (name, asked, ran), place in found.items()
    ]


def left_out(analysis: Analysis) -> str:
    """One row for each contender and kind of outcome: at how many workloads, and a reason."""
    rows = []
    for name in analysis.names:
        missing: dict[str, list[str]] = {}
        cells = [cell for cell in analysis.cells if name in cell.answers]
        for cell in cells:
            answer = cell.answers[name]
            if name in cell.faults:
                missing.setdefault("failed measurement", []).append(cell.faults[name])
            elif answer.outcome is not Outcome.MEASURED:
                missing.setdefault(_OUTCOMES[answer.outcome], []).append(answer.reason or "")
        for what, every in missing.items():
            reason, count = shortened(every[0], 160), len(set(every))
            why = reason if count == 1 else f"{reason} (the first of {count})"
            rows.append([f"`{name}`", what, f"{len(every)} of {len(cells)}", why])
    return markdown(["contender", "outcome", "at", "why"], rows, left=4)


# -- the environment ---------------------------------------------------------------------------------


def environment(analysis: Analysis) -> str:
    """What of the environment changes a time, in a few rows; the table beside the page has every entry."""
    told = entries(analysis.run.environment)
    return markdown(
        ["", ""], [[name, shortened(text, 90)] for name, text in told if ": " not in name], left=2
    )


def entries(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every entry of the environment, its name and its text; contenders with equal facts share one."""
    for name, value in facts.items():
        label = f"{prefix}{name}" if prefix else name.replace("_", " ")
        if name.endswith("_bytes") and isinstance(value, int):
            yield label.removesuffix(" bytes"), units.bytes_text(value)
        elif isinstance(value, Mapping) and value and all(isinstance(one, Mapping) for one in value.values()):
            owners: dict[str, list[str]] = {}
            for owner, known in value.items():
                owners.setdefault(_text(known), []).append(owner)
            yield from ((f"{label}: {', '.join(names)}", text) for text, names in owners.items())
        elif isinstance(value, Mapping) and value:
            yield from entries(value, f"{label}: ")
        else:
            yield label, _text(value)


def _text(value: Any) -> str:
    if value is None:
        return "not readable here"
    if isinstance(value, Mapping):
        known = {name: one for name, one in value.items() if one is not None}
        return "; ".join(f"{name} {_text(one)}" for name, one in known.items()) or "none"
    if isinstance(value, list | tuple):
        texts = [_text(one) for one in value]
        return ", ".join(sorted(texts) if any(isinstance(one, Mapping) for one in value) else texts) or "none"
    return str(value)
