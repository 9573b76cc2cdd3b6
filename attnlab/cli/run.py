"""``attnlab run``: measure a plan, write the report, print the verdict."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnlab.cli import completion, options
from attnlab.problem.fields import split_names

if TYPE_CHECKING:
    from attnlab.runs.execute import Progress
    from attnlab.runs.plan import Plan
    from attnlab.runs.store import Run


@click.command(cls=options.WorkloadCommand)
@click.option("--plan", type=click.Path(path_type=Path), metavar="FILE.toml", help="A plan file.")
@options.preset
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Go on with an interrupted run; its plan stands in its folder, so no other option is taken.",
)
@click.option(
    "--backends",
    metavar="A,B",
    shell_complete=completion.listed(completion.backends),
    help="Contenders; all by default that set up fast, all for every one.",
)
@options.workload_options(grid=True)
@click.option(
    "--baseline",
    metavar="NAME",
    shell_complete=completion.backends,
    help="The contender that the others are compared with.",
)
@options.folders
@click.option(
    "--experiments",
    metavar="A,B",
    shell_complete=completion.listed(completion.experiments),
    help="The numerical chapter: names, or all, or none.",
)
@click.option("--seconds", type=float, help="Time for the rounds of one workload; long calls need more.")
@click.option(
    "--processes", type=int, metavar="N", help="Fresh processes of each contender; five by default."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A new folder for the run; reports/latest by default, where the run before is moved aside.",
)
@options.quiet
def run(
    plan: Path | None,
    preset: str | None,
    resume: Path | None,
    backends: str | None,
    baseline: str | None,
    folders: tuple[str, ...],
    experiments: str | None,
    seconds: float | None,
    processes: int | None,
    out: Path | None,
    quiet: bool,
    **said: str | None,
) -> int:
    """Measure a plan, write its report, and print the verdict.

    Options given here go before those of the plan file, and both before what a preset says. Ctrl-C keeps what is done
    and still writes the report; --resume goes on from there.
    """
    from attnlab.cli.progress import live_progress
    from attnlab.problem.grid import read_options
    from attnlab.runs import execute

    started = time.monotonic()
    if resume is None:
        typed = read_options(said, grid=True)
        asked = _plan(plan, preset, backends, baseline, folders, experiments, seconds, processes, typed)
    elif any(
        (plan, preset, backends, baseline, folders, experiments, seconds, processes, out, *said.values())
    ):
        raise ValueError(
            f"--resume takes no other option: {resume} holds the plan; start a new run for another one"
        )
    with live_progress(quiet=quiet) as progress:
        if resume is None:
            found = execute.run(asked, out, command=options.typed(), progress=progress)
        else:
            found = execute.resume(resume, progress=progress)
        page = _report(found, progress)
    return _told(found, page, time.monotonic() - started, quiet)


def _plan(
    plan: Path | None,
    preset: str | None,
    backends: str | None,
    baseline: str | None,
    folders: tuple[str, ...],
    experiments: str | None,
    seconds: float | None,
    processes: int | None,
    typed: dict[str, Any],
) -> Plan:
    """The plan of a file, changed by what was typed. Raises ValueError, naming the file or the option."""
    from attnlab.problem.grid import by_option
    from attnlab.race.limits import Limits
    from attnlab.runs.plan import Plan, read_plan

    chosen: dict[str, Any] = read_plan(plan) if plan else {}
    given: dict[str, Any] = {
        "preset": preset,
        "contenders": tuple(split_names(backends)) if backends is not None else None,
        "baseline": baseline,
        "folders": folders or None,
        "experiments": tuple(split_names(experiments)) if experiments is not None else None,
    }
    limits: dict[str, Any] = {}
    if seconds is not None:
        limits["workload_seconds"] = options.positive("--seconds", seconds)
    if processes is not None:
        options.positive("--processes", processes)
        limits |= {"processes": processes, "most_processes": processes}
    if limits:
        given["limits"] = replace(chosen.get("limits", Limits()), **limits)
    chosen |= {name: value for name, value in given.items() if value is not None} | typed
    try:
        return Plan.grid(**chosen)
    except ValueError as fault:
        told = by_option(fault, typed, grid=True)
        raise (ValueError(f"{plan}: {fault}") if plan and told is fault else told) from None


def _report(found: Run, progress: Progress) -> Path:
    """Write the report, and its time into the run's account."""
    from attnlab.report import write

    progress.detail("writing the report")
    drawing = time.monotonic()
    spent = found.account.pop("report", 0.0)
    found.account["report"] = 0.0
    page = write(found)
    found.account["report"] = spent + time.monotonic() - drawing
    found.save()
    return page


def _told(found: Run, page: Path, seconds: float, quiet: bool) -> int:
    """Print the table and the verdict, with `quiet` the verdict alone, and return the exit status."""
    from attnlab.cli.standings import show_run
    from attnlab.problem.result import Outcome

    show_run(found, quiet=quiet)
    if not quiet:
        click.echo(f"\nThe report: {page}  ({seconds:.0f} s in all)")
    if found.complete and not any(one.outcome is Outcome.MEASURED for one in found.results):
        reasons = dict.fromkeys(one.reason for one in found.results)
        click.echo(f"Nothing was measured: {'; '.join(filter(None, reasons))}", err=True)
        return 1
    if not found.complete:
        click.echo(
            "Interrupted: the report covers what was measured until then. "
            f"Go on with: attnlab run --resume {shlex.quote(str(found.folder))}",
            err=True,
        )
        return 130
    return 0
