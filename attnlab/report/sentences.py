"""The report's sentences about the whole run: warnings, what was measured, how steady the machine was, and growth."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from attnlab.backends.contender import with_huge_pages
from attnlab.report.analysis import Analysis, mapping, pool_threads
from attnlab.runs.presets import presets
from attnlab.stats.analysis import Group
from attnlab.stats.groups import place_text
from attnlab.stats.growth import WORST, Fits
from attnlab.stats.verdicts import latencies
from attnlab.text import bytes_text, counted, listed, named, number_text, percent, seconds_text

#: where more than this part of all turns had to wait for a core, other programs were using the machine
BUSY = 0.2
#: a machine that was this much slower at one length than at another is said to have been
_SLOWED = 1.1
#: activities in which a contender itself was at work
_AT_WORK = ("timed", "warm-up", "memory", "instruments")
#: variables that hold libraries to fewer threads than there are cores
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: variables that choose a library's kernels, or keep it from instructions that the processor has
_KERNELS = (
    "OPENBLAS_CORETYPE", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY", "NPY_DISABLE_CPU_FEATURES", "BLIS_ARCH_TYPE",
)  # fmt: skip


def about(analysis: Analysis) -> str:
    """What was measured, where and when."""
    run = analysis.run
    when = run.started.replace("T", " ").replace("+00:00", " UTC") if run.started else "at an unknown time"
    measured = sum(any(name in cell.measured for cell in analysis.cells) for name in analysis.names)
    text = (
        f"{counted(len(analysis.names), 'contender')}, {measured} of them measured, on "
        f"{counted(len(run.plan.workloads), 'workload')} ({analysis.shared}), "
        f"{machine(run.environment)}, {when}."
    )
    if len(analysis.groups) > 1:
        text += f" The workloads form {len(analysis.groups)} groups, each ranked by itself: "
        text += "; ".join(group.name for group in analysis.groups) + "."
    return text


def models(analysis: Analysis) -> list[str]:
    """Whose shapes were measured, and where they stand; of a preset that this version does not know, its name."""
    paths = (path for asked in analysis.run.plan.origins for path in asked.split(", ") if path)
    said = []
    for name in dict.fromkeys(path.partition("/")[0] for path in paths):
        preset = presets().get(name)
        if preset is None:
            said.append(f"The preset `{name}` is not known to this version.")
        else:
            said.append(" ".join([f"`{name}` is {preset.title}: {preset.source}.", preset.note]).strip())
    return said


def machine(environment: Mapping[str, Any]) -> str:
    """The processor or GPU in words, with its cores and memory, as far as the environment tells."""
    gpus = environment.get("gpus")
    named_first = (*(gpus[:1] if isinstance(gpus, list) else ()), environment.get("cpu"))
    words = [one for one in named_first if isinstance(one, str) and one]
    cores, memory = mapping(environment.get("cores")).get("logical"), environment.get("memory_bytes")
    words += [counted(cores, "logical core")] if isinstance(cores, int) else []
    words += [bytes_text(memory)] if isinstance(memory, int) else []
    return ", ".join(words) or "a machine that was not recorded"


def warnings(analysis: Analysis) -> list[str]:
    """What a reader must know before trusting anything: an interrupted run, a failed self-test, no memory."""
    found = []
    run, tested = analysis.run, analysis.self_test
    if not run.complete:
        answered = sum(1 for cell in analysis.cells if cell.answers)
        found.append(
            f"This run was interrupted: {answered} of {counted(len(run.plan.workloads), 'workload')} "
            "were answered. What follows holds for those alone."
        )
    for file, faults in run.torn.items():
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        found.append(f"{file} is damaged, and what could not be read is left out: {faults[0]}{more}.")
    found += _fewer_threads(run.environment)
    found += _other_kernels(run.environment)
    disturbed, turns = analysis.turns
    timed = [(cell, one) for cell in analysis.cells for one in latencies(cell.measured.values()).values()]
    if turns and BUSY < disturbed / turns < 1:
        noted = [one.facts.get("others", "") for _, one in timed]
        who = max(noted, key=lambda text: float((re.match(r"\d+\.?\d*", text) or ["0"])[0]), default="")
        found.append(
            f"Other programs used this machine's cores: {disturbed} of {counted(turns, 'turn')} had to wait "
            f"for one and do not count{f' (others took up to {who})' if who else ''}. What could not be told is called "
            "undecided below; repeat the run when nothing else runs to have it decided."
        )
    longest = sorted(timed, key=lambda one: -one[1].median)
    cut_short = {cell: one.facts["cut short"] for cell, one in longest if "cut short" in one.facts}
    if cut_short:
        cell, note = next(iter(cut_short.items()))
        label = place_text(cell.workload) if len(analysis.groups) == 1 else cell.workload.label
        leave = "leaves" if len(cut_short) == 1 else "leave"
        found.append(
            f"{counted(len(cut_short), 'race')} ended before all planned processes had their turn, and {leave} "
            f"more undecided. At {label}: {note}."
        )
    if tested.failures:
        text = (
            f"The self-test failed on {len(tested.failures)} of "
            f"{counted(len(tested.judged), 'workload')}: one contender, entered twice, differed from itself by "
            f"up to {percent(max(one.deviation for one in tested.failures))}. **Smaller differences on these "
            "workloads count as none below**"
        )
        if tested.between is not None:
            text += f"; two of its processes differ by {percent(tested.between)} (standard deviation)"
        found.append(f"{text}.")
    reasons = (one.reason or "" for cell in analysis.cells for one in cell.measured.values())
    unread = [one.removeprefix("its ") for one in reasons if "peak memory could not be measured" in one]
    if unread:
        found.append(f"Of {counted(len(unread), 'result')} the {unread[0]}.")
    lost = len(analysis.uncounted)
    if lost and disturbed < turns:
        found.append(
            f"Of {counted(lost, 'measurement')} no turn counts, as other programs used the cores; left out."
        )
    refused = sum(len(cell.faults) for cell in analysis.cells) - lost
    if refused:
        found.append(
            f"{counted(refused, 'measurement')} came out far above the measured ceiling of this machine. "
            "They are failed measurements, of the speed or of the ceiling, and are left out."
        )
    return found


def _fewer_threads(environment: Mapping[str, Any]) -> Iterator[str]:
    """That a variable held the libraries to fewer threads than there were cores to use, where their pools tell so."""
    variables, cores, entries = (
        mapping(environment.get(name)) for name in ("variables", "cores", "contenders")
    )
    affinity = environment.get("affinity")
    counts = (cores.get("physical"), len(affinity) if isinstance(affinity, list) else None)
    allowed = min((one for one in counts if isinstance(one, int)), default=0)
    said = [f"`{name}={variables[name]}`" for name in _THREADS if name in variables]
    pools = [
        max(pool_threads(mapping(facts)), default=0)
        for name, facts in entries.items()
        if "threads=" not in name
    ]
    held = [one for one in pools if 0 < one < allowed]
    if said and held:
        yield (
            f"{listed(said)} {'was' if len(said) == 1 else 'were'} set: libraries computed with "
            f"{counted(max(held), 'thread')} where {allowed} cores could be used. What is fastest with all of them may "
            "be another."
        )


def _other_kernels(environment: Mapping[str, Any]) -> Iterator[str]:
    """That a variable chose kernels in a library's place."""
    variables = mapping(environment.get("variables"))
    said = [f"`{name}={variables[name]}`" for name in _KERNELS if name in variables]
    if said:
        were, they, them = ("was", "it chooses", "it") if len(said) == 1 else ("were", "they choose", "them")
        yield (
            f"{listed(said)} {were} set: a library took the kernels that {they}, perhaps slower ones than its own "
            f"choice. What is fastest without {them} may be another."
        )


