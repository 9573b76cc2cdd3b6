"""Did a change make attention slower, bigger or wrong here? Two versions in one race, and what may be said of it.

BASE is entered twice. Where its two entries are told apart, the machine is not steady enough for any verdict. HEAD
regressed where it is slower than both entries: neither interval holds 1, both ratios are beyond half of the margin, and
a slow-down of the margin is not excluded; where it needs more memory or set-up than the margins allow, is no longer
measured, or lets another kernel run. What does not pass is raced once more, with new processes: only what both races
say holds. Both sides take large arrays on huge pages where they can: the place of small ones moves a time by up to 30 %
from process to process (docs/decisions/0004).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import chain, product
from typing import Any

from attnlab.backends.contender import Contender, huge_pages_refused, parse_all, with_huge_pages, with_setting
from attnlab.backends.side import side_of
from attnlab.race.compare import versions_of
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.race.sentences import sentence
from attnlab.stats.ranking import is_second_entry
from attnlab.stats.verdicts import MARGIN, Kind, verdicts_against
from attnlab.text import bytes_text, counted, interval_text, one_line, percent, ratio_text, seconds_text
from attnlab.workload.result import Outcome, Result
from attnlab.workload.workload import Workload

#: rounds of a workload take so long at most, in so many processes of each of the three contenders
LIMITS = Limits(workload_seconds=5.0, processes=6, most_processes=8, further_above=0.0, far_behind=8.0)
#: of each side, at least: the interval over fewer pairs of processes may be narrow by chance
LEAST_PROCESSES = 4
#: what memory and set-up may differ by whatever the margins say: a page of code more is no regression
_LEAST_BYTES, _LEAST_SECONDS = 2**20, 0.05


class Kinds(StrEnum):
    """What a gate finds, the worst first."""

    REGRESSION = "regression"
    NO_VERDICT = "no verdict"
    PASSED = "passed"


#: exit statuses: 2 is a mistake in the call
STATUS = {Kinds.PASSED: 0, Kinds.REGRESSION: 1, Kinds.NO_VERDICT: 3}


@dataclass(frozen=True, kw_only=True)
class Margins:
    """By how much HEAD may differ from BASE, as parts of BASE's figures.

    `slower`, `memory` and `setup` are what is no regression yet. Where a slow-down of more than `unseen` would not have
    been found, there is no verdict. `kernel_may_change` : another kernel is no regression.
    """

    slower: float = 0.03
    memory: float = 0.05
    setup: float = 0.5
    unseen: float = 0.05
    kernel_may_change: bool = False


@dataclass(frozen=True)
class Line:
    """What was found of one backend at one workload, and `why`, in words.

    `of` names what regressed: "time", "memory", "set-up", "kernel" or an outcome. [`low`, `high`] is the interval of
    `ratio`, HEAD's seconds a call over BASE's; nan where there is none. `untold` says why memory was not compared.
    """

    backend: str
    workload: Workload
    found: Kinds
    why: str
    of: tuple[str, ...] = ()
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    untold: str = ""

    @property
    def faster(self) -> bool:
        """Whether it passed, and HEAD takes less time with its whole interval."""
        return self.found is Kinds.PASSED and 0 < self.high < 1 / (1 + MARGIN)


@dataclass(frozen=True)
class Gate:
    """What a gate found: a line for each backend and workload, and the versions that each side ran with."""

    base: str
    head: str
    margins: Margins
    lines: tuple[Line, ...]
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def found(self) -> Kinds:
        """The worst of its lines."""
        return next(kind for kind in Kinds if any(one.found is kind for one in self.lines))

    @property
    def unseen(self) -> float:
        """The largest slow-down, as a part, that some line does not exclude; nan unless all passed, one with a time."""
        highs = [one.high for one in self.lines if one.high > 0]
        return max(0.0, max(highs) - 1) if highs and self.found is Kinds.PASSED else math.nan

    def sentences(self) -> list[str]:
        """The verdict, and a sentence for each line that did not pass, or in which HEAD is faster."""
        counts = {kind: sum(one.found is kind for one in self.lines) for kind in Kinds}
        races = counted(len(self.lines), "race")
        if self.found is Kinds.PASSED:
            said = f"No regression in {races} of {self.head} against {self.base}: "
            if math.isnan(self.unseen):
                said += "no time was compared."
            else:
                last = max((one for one in self.lines if one.high > 0), key=lambda one: one.high)
                most = f" ({last.backend} at {last.workload.label})" if len(self.lines) > 1 else ""
                also = "set-up is" if any(one.untold for one in self.lines) else "memory and set-up are"
                none = (
                    f"of slow-downs none above {percent(self.unseen)}{most}"
                    if self.unseen
                    else "nothing is slower"
                )
                said += f"{none}; {also} within the margins."
        elif self.found is Kinds.REGRESSION:
            said = (
                f"Regression: {self.head} is worse than {self.base} in {counts[Kinds.REGRESSION]} of {races}."
            )
        else:
            said = f"No verdict on {self.head} against {self.base} in {counts[Kinds.NO_VERDICT]} of {races}."
        return [
            said,
            *(
                f"{one.backend} at {one.workload.label}: {self._named(one.why)}."
                for one in self._sorted()
                if one.found is not Kinds.PASSED or one.faster
            ),
            *dict.fromkeys(f"Memory was not compared: {one.untold}." for one in self.lines if one.untold),
        ]

    def _named(self, why: str) -> str:
        """With the sides called as they were typed: git's HEAD may be another."""
        names = {"BASE": self.base, "HEAD": self.head}
        return re.sub(r"\b(BASE|HEAD)\b", lambda found: names[found[0]], why)

    def _sorted(self) -> list[Line]:
        order = list(Kinds)
        return sorted(
            self.lines, key=lambda one: (order.index(one.found), -one.high if one.high > 0 else 0.0)
        )

    def summary(self, most: int = 2800) -> str:
        """Markdown of at most so many letters: the verdict, then as many lines as fit, the worst first."""
        marks = {Kinds.REGRESSION: "❌", Kinds.NO_VERDICT: "❔", Kinds.PASSED: "✅"}
        said = [f"{marks[self.found]} **{self.sentences()[0]}**", ""]
        said += ["| | backend | workload | HEAD / BASE | what |", "|---|---|---|---|---|"]
        ran = (f" `{name}` ran with {_versions(one)}." for name, one in self.versions.items())
        last = [f"\nBASE is `{self.base}`, HEAD `{self.head}`; {self.seconds:.0f} s.{''.join(ran)}"]
        rows = []
        for one in self._sorted():
            ratio = f"{one.ratio:.3f} [{one.low:.3f}, {one.high:.3f}]" if one.ratio > 0 else "–"
            cells = (
                marks[one.found],
                f"`{one.backend}`",
                one.workload.label,
                ratio,
                _cell(self._named(one.why)),
            )
            rows.append(f"| {' | '.join(cells)} |")
        room = most - len("\n".join([*said, *last]).encode()) - 40
        kept: list[str] = []
        while rows and len("\n".join([*kept, rows[0]]).encode()) < room:
            kept.append(rows.pop(0))
        more = [f"\n{counted(len(rows), 'race')} more, none of them worse."] if rows else []
        return "\n".join([*said, *kept, *more, *last])[:most] + "\n"

    def to_json(self) -> dict[str, Any]:
        """Plain data for other programs; a figure that does not exist is None."""
        lines = [
            {
                **{name: value if value == value else None for name, value in vars(one).items()},
                "workload": one.workload.to_dict(),
                "found": str(one.found),
            }
            for one in self.lines
        ]
        return {
            "found": str(self.found),
            "exit_status": STATUS[self.found],
            "unseen": None if math.isnan(self.unseen) else self.unseen,
            "base": self.base,
            "head": self.head,
            "margins": asdict(self.margins),
            "versions": self.versions,
            "seconds": self.seconds,
            "lines": lines,
        }


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
) -> Gate:
    """Race HEAD against BASE, each of `backends` at each of `workloads`.

    base, head : a setting that says where a side runs, ("ref", "main"), as `attnlab.backends.side` knows it. backends :
    with settings, as contenders; ``mine[pages=default]`` does without huge pages. limits : of each race; it goes on
    until the intervals reach no further than a third of the margin, or the time is spent. Raises ValueError for a
    backend that is not known, and Unavailable, before anything is raced, for a side that is not to be had.
    """
    margins, started = margins or Margins(), time.monotonic()
    limits = replace(limits, narrow=margins.slower / 3, noise_margin=margins.slower / 2)
    able, entered = huge_pages_refused() is None, {}
    for one in backends:
        text = with_huge_pages(one) if able and Contender.parse(one).pages is None else one
        entered[one] = parse_all([with_setting(text, *side) for side in (base, base, head)])
    for contender in chain(*entered.values()):
        contender.require(folders)
    for contender in entered[backends[0]][1:]:
        on_event(f"looking for {contender.name}, or making what it runs in")
        side_of(contender, folders)
    found: dict[tuple[str, Workload], Line] = {}
    versions: dict[str, dict[str, str]] = {}
    for again in (False, True):
        asked = [
            key for key in product(backends, workloads) if not again or found[key].found is not Kinds.PASSED
        ]
        if not asked:
            break
        racing = [
            one for backend, there in entered.items() if any(backend in key for key in asked) for one in there
        ]
        with conductor(racing, folders=folders, limits=limits, on_event=on_event) as raced:
            for backend, workload in asked:
                line = judged(backend, raced.race(workload, [one.name for one in entered[backend]]), margins)
                found[backend, workload] = agreed(found[backend, workload], line) if again else line
            versions |= versions_of(raced.facts(workloads[0].device))
    shown = {name: one for name, one in versions.items() if not is_second_entry(name)}
    return Gate(base[1], head[1], margins, tuple(found.values()), shown, time.monotonic() - started)


