"""Reports of a stored run: a page in Markdown with figures, a page to explore, and text for a terminal.

`frames.py` turns a run into tables, and templates turn the tables into words. All comes from the stored run alone, so
it can be made again at any time. matplotlib and altair are imported only when they draw.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attnlab import lab
from attnlab.correctness.support import BASE, FAULT, YES, Support
from attnlab.errors import NotStored
from attnlab.figure_style import save
from attnlab.race.compare import Comparison
from attnlab.report.explore import PAGE, page
from attnlab.report.figures import draw
from attnlab.report.frames import NOT_BELIEVED, Frames, comparison, evenly, grids, mapping, peaks, records
from attnlab.report.render import fill
from attnlab.runs.store import Run
from attnlab.stats.intervals import speeds
from attnlab.stats.ranking import is_second_entry
from attnlab.text import bytes_text
from attnlab.workload.result import Outcome

REPORT, DETAILS, FIGURES = "report.md", "details.md", "figures"
#: most lengths in the table of all contenders
MOST_LENGTHS = 6
#: most tables on a page, each for a group of workloads
MOST_GROUPS = 4
#: a contender that is slower than the fastest by this factor wherever it was measured is not worth another race
SLOW = 10.0
#: a report warns if a larger fraction of the rounds was disturbed
BUSY = 0.2
#: outcomes after which nobody should use a contender, the worst first
_FAULTS = [str(one).replace("_", " ") for one in (Outcome.WRONG, Outcome.CRASHED, Outcome.TIMED_OUT)]
#: entries of an environment that the report shows, because they can change a time
_ENVIRONMENT = ("cpu", "gpus", "cores", "system", "python", "attnlab", "governor", "huge_pages", "variables")


def write(run: Run, folder: Path | None = None, *, explore: bool = True) -> Path:
    """Write ``report.md``, ``details.md``, ``figures/`` and ``explore.html`` into `folder`, by default the run's own.

    explore : whether to write ``explore.html``, which takes as long as the rest together.

    Returns the path of the report. Works on any run, even if it was interrupted or is empty. Replaces an earlier
    report. Raises NotStored if the folder cannot be written to.
    """
    place, frames = folder or run.folder, Frames(run)
    try:
        (place / FIGURES).mkdir(parents=True, exist_ok=True)
        pictures = []
        for name, one in draw(frames).items():
            if one is None:
                (place / FIGURES / f"{name}.png").unlink(missing_ok=True)  # of an earlier report
                continue
            save(one.figure, place / FIGURES / f"{name}.png")
            says = one.says.replace("[", "(").replace("]", ")")
            pictures.append({"name": name, "says": says, "link": f"{FIGURES}/{name}.png"})
        findings: Sequence[Any] = ()
        with suppress(ValueError):  # a damaged file is left out
            findings = lab.read_chapter(run.folder)
        texts = report_texts(frames, pictures, findings, elsewhere=place.resolve() != run.folder.resolve())
        if explore:
            texts[PAGE] = page(frames, fill("verdict.md.j2", **answer(frames)))
        for name, text in texts.items():
            (place / name).write_text(text, encoding="utf-8", errors="replace")  # paths may be invalid UTF-8
    except OSError as fault:
        raise NotStored(
            f"the report cannot be written into {place}: {fault.strerror}; nothing measured is lost: make room, or "
            f"name another folder: attnlab report {shlex.quote(str(run.folder))} --out FOLDER"
        ) from None
    return place / REPORT


def report_texts(
    frames: Frames,
    pictures: Sequence[Mapping[str, str]] = (),
    findings: Sequence[Any] = (),
    *,
    elsewhere: bool = False,
) -> dict[str, str]:
    """The report and its details as Markdown, by file name, with links to the `pictures`.

    elsewhere : whether they are written into another folder than the run's.
    """
    run, control, results, left_out = frames.run, frames.control, frames.results, frames.left_out
    by_itself = ~left_out.contender.astype(str).str.contains("[", regex=False)
    missing = left_out[(left_out.outcome == Outcome.UNAVAILABLE) & by_itself]
    fastest = dict(zip(frames.by_length.n, frames.by_length.best_seconds, strict=True))
    told = answer(frames)
    values = {
        **told,
        "race_two": _race_two(frames, told["chosen"]),
        "run": run,
        "frames": frames,
        "elsewhere": elsewhere,
        "machine": machine(run.environment),
        "environment": [
            (name, _plain(run.environment[name])) for name in _ENVIRONMENT if run.environment.get(name)
        ],
        "unseen": run.environment.get("not_seen_here") or [],
        "grids": grids(frames.winners),
        "most_groups": MOST_GROUPS,
        "fallbacks": results[results.asked_kernel.notna()].drop_duplicates("contender"),
        "missing": missing.contender,
        "by_name": mapping(run.environment.get("raced_only_by_name")),
        "left_out": left_out.drop(missing.index),
        "control": control,
        "control_worst": None if control.empty else float((control.speedup - 1).abs().max()),
        "between": None if control.empty else float(control.between_processes.median()),
        "fastest": {n: fastest[n] for n in evenly(sorted(fastest), MOST_LENGTHS)},
        "pictures": pictures,
        "findings": findings,
    }
    return {name: fill(f"{name}.j2", **values) for name in (REPORT, DETAILS)}


def _race_two(frames: Frames, chosen: Mapping[str, Any] | None) -> str | None:
    """The command that races the chosen contender against one with which it is tied, at such a workload; or None."""
    if not chosen or not chosen["open"]:
        return None
    row, cells = chosen["open"][0], {cell.workload.label: cell for cell in frames.analysis.cells}
    words = cells[row.Index].workload.options()
    words += [word for folder in frames.run.plan.folders for word in ("--implementations", folder)]
    other = next(name for name in row.first if name != chosen["name"])
    return shlex.join(["attnlab", "compare", chosen["name"], other, *words])


def answer(frames: Frames) -> dict[str, Any]:
    """All values for `verdict.md.j2`: the choice over all workloads and for each group, exceptions and warnings."""
    results, winners, chosen = frames.results, frames.winners, frames.choice()
    name = chosen["name"] if chosen else None
    groups = [(group.name, frames.choice(group.name)) for group in frames.analysis.groups]
    lower = results[results.computes_in.notna() & results.seconds.notna()].sort_values("score_bytes")
    faulty = frames.left_out[frames.left_out.outcome.isin(_FAULTS)]
    two_speeds = [
        {"heads": cell.workload.heads, "n": cell.workload.keys, "group": cell.group, "name": name, "of": both}
        for cell in frames.analysis.cells
        for name, one in cell.measured.items()
        if one.latency and len(both := speeds(one.latency)) > 1
    ]
    runners_up = list(winners.runner_up.value_counts().index)
    examples = winners[(winners.speedup_low > 1) & winners.runner_up.isin(runners_up[:1])]
    timed = results[results.seconds.notna()]
    # a contender that is the fastest, or has no interval, counts as not behind
    least = timed.behind.where(timed.behind_low.notna(), 1.0).groupby(timed.contender, sort=False).min()
    beside = [name, *chosen["runners_up"], *chosen["tied_with"]] if chosen else []
    memory, changes = list(peaks(results, beside).itertuples()), frames.crossovers
    # contenders without an interval that may matter: a call takes less than twice the time of the fastest
    alone, fastest = (
        dict(zip(winners.workload, winners[one], strict=True)) for one in ("not_compared", "seconds")
    )
    unsure = [
        one
        for one in timed.itertuples()
        if one.contender in alone[one.workload] and one.seconds < 2 * fastest[one.workload]
    ]
    return {
        "chosen": chosen,
        "measured": len(frames.contenders),
        "groups": groups,
        "kinds": len({one["name"] for _, one in groups if one}),
        "faulty": faulty.sort_values("outcome", key=lambda of: of.map(_FAULTS.index), kind="stable"),
        "outcomes": set(results.outcome),
        "without": list(frames.left_out.query("contender != @name and outcome != 'measured'").itertuples()),
        "untimed": results[(results.contender == name) & ~results.workload.isin(winners.workload)],
        "memory": memory,
        "crossovers": changes[(changes.below == name) | (changes.above == name)],
        "lower": lower.drop_duplicates("contender", keep="last"),
        "unsure": unsure,
        "slow": least[least >= SLOW],
        "two_speeds": two_speeds,
        "runners_up": runners_up,
        "examples": {*examples.workload},
        "margin": frames.analysis.margin,
        "sures": {*winners.sure},
        "same_kernel": {alias: name for one in winners.same_kernel for alias, name in one.items()},
        "warned": warnings(frames),
    }


def warnings(frames: Frames) -> dict[str, Any]:
    """What a reader must know before trusting the results. A warning that does not apply is empty, 0, False or None."""
    run, results, control = frames.run, frames.results, frames.control
    timed = [one.latency for one in run.results if one.latency]
    disturbed = sum(len(one.disturbed_rounds) for one in timed)
    timings = sum(len(one.samples) for one in timed)
    facts = [one.facts for one in timed]
    failed = control[control.differs]
    refused = results[results.outcome == NOT_BELIEVED]
    # on other devices a library reports the peak or does not: no advice helps there
    on_cpu = [one for one in run.results if one.latency and one.workload.device == "cpu"]
    without_peak = sum(one.peak_bytes is None and not is_second_entry(one.contender) for one in on_cpu)
    return {
        "answered": results.workload.nunique(),
        "planned": len(run.plan.workloads),
        "complete": run.complete,
        "torn": dict(run.torn),
        "disturbed": disturbed,
        "timings": timings,
        "busy": timings > 0 and disturbed > BUSY * timings,
        "others": next((one["others"] for one in facts if "others" in one), None),
        "cut_short": sum("cut short" in one for one in facts),
        "control_failed": len(failed),
        "control_of": len(control),
        "control_worst": None if failed.empty else failed.iloc[int((failed.speedup - 1).abs().argmax())],
        "not_believed": dict(refused.reason.value_counts()),
        "no_memory": without_peak if run.complete and run.plan.memory else 0,
    }


def machine(environment: Mapping[str, Any]) -> list[str]:
    """The GPU, the processor, the number of cores and the memory, as far as the environment holds them."""
    gpus, cores = environment.get("gpus"), mapping(environment.get("cores")).get("logical")
    named = (*(gpus[:1] if isinstance(gpus, list) else ()), environment.get("cpu"))
    memory = environment.get("memory_bytes")
    words = [one for one in named if isinstance(one, str) and one]
    words += [f"{cores} logical cores"] if isinstance(cores, int) else []
    return [*words, bytes_text(memory)] if isinstance(memory, int) else words


def verdict_text(run: Run) -> str:
    """The verdict and the table of the fastest contenders, as Markdown."""
    frames = Frames(run)
    return fill("show.md.j2", **answer(frames), grids=grids(frames.winners), most_groups=MOST_GROUPS)


def comparison_text(found: Comparison, *, chosen: str = "", quiet: bool = False) -> str:
    """One race in words and as a table, as Markdown. chosen : a remark if one of several workloads was taken."""
    timed = {one.contender: one.latency for one in found.results if one.latency}
    facts = [one.facts for one in timed.values()]
    return fill(
        "compare.md.j2",
        found=found,
        rows=comparison(found),
        speeds={name: speeds(one) for name, one in timed.items()},
        earlier=max((len(one.sittings) - 1 for one in found.sittings.values()), default=0),
        between=max((one.between for one in found.sittings.values()), default=0.0),
        shown=any(one.shown for one in found.sittings.values()),
        others=next((one["others"] for one in facts if "others" in one), None),
        chosen=chosen,
        quiet=quiet,
    )


def to_json(run: Run) -> dict[str, Any]:
    """The verdict and the frames `winners` and `results` as plain data; unknown values are None."""
    frames = Frames(run)
    return {
        "complete": run.complete,
        "baseline": frames.analysis.baseline,
        "margin": frames.analysis.margin,
        "use": (answer(frames)["chosen"] or {}).get("name"),
        "winners": records(frames.winners),
        "results": records(frames.results),
    }


def bmf(run: Run) -> dict[str, dict[str, dict[str, float]]]:
    """Bencher's metric format: for each workload and contender the latency (ns), speedup and peak memory (B)."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in records(Frames(run).results):
        if row["seconds"] is None:
            continue
        told = {"latency": {"value": row["seconds"] * 1e9}}
        if row["speedup_low"] is not None:
            ends = {"lower_value": row["speedup_low"], "upper_value": row["speedup_high"]}
            told["speedup"] = {"value": row["speedup"], **ends}
        if row["peak_bytes"] is not None:
            told["peak-memory"] = {"value": row["peak_bytes"]}
        found[f"{row['workload']} {row['contender']}"] = told
    return found


