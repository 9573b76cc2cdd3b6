"""What a run answers, as values for templates: what to use, where not, and what to know before believing it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnlab.report.frames import NOT_BELIEVED, Frames, mapping
from attnlab.stats.analysis import Choice, choose, largest_with_peaks
from attnlab.stats.ranking import Sure
from attnlab.stats.verdicts import speeds
from attnlab.text import bytes_text
from attnlab.workload.result import Outcome

#: a contender that the fastest beats by this factor wherever both were measured is not worth a further race
SLOW = 10.0
#: above this part of disturbed rounds a reader is warned
BUSY = 0.2
#: outcomes for which nobody should use a contender, the worst first
_FAULTS = [str(one).replace("_", " ") for one in (Outcome.WRONG, Outcome.CRASHED, Outcome.TIMED_OUT)]


def answer(frames: Frames) -> dict[str, Any]:
    """Everything that `verdict.md.j2` shows: the choice over all workloads and for each group, exceptions, warnings."""
    analysis, results, winners = frames.analysis, frames.results, frames.winners
    groups = [(group.name, choice_of(choose(group.won, analysis.names))) for group in analysis.groups]
    chosen = choice_of(choose(analysis.won, analysis.names))
    name = chosen["name"] if chosen else None
    unsure = winners[(winners.sure == Sure.NO_INTERVAL) | winners.not_compared.map(bool)]
    lower = results[results.computes_in.notna() & results.seconds.notna()].sort_values("score_bytes")
    faulty = frames.left_out[frames.left_out.outcome.isin(_FAULTS)]
    two_speeds = [
        {"heads": cell.workload.heads, "n": cell.workload.keys, "group": cell.group, "name": name, "of": both}
        for cell in analysis.cells
        for name, one in cell.measured.items()
        if one.latency and len(both := speeds(one.latency)) > 1
    ]
    least = results[results.behind_low.notna()].groupby("contender", sort=False).behind.min()
    return {
        "chosen": chosen,
        "measured": len(frames.contenders),
        "groups": groups,
        "kinds": len({one["name"] for _, one in groups if one}),
        "faulty": faulty.sort_values("outcome", key=lambda of: of.map(_FAULTS.index), kind="stable"),
        "outcomes": set(results.outcome),
        "memory": _memory(frames, name),
        "crossovers": frames.crossovers[
            (frames.crossovers.below == name) | (frames.crossovers.above == name)
        ],
        "lower": lower.drop_duplicates("contender", keep="last"),
        "unsure": unsure,
        "slow": least[least >= SLOW],
        "two_speeds": two_speeds,
        "same_kernel": sorted({name for names in winners.same_kernel for name in names}),
        "warned": warnings(frames),
    }


def choice_of(chosen: Choice | None) -> dict[str, Any] | None:
    """The contender to use where one is to do for several workloads, with the number of workloads of each kind.

    `lead` holds the least and the greatest speedup over the runner-up where it is decidedly the fastest; `rivals` those
    not told apart from it, `open` the workloads where that is so, `worst` the one at which another contender is ahead
    of it by most.
    """
    if chosen is None:
        return None
    won, close, tied = map(chosen.first_at, (Sure.DECIDED, Sure.CLOSE, Sure.TIE))
    name = chosen.name
    close_to, tied_with = (
        list(dict.fromkeys(one for cell in cells for one in cell.won.first if one not in cell.first & {name}))
        for cells in (close, tied)
    )
    worst = max(chosen.behind, key=lambda one: one.behind(name), default=None)
    leads = [one.won.ahead.ratio for one in won if one.won.ahead is not None]
    kinds = {one.won.sure for one in chosen.places}
    return {
        "name": name,
        "sizes": len(chosen.places),
        "alone": kinds == {Sure.ALONE},
        "known": bool(kinds & {Sure.DECIDED, Sure.CLOSE, Sure.TIE}),
        "won": len(won),
        "lead": (min(leads), max(leads)) if leads else None,
        "runners_up": list(dict.fromkeys(one.won.ahead.over for one in won if one.won.ahead)),
        "close": len(close),
        "close_to": close_to,
        "tied": len(tied),
        "tied_with": tied_with,
        "open": [
            {"rivals": [one for one in cell.won.first if one != name], "heads": cell.at[0], "n": cell.at[1]}
            for cell in tied
        ],
        "behind": len(chosen.behind),
        "worst": worst
        and {"by": worst.behind(name), "heads": worst.at[0], "n": worst.at[1], "group": worst.group},
        "others": list(dict.fromkeys(one.won.name for one in chosen.behind)),
        "absent": len(chosen.absent),
        "absent_why": next((one.answers[name].reason for one in chosen.absent if name in one.answers), None),
    }


def _memory(frames: Frames, name: str | None) -> dict[str, Any] | None:
    """Peaks at the largest workload where the chosen contender has one: its own, the least and the greatest."""
    place = largest_with_peaks(frames.analysis.won, [name]) if name else None
    if place is None:
        return None
    rows = frames.results
    here = rows[(rows.workload == place.workload.label) & rows.peak_bytes.notna()].sort_values("peak_bytes")
    mine = here[here.contender == name]
    return None if mine.empty else {"mine": mine.iloc[0], "least": here.iloc[0], "most": here.iloc[-1]}


def warnings(frames: Frames) -> dict[str, Any]:
    """What a reader must know before believing anything; an entry is empty, 0 or None where there is nothing to say."""
    run, results, control = frames.run, frames.results, frames.control
    timed = [one.latency for one in run.results if one.latency]
    disturbed, rounds = (
        sum(len(one.disturbed_rounds) for one in timed),
        sum(len(one.samples) for one in timed),
    )
    facts = [one.facts for one in timed]
    failed = control[control.differs]
    refused = results[results.outcome == NOT_BELIEVED]
    without_peak = int(results[results.seconds.notna()].peak_bytes.isna().sum())
    return {
        "answered": results.workload.nunique(),
        "planned": len(run.plan.workloads),
        "complete": run.complete,
        "torn": dict(run.torn),
        "disturbed": disturbed,
        "rounds": rounds,
        "busy": rounds > 0 and disturbed > BUSY * rounds,
        "others": next((one["others"] for one in facts if "others" in one), None),
        "cut_short": sum("cut short" in one for one in facts),
        "control_failed": len(failed),
        "control_of": len(control),
        "control_worst": None if failed.empty else failed.iloc[int((failed.speedup - 1).abs().argmax())],
        "not_believed": dict(refused.reason.value_counts()),
        "no_memory": without_peak if run.complete and run.plan.memory else 0,
    }


def machine(environment: Mapping[str, Any]) -> list[str]:
    """The GPU and processor, number of cores and memory, as far as the environment tells."""
    gpus, cores = environment.get("gpus"), mapping(environment.get("cores")).get("logical")
    named = (*(gpus[:1] if isinstance(gpus, list) else ()), environment.get("cpu"))
    memory = environment.get("memory_bytes")
    words = [one for one in named if isinstance(one, str) and one]
    words += [f"{cores} logical cores"] if isinstance(cores, int) else []
    return [*words, bytes_text(memory)] if isinstance(memory, int) else words