def self_test_summary(analysis: Analysis) -> str:
    """The self-test in a few sentences: how far a contender is from itself, and how many turns do not count."""
    tested = analysis.self_test
    disturbed, turns = analysis.turns
    left_out = (
        f"{disturbed} of {counted(turns, 'turn')} do not count: all of their calls waited for a core for more "
        f"than {percent(analysis.run.plan.limits.run_delay)} of the time, or took fresh memory pages; of other "
        "turns the calls that waited so are left out."
    )
    unseen = analysis.run.environment.get("not_seen_here")
    if unseen:
        left_out += (
            f" This system does not tell the {' nor the '.join(unseen)}: such a disturbance goes unseen."
        )
    if not tested.twins:
        return f"No contender was measured twice, so there is no self-test. {left_out}"
    worst = max(tested.twins, key=lambda one: one.deviation)
    failed = f"{len(tested.failures)}" if tested.failures else "none"
    without = len(tested.twins) - len(tested.judged)
    none = f" ({without} more {'has' if without == 1 else 'have'} no interval)" if without else ""
    text = (
        f"`{worst.contender}` was entered twice. Its two entries differed by more than "
        f"±{percent(tested.margin)}, with the whole interval, on {failed} of "
        f"{counted(len(tested.judged), 'workload')}{none}; the largest difference of the estimates was "
        f"{percent(worst.deviation)}."
    )
    if tested.between is not None:
        text += (
            f" From process to process its time varies by {percent(tested.between)} (standard deviation, median "
            "over the workloads): that is what the intervals are made of."
        )
    return f"{text} {left_out}"


