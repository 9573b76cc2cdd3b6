"""From a stored run to what a person reads: a page in Markdown with figures, a page to explore, text for a terminal.

Frames (`frames.py`) turn a run into tables, templates turn tables into words. All of it comes from the run alone, so
that it can be made again at any time. matplotlib and altair are loaded only where they draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab import figures
from attnlab.errors import NotStored
from attnlab.race.compare import Comparison
from attnlab.report import run_figures
from attnlab.report.answer import answer, machine
from attnlab.report.experiments_page import chapter_of
from attnlab.report.frames import Frames, comparison, differences, evenly, grids, records
from attnlab.report.page import PAGE, page
from attnlab.report.render import fill, show
from attnlab.runs.store import Run
from attnlab.stats.verdicts import speeds
from attnlab.workload.result import Outcome

__all__ = [
    "PAGE",
    "Frames",
    "bmf",
    "comparison_text",
    "differences",
    "fill",
    "report_texts",
    "show",
    "to_json",
]
__all__ += ["verdict_text", "write"]

REPORT, DETAILS, FIGURES = "report.md", "details.md", "figures"
#: lengths in the table of all contenders
MOST_LENGTHS = 6
#: tables of groups of workloads on one page
MOST_GROUPS = 4
#: entries of an environment that the report shows: those that change a time
_ENVIRONMENT = ("cpu", "gpus", "cores", "system", "python", "attnlab", "governor", "huge_pages", "variables")


def write(run: Run, folder: Path | None = None, *, explore: bool = True) -> Path:
    """Write ``report.md``, ``details.md``, ``figures/`` and ``explore.html`` into `folder`, by default the run's own.

    explore : write the last of them too, which takes as long as the others together.

    Returns the path of the report. Works on any run, interrupted or empty. Replaces an earlier report. Raises
    NotStored where the folder cannot be written to.
    """
    place, frames = folder or run.folder, Frames(run)
    try:
        (place / FIGURES).mkdir(parents=True, exist_ok=True)
        for old in (place / FIGURES).glob("*.png"):
            old.unlink()
        pictures = []
        for name, one in run_figures.draw(frames).items():
            figures.save(one.figure, place / FIGURES / f"{name}.png")
            says = one.says.replace("[", "(").replace("]", ")")
            pictures.append({"name": name, "says": says, "link": f"{FIGURES}/{name}.png"})
        texts = report_texts(frames, pictures, chapter_of(run.folder))
        if explore:
            texts[PAGE] = page(frames, fill("verdict.md.j2", **answer(frames)))
        for name, text in texts.items():
            (place / name).write_text(text, encoding="utf-8")
    except OSError as fault:
        raise NotStored(
            f"the report cannot be written into {place}: {fault.strerror}; nothing measured is lost: make room, or "
            f"name another folder: attnlab report {run.folder} --out FOLDER"
        ) from None
    return place / REPORT


def report_texts(
    frames: Frames, pictures: Sequence[Mapping[str, str]] = (), findings: Sequence[Any] = ()
) -> dict[str, str]:
    """The report and its details as Markdown by the name of their file, with links to the pictures that there are."""
    run, analysis, control, results = frames.run, frames.analysis, frames.control, frames.results
    left_out = frames.left_out
    by_itself = ~left_out.contender.astype(str).str.contains("[", regex=False)
    missing = left_out[(left_out.outcome == Outcome.UNAVAILABLE) & by_itself]
    fastest = dict(zip(frames.by_length.n, frames.by_length.best_seconds, strict=True))
    values = {
        **answer(frames),
        "run": run,
        "names": analysis.names,
        "shared": analysis.shared,
        "margin": analysis.margin,
        "machine": machine(run.environment),
        "environment": [
            (name, _plain(run.environment[name])) for name in _ENVIRONMENT if run.environment.get(name)
        ],
        "unseen": run.environment.get("not_seen_here") or [],
        "command": run.command,
        "grids": grids(frames.winners),
        "most_groups": MOST_GROUPS,
        "contenders": frames.contenders,
        "fallbacks": results[results.asked_kernel.notna()].drop_duplicates("contender"),
        "missing": missing.contender,
        "left_out": left_out.drop(missing.index),
        "accuracy": frames.accuracy,
        "control": control,
        "control_worst": None if control.empty else float((control.speedup - 1).abs().max()),
        "between": None if control.empty else float(control.between_processes.median()),
        "growth": frames.growth,
        "by_length": frames.by_length,
        "fastest": {n: fastest[n] for n in evenly(sorted(fastest), MOST_LENGTHS)},
        "pictures": pictures,
        "findings": findings,
    }
    return {name: fill(f"{name}.j2", **values) for name in (REPORT, DETAILS)}


def verdict_text(run: Run) -> str:
    """The verdict and the table of the fastest as Markdown."""
    frames = Frames(run)
    return fill("show.md.j2", **answer(frames), grids=grids(frames.winners), most_groups=MOST_GROUPS)


def comparison_text(found: Comparison, *, chosen: str = "", quiet: bool = False) -> str:
    """One race in words and as a table, as Markdown; `chosen` says which workload was taken of several."""
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
        needed=max((one.visits_needed or 0 for one in found.verdicts.values()), default=0),
        others=next((one["others"] for one in facts if "others" in one), None),
        chosen=chosen,
        quiet=quiet,
    )


def to_json(run: Run) -> dict[str, Any]:
    """The verdict and the frames `winners` and `results` as plain data; what is not known is None."""
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
    """Bencher's metric format: for each workload and contender the latency (ns), the speedup and the peak memory."""
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
    """An entry of an environment in one line; a hash seed changes nothing and is left out."""
    if isinstance(value, Mapping):
        known = {name: one for name, one in value.items() if one is not None and name != "PYTHONHASHSEED"}
        return ", ".join(f"{name} {one}" for name, one in known.items()) or "none"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
