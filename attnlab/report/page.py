"""The report's page: everything computed, then laid out by the template ``report.md.j2``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attnlab.contract import units
from attnlab.report import appendix, findings, layout, sentences, speed_figures, tables, wording
from attnlab.report.evidence import Evidence, Family

REPORT = "report.md"
FIGURES = "figures"

_SPEEDUP_NOTE = (
    "Above 1 is faster than the baseline, bold shares the first place, and ≈ marks what is not decided to "
    "differ from the baseline."
)
_CEILING_NOTE = (
    "FLOPs are those of the two matrix products, bytes those of the inputs and the output. A ceiling binds where it "
    "explains at least half of the time; overhead is all the rest: dispatch, softmax, traffic of intermediate arrays."
)


def write(evidence: Evidence) -> Path:
    """Draw the figures and write the page into the run's folder; returns the page's path."""
    folder = evidence.run.folder
    figures = draw(evidence, folder / FIGURES)
    page = folder / REPORT
    page.write_text(render(evidence, figures), encoding="utf-8")
    return page


def draw(evidence: Evidence, folder: Path) -> dict[str, str]:
    """File names of the figures that there was something to draw for; those of an earlier report are removed."""
    for old in folder.glob("*.png"):
        old.unlink()
    drawn: dict[str, Path | None] = {
        "latency": speed_figures.latency(evidence, folder),
        "memory": speed_figures.memory(evidence, folder),
        "ceiling": speed_figures.ceiling(evidence, folder),
    }
    drawn |= findings.draw(evidence.run.findings, folder)
    return {name: file.name for name, file in drawn.items() if file is not None}


def render(evidence: Evidence, figures: Mapping[str, str]) -> str:
    """The page as Markdown, with links to `figures` by file name."""
    return layout.fill("report.md.j2", **_content(evidence, figures))


def _content(evidence: Evidence, figures: Mapping[str, str]) -> dict[str, Any]:
    run = evidence.run
    several = len(evidence.families) > 1
    families = [_family(evidence, one, several) for one in evidence.families]
    kinds = ("latency", "memory", "ceiling")
    return {
        "title": "Which attention to run here",
        "about": about(evidence),
        "warnings": sentences.warnings(evidence),
        "verdict": sentences.verdict(evidence),
        "footnote": sentences.footnote(evidence),
        "figures": {kind: figures.get(kind) for kind in kinds},
        "families": families,
        "folded": layout.folded,
        "baseline": evidence.baseline,
        "any_speed": any(one["fastest"] for one in families),
        "any_peaks": any(one["peaks"] for one in families),
        "any_growth": any(one["growths"] for one in families),
        "speedup_note": _SPEEDUP_NOTE,
        "accuracy": tables.accuracy(evidence),
        "ceilings": tables.ceilings(evidence),
        "ceiling_note": _CEILING_NOTE,
        "growth_note": sentences.growth(evidence),
        "findings": findings.content(run.findings, figures),
        "left_out": appendix.left_out(evidence),
        "self_test_summary": sentences.self_test_summary(evidence),
        "self_test": appendix.self_test(evidence),
        "environment": appendix.environment(evidence),
        "account": appendix.account(evidence),
        "account_summary": appendix.account_summary(evidence),
        "reading": sentences.reading(evidence),
        "command": run.command,
    }


def _family(evidence: Evidence, family: Family, several: bool) -> dict[str, str]:
    return {
        "heading": f"**{family.title}**\n\n" if several else "",
        "suffix": f": {family.title}" if several else "",
        "latencies": tables.latencies(evidence, family),
        "peaks": tables.peaks(evidence, family),
        "fastest": tables.fastest(evidence, family),
        "speedups": tables.speedups(evidence, family),
        "shares": tables.shares(evidence, family),
        "growths": tables.growths(evidence, family),
    }


def about(evidence: Evidence) -> str:
    """What was measured, where and when, in one line."""
    run = evidence.run
    where = machine(run.environment)
    when = run.started.replace("T", " ").replace("+00:00", " UTC") if run.started else "at an unknown time"
    what = "; ".join(family.title for family in evidence.families)
    measured = sum(any(name in cell.measured for cell in evidence.cells) for name in evidence.names)
    return (
        f"{wording.counted(len(evidence.names), 'contender')}, {measured} of them measured, on "
        f"{wording.counted(len(run.plan.workloads), 'workload')} ({what}), {where}, {when}."
    )


def machine(environment: Mapping[str, Any]) -> str:
    """The processor or GPU in words, with its cores and memory, as far as the environment tells."""
    words = []
    for key in ("gpu", "cpu"):
        name = next(_strings(environment.get(key)), None)
        if name:
            words.append(name)
    cores = environment.get("cores")
    if isinstance(cores, Mapping):
        cores = cores.get("logical")
    if isinstance(cores, int):
        words.append(wording.counted(cores, "logical core"))
    memory = environment.get("memory_bytes")
    if isinstance(memory, int):
        words.append(units.bytes_text(memory))
    return ", ".join(words) if words else "a machine that was not recorded"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _strings(one)