def judged(backend: str, results: Sequence[Result], margins: Margins) -> Line:
    """What one race says; `results` are those of BASE, of BASE again, and of HEAD."""
    base, control, head = results
    workload = base.workload
    if base.outcome is not Outcome.MEASURED:
        both = base.outcome is head.outcome and base.outcome is Outcome.DECLINED
        why = f"BASE is {base.outcome} ({base.reason}), and HEAD {'is too' if both else head.outcome}"
        return Line(backend, workload, Kinds.PASSED if both else Kinds.NO_VERDICT, why)
    if head.outcome is not Outcome.MEASURED:
        missing = head.outcome is Outcome.UNAVAILABLE
        found = Kinds.NO_VERDICT if missing else Kinds.REGRESSION
        return Line(backend, workload, found, f"HEAD is {head.outcome}: {head.reason}", (str(head.outcome),))
    against = verdicts_against(results, base.contender)
    verdict, same = against.get(head.contender), against.get(control.contender)
    again = verdicts_against([control, head], control.contender).get(head.contender)
    untold = [one.reason or "it was not measured" for one in (base, head) if one.peak_bytes is None]
    line = partial(Line, backend, workload, untold="; ".join(dict.fromkeys(untold)))
    if verdict is not None and verdict.low:
        line = partial(line, ratio=verdict.ratio, low=verdict.low, high=verdict.high)
    worse, no_verdict = dict(_beside_time(base, head, margins)), None
    if verdict is None or again is None or same is None or not verdict.low:
        said = verdict and sentence("HEAD", "BASE", verdict).rstrip(".")
        no_verdict = said or "the three shared no round"
    elif same.kind in (Kind.FASTER, Kind.SLOWER):
        told = f"its ratio is {same.ratio:.3f} [{same.low:.3f}, {same.high:.3f}]"
        no_verdict = f"BASE is told apart from itself ({told}): the machine is not steady enough"
    else:
        least = min(verdict.low, again.low), min(verdict.ratio, again.ratio), verdict.high
        if all(one > 1 + part * margins.slower for one, part in zip(least, (0.0, 0.5, 1.0), strict=True)):
            span = f"[{verdict.low:.3f}, {verdict.high:.3f}]"
            said = f"HEAD takes {verdict.ratio:.3f} times as long as BASE {span}"
            worse = {"time": said, **worse}
        elif verdict.high > 1 + margins.unseen:
            most = f"of up to {percent(verdict.high - 1)}"
            if verdict.high > 2:
                most = f"to {math.ceil(min(verdict.high, 1000))} times as long"
            said = f"a slow-down {most} would not have been seen"
            no_verdict = f"{said}: repeat it on a quieter machine, or with more --seconds"
    if worse:
        return line(Kinds.REGRESSION, "; ".join(worse.values()), tuple(worse))
    if no_verdict:
        return line(Kinds.NO_VERDICT, no_verdict)
    assert verdict is not None, "else there is no verdict"
    passed = line(Kinds.PASSED, f"no slow-down above {percent(max(0.0, verdict.high - 1))}")
    if not passed.faster:
        return passed
    span = interval_text(1 / verdict.high, 1 / verdict.low)
    return replace(passed, why=f"HEAD is {ratio_text(1 / verdict.ratio)} times as fast as BASE {span}")