def _plain(value: Any) -> str:
    """An entry of an environment in one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {one}" for name, one in value.items() if one is not None) or "none"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


# -- the support matrix ------------------------------------------------------------------------------

Reasons = dict[str, int]


def support_text(found: Sequence[Support]) -> str:
    """The support matrix as Markdown: a table for each device and direction, and the reasons."""
    reasons: Reasons = {}
    devices = {
        device: [one for one in found if one.device == device]
        for device in dict.fromkeys(one.device for one in found)
    }
    tables = [
        {"device": device, "direction": direction, **_direction(mine, direction, reasons)}
        for device, mine in devices.items()
        for direction in dict.fromkeys(name for one in mine for by in one.answers.values() for name in by)
    ]
    formats = {one.backend: _formats(one) for one in found}
    return fill("support.md.j2", base=BASE, found=found, formats=formats, tables=tables, reasons=reasons)


def _formats(one: Support) -> list[str]:
    """The number formats in which the backend ran any feature, right or wrong."""
    answers = [dtypes for by in one.answers.values() for dtypes in by.values()]
    return [name for name in (answers[0] if answers else ()) if any(_does(each[name]) for each in answers)]


def _does(answer: str) -> bool:
    return answer == YES or answer.startswith(FAULT)


def _direction(found: Sequence[Support], direction: str, reasons: Reasons) -> dict[str, Any]:
    """For one direction: the backends that ran any feature, a cell for each feature, and why the others ran none."""
    shown, without = [], {}
    for one in (one for one in found if one.answers):
        answers = [by[direction] for by in one.answers.values()]
        if any(_does(answer) for dtypes in answers for answer in dtypes.values()):
            shown.append(one)
        else:
            without[one.backend] = answers[0][next(iter(_formats(one) or answers[0]))]
    rows = {
        feature: [_cell(one.answers[feature][direction], _formats(one), reasons) for one in shown]
        for feature in dict.fromkeys(name for one in shown for name in one.answers)
    }
    return {"backends": [one.backend for one in shown], "without": without, "rows": rows}


def _cell(answers: Mapping[str, str], formats: Sequence[str], reasons: Reasons) -> dict[str, Any]:
    """`formats` : those in which the feature works, None if all; `whys` : the numbers of the reasons for the others."""
    whys = dict.fromkeys(answers[name] for name in formats if answers[name] != YES)
    does = [name.replace("float", "f") for name in formats if answers[name] == YES]
    numbers = [reasons.setdefault(why, len(reasons) + 1) for why in whys]
    return {
        "formats": does if whys else None,
        "whys": numbers,
        "fault": any(why.startswith(FAULT) for why in whys),
    }
