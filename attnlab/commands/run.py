"""``attnlab run``: measure a plan, write the report, print the verdict."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from attnlab.commands import options
from attnlab.contract.fields import split_names


@click.command(cls=options.WorkloadCommand)
@click.option("--plan", type=click.Path(path_type=Path), metavar="FILE.toml", help="A plan file.")
@options.preset
@click.option("--backends", metavar="A,B", help="Contenders; all that are there by default.")
@options.workload_options(grid=True)
@click.option("--baseline", metavar="NAME", help="The contender that the others are compared with.")
@options.folders
@click.option("--experiments", metavar="A,B", help="The numerical chapter: names, or all, or none.")
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
def run(
    plan: Path | None,
    preset: str | None,
    backends: str | None,
    baseline: str | None,
    folders: tuple[str, ...],
    experiments: str | None,
    seconds: float | None,
    processes: int | None,
    out: Path | None,
    **said: str | None,
) -> int:
    """Measure a plan, write its report, and print the verdict.

    Options given here go before those of the plan file, and both before what a preset says. Ctrl-C keeps what is done
    and still writes the report.
    """
    from attnlab.commands.progress import live_progress
    from attnlab.contract.result import Outcome
    from attnlab.measuring.limits import Limits
    from attnlab.program.execute import run as carry_out
    from attnlab.program.grid import by_option, read_options
    from attnlab.program.plan import Plan, read_plan
    from attnlab.report import verdict_text, write

    chosen: dict[str, Any] = read_plan(plan) if plan else {}
    typed = read_options(said, grid=True)
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
        asked = Plan.grid(**chosen)
    except ValueError as fault:
        told = by_option(fault, typed, grid=True)
        raise (ValueError(f"{plan}: {fault}") if plan and told is fault else told) from None
    started = time.monotonic()
    with live_progress() as progress:
        found = carry_out(asked, out, command=_again(), progress=progress)
        progress.detail("writing the report")
        drawing = time.monotonic()
        found.account["report"] = 0.0
        page = write(found)
    found.account["report"] = time.monotonic() - drawing
    found.save()
    click.echo(verdict_text(found))
    click.echo(f"\nThe report: {page}  ({time.monotonic() - started:.0f} s in all)")
    if found.complete and not any(one.outcome is Outcome.MEASURED for one in found.results):
        reasons = dict.fromkeys(one.reason for one in found.results)
        click.echo(f"Nothing was measured: {'; '.join(filter(None, reasons))}", err=True)
        return 1
    if not found.complete:
        click.echo("Interrupted: the report covers what was measured until then.", err=True)
        return 130
    return 0


def _again() -> str:
    return shlex.join(["attnlab", *sys.argv[1:]])