def _beside_time(base: Result, head: Result, margins: Margins) -> Iterator[tuple[str, str]]:
    """What else of HEAD is worse, by name, in words."""
    if base.kernel != head.kernel and not margins.kernel_may_change:
        yield "kernel", f"HEAD runs {head.kernel}, BASE {base.kernel}"
    was, now = base.peak_bytes, head.peak_bytes
    if was is not None and now is not None and now > max(was * (1 + margins.memory), was + _LEAST_BYTES):
        yield "memory", f"HEAD takes {bytes_text(now)} at its peak, BASE {bytes_text(was)}"
    before, after = (one.measurement("setup") for one in (base, head))
    if before is not None and after is not None and min(after.samples) > max(before.samples):
        first, then = base.setup_seconds or 0.0, head.setup_seconds or 0.0
        if then > max(first * (1 + margins.setup), first + _LEAST_SECONDS):
            yield "set-up", f"HEAD takes {seconds_text(then)} to get ready, BASE {seconds_text(first)}"


def agreed(first: Line, second: Line) -> Line:
    """What two races with different processes say together, the first of which did not pass."""
    if second.found is Kinds.PASSED:
        noted = f"{second.why}; a first race, not confirmed, said: {first.why}"
        return replace(second, why=noted) if first.found is Kinds.REGRESSION else second
    both = tuple(one for one in first.of if one in second.of)
    if first.found is second.found is Kinds.REGRESSION and both:
        return replace(second, of=both)
    if second.found is Kinds.REGRESSION:
        why = f"only the second of two races says: {second.why}"
        return replace(second, found=Kinds.NO_VERDICT, why=why, of=())
    return second


def _cell(text: str) -> str:
    """For a table in Markdown."""
    return one_line(text, 160).replace("|", "\\|")


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())
