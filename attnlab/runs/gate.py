"""Did a change make attention slower, larger or wrong? Two versions, BASE and HEAD, are compared in one race.

BASE is entered twice. If its two entries differ clearly, the machine is not steady enough for a verdict on time. HEAD
has regressed if it is slower than both entries: both intervals lie above 1, both ratios exceed 1 by more than half of
the margin, and the interval does not exclude a slow-down by the margin. HEAD has also regressed if it needs more memory
or set-up than the margins allow, is no longer measured though available, or runs another kernel. What does not pass is
raced once more, with new processes, and only what both races find counts. Both sides take large arrays on huge pages if
they can, because the place of small pages changes a time by up to 30 % from process to process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import chain, product
from typing import Any

import msgspec

from attnlab.backends.contender import Contender, huge_pages_refused, parse_all, side_of, with_setting
from attnlab.race.admission import Limits
from attnlab.race.compare import versions_of
from attnlab.race.conductor import Conductor
from attnlab.stats.intervals import MARGIN, Kind, verdicts_against
from attnlab.stats.ranking import is_second_entry
from attnlab.workload.result import Outcome, Result
from attnlab.workload.workload import Workload

#: for each workload: the least and the largest number of visits, and the seconds after which no further one begins
LIMITS = Limits(workload_seconds=20.0, visits=6, most_visits=50, call_seconds=5.0)
#: least number of visits: with fewer, an interval may be narrow by chance
LEAST_VISITS = 4
#: differences in memory and set-up that are always allowed: one page of code more is no regression
_LEAST_BYTES, _LEAST_SECONDS = 2**20, 0.05


class Kinds(StrEnum):
    """What a gate finds, the worst first."""

    REGRESSION = "regression"
    NO_VERDICT = "no verdict"
    PASSED = "passed"


#: exit statuses; 2 means a mistake in the call
STATUS = {Kinds.PASSED: 0, Kinds.REGRESSION: 1, Kinds.NO_VERDICT: 3}


@dataclass(frozen=True, kw_only=True)
class Margins:
    """By how much HEAD may differ from BASE, as fractions of BASE's figures.

    `slower`, `memory` and `setup` are the margins of the rules above. If the interval allows a slow-down of more than
    `unseen`, there is no verdict. `kernel_may_change` : another kernel is no regression.
    """

    slower: float = 0.03
    memory: float = 0.05
    setup: float = 0.5
    unseen: float = 0.05
    kernel_may_change: bool = False


@dataclass(frozen=True)
class Reason:
    """Why a line did not pass: what is concerned, and its figure or name for BASE and HEAD.

    what : "time", "memory" (bytes), "set-up" (seconds), "kernel" or "outcome" for a regression. Without a verdict:
    "outcome" if nothing could be compared, "control" if BASE differs from itself (with the ends of that interval),
    "unseen" for a slow-down that may have gone unseen, "no interval", "one race" if the two races do not agree, and
    "interrupted".
    """

    what: str
    base: str | float | None = None
    head: str | float | None = None


@dataclass(frozen=True)
class Line:
    """What was found for one backend at one workload.

    [`low`, `high`] is the interval of `ratio`, HEAD's seconds per call over BASE's; nan if there is none. `no_memory` :
    memory could not be compared. `unconfirmed` : the first race found a regression, and the second one passed.
    """

    backend: str
    workload: Workload
    found: Kinds
    reasons: tuple[Reason, ...] = ()
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    no_memory: bool = False
    unconfirmed: bool = False

    @property
    def faster(self) -> bool:
        """Whether it passed and HEAD is faster by more than `MARGIN` in its whole interval."""
        return self.found is Kinds.PASSED and 0 < self.high < 1 / (1 + MARGIN)


@dataclass(frozen=True)
class Gate:
    """What a gate found: a line for each backend and workload, worst first, and the versions of each side."""

    base: str
    head: str
    margins: Margins
    lines: tuple[Line, ...]
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def found(self) -> Kinds:
        """What was found in the worst line."""
        return self.lines[0].found

    @property
    def unseen(self) -> float | None:
        """The largest slow-down that a line allows, as a fraction; None unless all lines passed, and one has a time."""
        highs = [one.high for one in self.lines if one.high > 0]
        return max(0.0, max(highs) - 1) if highs and self.found is Kinds.PASSED else None

    def to_json(self) -> dict[str, Any]:
        """Plain data for other programs."""
        told: dict[str, Any] = msgspec.to_builtins(self)
        return {"found": str(self.found), "exit_status": STATUS[self.found], "unseen": self.unseen, **told}


def gate(
    base: tuple[str, str],
    head: tuple[str, str],
    backends: Sequence[str],
    workloads: Sequence[Workload],
    *,
    folders: Sequence[str] = (),
    margins: Margins | None = None,
    limits: Limits = LIMITS,
    conductor: Callable[..., Conductor] = Conductor,
    on_event: Callable[[str], None] = lambda text: None,
    interruptible: bool = False,
) -> Gate:
    """Race HEAD against BASE, each of `backends` at each of `workloads`.

    base, head : the setting that says where a side runs, such as ("ref", "main"); `contender.setting_of` gives it.
    backends : with their settings, as contenders; ``mine[pages=default]`` takes no huge pages. limits : those of each
    race. A race ends when no interval reaches further than a third of the margin, or when the time is spent.
    interruptible : an interrupt ends the gate, and there is no verdict on what was not raced to the end. Raises
    ValueError for an unknown backend, and Unavailable, before anything is raced, for a side that is unavailable.
    """
    margins, started = margins or Margins(), time.monotonic()
    able = huge_pages_refused() is None
    entered: dict[str, tuple[Contender, ...]] = {}
    for one in backends:
        text = with_setting(one, "pages", "huge") if able and Contender.parse(one).pages is None else one
        sides = parse_all([with_setting(text, *side) for side in (base, base, head)])
        if sides not in entered.values():  # two names of one contender are raced once
            entered[one] = sides
    for contender in chain(*entered.values()):
        contender.require(folders)
    for contender in entered[backends[0]][1:]:
        on_event(f"looking for {contender.name}, or making what it runs in")
        side_of(contender, folders)
    found: dict[tuple[str, Workload], Line] = {}
    versions: dict[str, dict[str, str]] = {}
    asked = list(product(entered, workloads))
    for again in (False, True):
        racing = list(chain(*(entered[name] for name in dict.fromkeys(name for name, _ in asked))))
        with conductor(racing, folders=folders, limits=limits, on_event=on_event) as raced:
            how: dict[str, Any] = {"enough": partial(_narrow, margins), "interruptible": interruptible}
            for name, workload in asked:
                line = found.get((name, workload), Line(name, workload, Kinds.NO_VERDICT))
                if not raced.interrupted:
                    results = raced.race(workload, [one.name for one in entered[name]], **how)
                    none = Line(name, workload, Kinds.NO_VERDICT, (Reason("no interval"),))
                    now = judged(name, results, margins) if len(results) == len(entered[name]) else none
                    line = agreed(line, now) if again else now
                if raced.interrupted:
                    line = replace(line, found=Kinds.NO_VERDICT, reasons=(Reason("interrupted"),))
                found[name, workload] = line
            versions |= versions_of(raced.facts)
        asked = [key for key in asked if found[key].found is not Kinds.PASSED]
        if raced.interrupted or not asked:
            break
    shown = {name: one for name, one in versions.items() if not is_second_entry(name)}
    lines = sorted(found.values(), key=lambda one: ([*Kinds].index(one.found), -max(0.0, one.high)))
    return Gate(base[1], head[1], margins, tuple(lines), shown, time.monotonic() - started)


def _narrow(margins: Margins, results: Sequence[Result]) -> bool:
    """Whether no interval reaches further from its ratio than a third of the margin."""
    found, most = verdicts_against(results, results[0].contender), 1 + margins.slower / 3
    return all(one.high <= most * one.ratio and one.ratio <= most * one.low for one in found.values())


def judged(backend: str, results: Sequence[Result], margins: Margins) -> Line:
    """What one race finds. results : those of BASE, of BASE's second entry, and of HEAD."""
    base, control, head = results
    line = partial(Line, backend, base.workload)
    outcomes = [f"{one.outcome}: {one.reason}" if one.reason else str(one.outcome) for one in (base, head)]
    outcome = Reason("outcome", *outcomes)
    if base.outcome is not Outcome.MEASURED:
        both = base.outcome is head.outcome is Outcome.DECLINED
        return line(Kinds.PASSED) if both else line(Kinds.NO_VERDICT, (outcome,))
    if head.outcome is not Outcome.MEASURED:
        missing = head.outcome is Outcome.UNAVAILABLE
        return line(Kinds.NO_VERDICT if missing else Kinds.REGRESSION, (outcome,))
    line = partial(line, no_memory=None in (base.peak_bytes, head.peak_bytes))
    against = verdicts_against(results, base.contender)
    verdict, same = against.get(head.contender), against.get(control.contender)
    again = verdicts_against([control, head], control.contender).get(head.contender)
    worse, unclear = list(_beside_time(base, head, margins)), None
    if verdict is None or again is None or same is None or not verdict.low:
        unclear = Reason("no interval")
    else:
        line = partial(line, ratio=verdict.ratio, low=verdict.low, high=verdict.high)
        lows, ratios = min(verdict.low, again.low), min(verdict.ratio, again.ratio)
        if same.kind in (Kind.FASTER, Kind.SLOWER):
            unclear = Reason("control", same.low, same.high)
        elif lows > 1 and ratios > 1 + margins.slower / 2 and verdict.high > 1 + margins.slower:
            worse.insert(0, Reason("time"))
        elif verdict.high > 1 + margins.unseen:
            unclear = Reason("unseen", head=verdict.high)
    if worse:
        return line(Kinds.REGRESSION, tuple(worse))
    return line(Kinds.NO_VERDICT, (unclear,)) if unclear else line(Kinds.PASSED)


