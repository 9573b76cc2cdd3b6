"""How times grow with length: fits, and what follows from them in sentences."""

from __future__ import annotations

from attnlab import units
from attnlab.judge import growth
from attnlab.judge.analysis import Group
from attnlab.judge.growth import Fits, Forecast
from attnlab.text import counted, named

#: a machine that was this much slower at one length than at another is said to have been
_SLOWED = 1.1


def forecast(one: Forecast) -> str:
    """``predicted 10.1 ms, measured 12.2 ms (+21 %)``"""
    predicted, measured = units.seconds_text(one.predicted), units.seconds_text(one.measured)
    return f"predicted {predicted}, measured {measured} ({one.error * 100:+.0f} %)"


def sentences(group: Group, found: Fits) -> list[str]:
    """How far the fits can be trusted, where a pair becomes dearer, and whether the machine's own speed changed."""
    return [*_check(found), *_kept(found), *_steps(group, found), *_slowed(group)]


def _check(found: Fits) -> list[str]:
    """How many fits are good, and how many predict the longest length."""
    if not found:
        return []
    good = sum(one.label is not None for one in found.values())
    text = f"{good} of {counted(len(found), 'fit')} {'is' if 1 in (good, len(found)) else 'are'} good"
    known = {at: one.forecast for at, one in found.items() if one.forecast is not None}
    if not known:
        return [f"{text}; with fewer than five lengths none could be held out."]
    met = sum(abs(one.error) <= growth.WORST for one in known.values())
    (name, count), worst = max(known.items(), key=lambda item: abs(item[1].error))
    return [
        f"{text}; {met} of {len(known)} predict the longest length within {units.percent(growth.WORST)}. Furthest off "
        f"is `{name}` at n = {worst.length}, {counted(count, 'head')}: {forecast(worst)}."
    ]


def _kept(found: Fits) -> list[str]:
    """Who skips what the mask hides: its time follows the pairs that are kept."""
    names = dict.fromkeys(name for (name, _), one in found.items() if one.kept and one.label is not None)
    if not names:
        return []
    return [
        f"The times of {named(names)} follow the pairs that the mask keeps, so c stands before these, for one "
        "head, instead of n²: what is hidden is not computed."
    ]


def _steps(group: Group, found: Fits) -> list[str]:
    """Where a pair becomes dearer, and how large the score matrix is on both sides."""
    said = []
    for (name, count), one in found.items():
        if one.step is None or one.label is None:
            continue
        sizes = [
            units.bytes_text(group.cells[count, n].workload.score_bytes)
            for n in (one.step.last, one.step.first)
        ]
        said.append(
            f"`{name}` at {counted(count, 'head')}: a pair costs {units.number_text(one.step.ratio, 2)} times as "
            f"much from n = {one.step.first} (score matrix {sizes[1]}) as up to n = {one.step.last} ({sizes[0]}), as "
            "where arrays no longer fit a cache. Stay below, or prefer a contender without the step."
        )
    return said


def _slowed(group: Group) -> list[str]:
    """A warning where the calibration loop itself took longer at some lengths than at others."""
    worst: tuple[float, str] = (_SLOWED, "")
    for count in group.heads:
        known = {n: group.cells[count, n].pace for n in group.grid[count]}
        paces = {n: one for n, one in known.items() if one is not None}
        if len(paces) < 2:
            continue
        slow, fast = max(paces, key=lambda n: paces[n]), min(paces, key=lambda n: paces[n])
        if (ratio := paces[slow] / paces[fast]) > worst[0]:
            worst = (
                ratio,
                (
                    f"The machine's own speed changed: at {counted(count, 'head')} its calibration loop took "
                    f"{units.seconds_text(paces[slow])} beside n = {slow} and {units.seconds_text(paces[fast])} beside "
                    f"n = {fast} (medians). A fit cannot tell that from growth: where it matters, repeat the run when "
                    "nothing else runs."
                ),
            )
    return [worst[1]] if worst[1] else []