def two_speeds(analysis: Analysis) -> list[str]:
    """Contenders that have two speeds, at the workload where these are furthest apart."""
    found: dict[str, tuple[float, str]] = {}
    for cell in analysis.cells:
        for one in cell.ranking.standings if cell.ranking else ():
            if len(one.speeds) < 2:
                continue
            fast, slow = one.speeds
            said = (
                f"`{one.contender}` takes {seconds_text(slow.seconds)} or {seconds_text(fast.seconds)} at "
                f"{place_text(cell.workload)}, by process or placement ({slow.placements} and {fast.placements} of "
                f"{slow.placements + fast.placements} placements)"
            )
            if "pages=" not in one.contender:
                said += f"; see what huge pages give: race `{with_huge_pages(one.contender)}`"
            apart = slow.seconds / fast.seconds
            found[one.contender] = max(found.get(one.contender, (0.0, "")), (apart, f"{said}."))
    return [said for _, said in found.values()]


def account(analysis: Analysis) -> str:
    """How much of the time contenders themselves were at work."""
    spent = analysis.run.account
    total = sum(spent.values())
    if total <= 0:
        return "The run's time was not recorded."
    working = sum(spent.get(name, 0.0) for name in _AT_WORK)
    return (
        f"Timed, warm-up and memory calls took {percent(working / total)} of {total:.0f} s; the rest is start-up"
        ", checking, changing from one contender's process to the next, and what else this report tells: numerics, "
        "ceilings, the same bits."
    )


# -- how times grow with length ----------------------------------------------------------------------


def growth(group: Group, found: Fits) -> list[str]:
    """How far the fits can be trusted, where a pair becomes dearer, and whether the machine's own speed changed."""
    return [*_fits(found), *_steps(group, found), *_slowed(group)] if found else []


def _fits(found: Fits) -> Iterator[str]:
    """How many fits are good, how far they reach beyond their lengths, and who skips what the mask hides."""
    good = sum(one.label is not None for one in found.values())
    text = f"{good} of {counted(len(found), 'fit')} {'is' if 1 in (good, len(found)) else 'are'} good"
    known = {at: one.forecast for at, one in found.items() if one.forecast is not None}
    if known:
        met = sum(abs(one.error) <= WORST for one in known.values())
        (name, count), worst = max(known.items(), key=lambda item: abs(item[1].error))
        predicted, measured = seconds_text(worst.predicted), seconds_text(worst.measured)
        yield (
            f"{text}. Made without the longest length, {met} of {len(known)} fits come within {percent(WORST)} of its "
            f"time; furthest off is `{name}` at n = {worst.length}, {counted(count, 'head')}: predicted {predicted}, "
            f"measured {measured} ({worst.error * 100:+.0f} %)."
        )
    else:
        yield f"{text}; with fewer than five lengths none could be held out."
    names = dict.fromkeys(name for (name, _), one in found.items() if one.kept and one.label is not None)
    if names:
        yield (
            f"The times of {named(names)} follow the pairs that the mask keeps, so c stands before these, for one "
            "head, instead of n²: what is hidden is not computed."
        )


def _steps(group: Group, found: Fits) -> Iterator[str]:
    """Where a pair becomes dearer, by how much, and how large the score matrix is there."""
    steps = []
    for (name, count), one in found.items():
        if one.step is not None and one.label is not None:
            size = bytes_text(group.cells[count, one.step.first].workload.score_bytes)
            steps.append(
                f"`{name}` {number_text(one.step.ratio, 2)} times from n = {one.step.first}, {counted(count, 'head')} "
                f"(score matrix {size})"
            )
    if steps:
        yield f"A pair becomes dearer, as where arrays leave a cache: {'; '.join(steps)}."


def _slowed(group: Group) -> Iterator[str]:
    """A warning where the calibration loop itself took longer at some lengths than at others, at most."""
    apart = []
    for count in group.heads:
        paces = {n: pace for n in group.grid[count] if (pace := group.cells[count, n].pace) is not None}
        if len(paces) > 1:
            slow, fast = max(paces, key=paces.__getitem__), min(paces, key=paces.__getitem__)
            apart.append((paces[slow] / paces[fast], count, (slow, paces[slow]), (fast, paces[fast])))
    ratio, count, *ends = max(apart, key=lambda one: one[0], default=(0.0, 0))
    if ratio > _SLOWED:
        slower, faster = (f"{seconds_text(pace)} beside n = {n}" for n, pace in ends)
        yield (
            f"The machine's own speed changed: at {counted(count, 'head')} its calibration loop took {slower} and "
            f"{faster} (medians). A fit cannot tell that from growth: where it matters, repeat the run when nothing "
            "else runs."
        )