def _beside_time(base: Result, head: Result, margins: Margins) -> Iterator[Reason]:
    """What is worse in HEAD besides time. In set-up, each process of HEAD must take longer than each of BASE."""
    if base.kernel != head.kernel and not margins.kernel_may_change:
        yield Reason("kernel", base.kernel, head.kernel)
    was, now = base.peak_bytes, head.peak_bytes
    if was is not None and now is not None and now > max(was * (1 + margins.memory), was + _LEAST_BYTES):
        yield Reason("memory", was, now)
    before, after = (one.measurement("setup") for one in (base, head))
    if before is not None and after is not None and min(after.samples) > max(before.samples):
        first, then = base.setup_seconds or 0.0, head.setup_seconds or 0.0
        if then > max(first * (1 + margins.setup), first + _LEAST_SECONDS):
            yield Reason("set-up", first, then)


def agreed(first: Line, second: Line) -> Line:
    """What two races with different processes find together, if the first one did not pass."""
    if second.found is Kinds.PASSED:
        return replace(second, unconfirmed=first.found is Kinds.REGRESSION)
    if second.found is Kinds.NO_VERDICT:
        return second
    names = {one.what for one in first.reasons} if first.found is Kinds.REGRESSION else set()
    both = tuple(one for one in second.reasons if one.what in names)
    if both:
        return replace(second, reasons=both)
    return replace(second, found=Kinds.NO_VERDICT, reasons=(Reason("one race"), *second.reasons))
